"""`whetstone serve`: rewards and metrics over HTTP, alone, for other programs to use."""

import argparse
import contextlib
import os
import socket
from collections.abc import Sequence
from typing import Any

import yaml

from contracts.access import TOKEN, check_exposure, token_of
from contracts.components import find
from contracts.errors import InputError, did_you_mean
from contracts.settings import build
from reward_servers.metrics import METRICS
from reward_servers.rewards import REWARDS
from reward_servers.server import check_at_hand, check_parts, is_ready
from reward_servers.settings import Part, RewardServersSettings, parts
from services.doing import doing, to_stderr
from services.interrupts import Interrupted, StopRequest


def run(argv: Sequence[str]) -> int:
    """Serve until Ctrl-C or SIGTERM; the exit code.

    Raises:
        InputError: an unknown name or setting, or a port that is taken; before anything is started.
    """
    arguments = _parser().parse_args(argv)
    names = [word for word in arguments.words if word.startswith("{") or "=" not in word]
    overrides = [word for word in arguments.words if word not in names]
    rewards, metrics = chosen(names)
    settings = settings_from(overrides, arguments.host, arguments.port)
    settings.check_labels([part.label for part in (*rewards, *metrics)])
    token = token_of()
    check_exposure(settings.http_host, token)
    for kind, found in (("reward", rewards), ("metric", metrics)):
        check_parts(kind, found)
        check_at_hand(kind, found)
    _check_port(settings)

    print(f"Starting {len(rewards)} rewards and {len(metrics)} metrics …", flush=True)
    welcome = _welcome(rewards, metrics, settings, token is not None)
    with doing("loading Ray"):
        from reward_servers.app import deploy, shutdown
        from services.ray_cluster import cluster

    stop = StopRequest()
    with contextlib.ExitStack() as ends:
        with doing("starting Ray"):
            ends.enter_context(cluster(to_stderr, log_to_driver=True))
        if "RAY_ADDRESS" in os.environ:
            ends.callback(shutdown)
        with doing("starting the servers"):
            for warning in deploy(rewards, metrics, settings, http=True, token=token):
                to_stderr(f"warning: {warning}")
        ends.callback(stop.restore)
        stop.hold()
        print(welcome, flush=True)
        with contextlib.suppress(Interrupted):  # the way to end it
            stop.wait()
    return 0


def chosen(words: Sequence[str]) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """The rewards and metrics of these names, or mappings with a name and options; what is both is both.

    Without any: the built-ins that need no option, no model and nothing that is not there.
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
            found = find("reward", name, {})
            is_metric = hasattr(found, "compute")
            is_reward = hasattr(found, "score") or not is_metric
        if not is_reward and not is_metric:
            near = did_you_mean(name, REWARDS.keys() | METRICS.keys())
            raise InputError(f"{name}: no such reward or metric{near}")
        rewards += [entry] if is_reward else []
        metrics += [entry] if is_metric else []
    return parts(rewards, "reward"), parts(metrics, "metric")


def _mapping(word: str) -> dict[str, Any]:
    try:
        found = yaml.safe_load(word)
    except yaml.YAMLError as error:
        raise InputError(f"{word}: not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(found, dict) or "name" not in found:
        raise InputError(
            f"{word}: expected a mapping with a name, such as '{{name: learned_reward, model: FOLDER}}'"
        )
    return found


def settings_from(overrides: Sequence[str], host: str | None, port: int | None) -> RewardServersSettings:
    """Settings from `rouge.replicas=2` or `reward_servers.rouge.replicas=2`; host and port win."""
    tree: dict[str, Any] = {}
    for override in overrides:
        path, _, value = override.partition("=")
        _insert(tree, path.removeprefix("reward_servers.").split("."), value, override)
    tree |= {} if host is None else {"http_host": host}
    tree |= {} if port is None else {"http_port": port}
    return build(RewardServersSettings, tree, where="reward_servers")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone serve",
        description="Serve rewards and metrics over HTTP until Ctrl-C. WHETSTONE_TOKEN (or the file that "
        "WHETSTONE_TOKEN_FILE names) is what callers have to know; without one only this machine is served.",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="NAME | KEY=VALUE",
        help="rewards and metrics (default: all built-in ones) or package.module:Class; "
        "settings such as rouge.replicas=2 or default.timeout_s=30",
    )
    parser.add_argument("--host", help="the address to listen on (default: 127.0.0.1, this machine only)")
    parser.add_argument("--port", type=int, help="(default: 8000)")
    return parser


def _insert(tree: dict[str, Any], keys: Sequence[str], text: str, override: str) -> None:
    import yaml  # values are typed as in the configuration files

    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise InputError(f"{override}: '{key}' already has a value of its own")
    try:
        tree[keys[-1]] = yaml.safe_load(text)
    except yaml.YAMLError:
        raise InputError(f"{override}: the value is no YAML") from None


def _check_port(settings: RewardServersSettings) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.http_host, settings.http_port))
        except OSError as error:
            address = f"{settings.http_host}:{settings.http_port}"
            raise InputError(
                f"can't listen on {address}: {error.strerror}; choose another --host or --port"
            ) from None


def _welcome(
    rewards: Sequence[Part], metrics: Sequence[Part], settings: RewardServersSettings, asks: bool
) -> str:
    address = f"http://{settings.http_host}:{settings.http_port}"
    route, label = ("score", rewards[0].label) if rewards else ("metric", metrics[0].label)
    header = f' -H "Authorization: Bearer ${TOKEN}"' if asks else ""
    body = '{"samples": [{"text": "1 2 3", "references": ["1 2 4"]}]}'
    return (
        f"Serving at {address}\n"
        f"  rewards  {', '.join(part.label for part in rewards) or 'none'}\n"
        f"  metrics  {', '.join(part.label for part in metrics) or 'none'}\n"
        f"  schema   {address}/schema\n"
        f"Try:\n  curl{header} {address}/{route}/{label} -d '{body}'\n"
        "Ctrl-C stops."
    )
