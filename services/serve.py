"""`whetstone serve`: rewards and metrics over HTTP, alone, for other programs to use."""

import argparse
import socket
from collections.abc import Sequence
from typing import Any

from contracts.components import find
from contracts.errors import InputError, did_you_mean
from contracts.settings import build
from reward_servers.metrics import METRICS
from reward_servers.rewards import REWARDS
from reward_servers.server import check_parts
from reward_servers.settings import Part, RewardServersSettings, parts


def run(argv: Sequence[str]) -> int:
    """Serve until Ctrl-C or SIGTERM; the exit code.

    Raises:
        InputError: an unknown name or setting, or a port that is taken; before anything is started.
    """
    arguments = _parser().parse_args(argv)
    names = [word for word in arguments.words if "=" not in word]
    overrides = [word for word in arguments.words if "=" in word]
    rewards, metrics = chosen(names)
    settings = settings_from(overrides, arguments.host, arguments.port)
    settings.check_labels([part.label for part in (*rewards, *metrics)])
    check_parts("reward", rewards)
    check_parts("metric", metrics)
    _check_port(settings)

    print(f"Starting {len(rewards)} rewards and {len(metrics)} metrics …", flush=True)
    from reward_servers.app import serve_until_interrupted  # imports Ray: seconds

    welcome = _welcome(rewards, metrics, settings)
    serve_until_interrupted(rewards, metrics, settings, on_ready=lambda: print(welcome, flush=True))
    return 0


def chosen(names: Sequence[str]) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """The rewards and the metrics of these names (one name may be both); without names, all built-ins."""
    rewards, metrics = [], []
    for name in names or sorted(REWARDS.keys() | METRICS.keys()):
        is_reward, is_metric = name in REWARDS, name in METRICS
        if ":" in name:
            found = find("reward", name, {})
            is_metric = hasattr(found, "compute")
            is_reward = hasattr(found, "score") or not is_metric
        if not is_reward and not is_metric:
            near = did_you_mean(name, REWARDS.keys() | METRICS.keys())
            raise InputError(f"{name}: no such reward or metric{near}")
        rewards += [name] if is_reward else []
        metrics += [name] if is_metric else []
    return parts(rewards, "reward"), parts(metrics, "metric")


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
        prog="whetstone serve", description="Serve rewards and metrics over HTTP until Ctrl-C."
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


def _welcome(rewards: Sequence[Part], metrics: Sequence[Part], settings: RewardServersSettings) -> str:
    address = f"http://{settings.http_host}:{settings.http_port}"
    route, label = ("score", rewards[0].label) if rewards else ("metric", metrics[0].label)
    body = '{"samples": [{"text": "1 2 3", "references": ["1 2 4"]}]}'
    return (
        f"Serving at {address}\n"
        f"  rewards  {', '.join(part.label for part in rewards) or 'none'}\n"
        f"  metrics  {', '.join(part.label for part in metrics) or 'none'}\n"
        f"  schema   {address}/schema\n"
        f"Try:\n  curl {address}/{route}/{label} -d '{body}'\n"
        "Ctrl-C stops."
    )
