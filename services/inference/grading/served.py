"""Choose and check the rewards, metrics and settings to serve over HTTP."""

from collections.abc import Sequence
from typing import Any

import yaml

from contracts.errors import InputError, did_you_mean
from contracts.settings import build
from reward_servers.evaluated_metrics import refuse_evaluated
from reward_servers.graders import METRICS, REWARDS
from reward_servers.part_checks import is_ready
from reward_servers.settings import Part, RewardServersSettings, parts
from reward_servers.user_rewards.own import find_grader


def chosen(words: Sequence[str]) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Return the rewards and metrics for names, or for mappings with a name and options.

    A name of both kinds returns both. Without names, return the built-ins with installed requirements that
    need no option and no model.

    Raises:
        InputError: a reward or metric is unknown, or a mapping is invalid.
    """
    rewards: list[Any] = []
    metrics: list[Any] = []
    if not words:
        rewards = [name for name in sorted(REWARDS) if is_ready("reward", name)]
        metrics = [name for name in sorted(METRICS) if is_ready("metric", name)]
    for word in words:
        entry = _mapping(word) if word.startswith("{") else {"name": word}
        name = str(entry.get("name"))
        is_reward, is_metric = name in REWARDS, name in METRICS
        if ":" in name:
            grader = find_grader("reward", name)
            is_metric = hasattr(grader, "compute")
            is_reward = hasattr(grader, "score") or not is_metric
        if not is_reward and not is_metric:
            near = did_you_mean(name, REWARDS.keys() | METRICS.keys())
            raise InputError(f"{name}: no such reward or metric{near}")
        rewards += [entry] if is_reward else []
        metrics += [entry] if is_metric else []
    chosen_metrics = parts(metrics, "metric")
    refuse_evaluated(chosen_metrics)
    return parts(rewards, "reward"), chosen_metrics


def _mapping(word: str) -> dict[str, Any]:
    try:
        mapping = yaml.safe_load(word)
    except yaml.YAMLError as error:
        raise InputError(f"{word}: not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(mapping, dict) or "name" not in mapping:
        raise InputError(
            f"{word}: expected a mapping with a name, such as '{{name: learned_reward, model: FOLDER}}'"
        )
    return mapping


def settings_from(overrides: Sequence[str], host: str | None, port: int | None) -> RewardServersSettings:
    """Build settings from `rouge.replicas=2` or `reward_servers.rouge.replicas=2`; host and port win."""
    tree: dict[str, Any] = {}
    for override in overrides:
        path, _, value = override.partition("=")
        _insert(tree, path.removeprefix("reward_servers.").split("."), value, override)
    tree |= {} if host is None else {"http_host": host}
    tree |= {} if port is None else {"http_port": port}
    return build(RewardServersSettings, tree, where="reward_servers")


def _insert(tree: dict[str, Any], keys: Sequence[str], text: str, override: str) -> None:
    import yaml  # types values as configuration files do

    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise InputError(f"{override}: '{key}' already has a value of its own")
    try:
        tree[keys[-1]] = yaml.safe_load(text)
    except yaml.YAMLError:
        raise InputError(f"{override}: the value is not YAML") from None
