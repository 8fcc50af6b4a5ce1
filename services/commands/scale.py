"""`whetstone scale`: change the number of a reward's replicas or a run's rollout workers while it runs."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from contracts.errors import InputError
from services.runs.nearby import run_at
from services.terminal.doing import doing
from services.terminal.options import at_least

WORKERS = "workers="


def run(argv: Sequence[str]) -> int:
    """Scale, and wait for the result. Return the exit code.

    Raises:
        InputError: nothing runs here, no reward has this label, the reward scales by itself, or --metric
            was given for workers.
        RunError: some workers can't start.
        DeadlineExceeded: replicas or workers do not come up in time.
    """
    arguments = _parser().parse_args(argv)
    if arguments.number.startswith(WORKERS):
        if arguments.metric:
            raise InputError(
                f"--metric with {arguments.number}: --metric does not apply to workers; leave out --metric, "
                "or name a metric and its number of replicas, such as rouge 2 --metric"
            )
        _scale_workers(Path(arguments.what), _count(arguments.number), arguments.timeout)
    else:
        kind = "metric" if arguments.metric else "reward"
        _scale_replicas(kind, arguments.what, _count(arguments.number), arguments.timeout)
    return 0


def _scale_workers(folder: Path, num_workers: int, timeout_s: float) -> None:
    from services.training.loop.scaling import ask

    ask(run_at(folder).path.absolute(), num_workers, timeout_s)
    print(f"{folder}: {num_workers} rollout workers up")


def _scale_replicas(kind: str, label: str, replicas: int, timeout_s: float) -> None:
    with doing("loading Ray"):
        from reward_servers.serving.app import scale_what_runs
        from services.cluster.tamed_ray import tamed

    with tamed(), doing(f"scaling {kind} {label}"):
        scale_what_runs(kind, label, replicas, timeout_s, _warn_if_open)
    print(f"{kind} {label}: {replicas} up")


def _warn_if_open(address: str) -> None:
    from services.cluster.open_cluster import warning_if_open

    if warning := warning_if_open(address):
        print(f"warning: {warning}", file=sys.stderr)


def _number(text: str) -> str:
    """Parse `3` or `workers=3` for argparse."""
    try:
        at_least(1)(text.removeprefix(WORKERS))
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text}; expected a number, or workers=N") from None
    return text


def _count(number: str) -> int:
    return int(number.removeprefix(WORKERS))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone scale",
        description="Give a reward of a running `whetstone train` or `serve` more replicas, or fewer: the "
        "one last started on this machine, or that of RAY_ADDRESS. Or, with workers=N, give the run in "
        "this folder more rollout workers, or fewer. Nothing else restarts. A run's plain reward has "
        "replicas only with reward_servers.LABEL.replicas=N.",
    )
    parser.add_argument(
        "what",
        metavar="LABEL|RUN",
        help="the reward's label (its name, unless it has one), or a run's folder",
    )
    parser.add_argument(
        "number", metavar="N|workers=N", type=_number, help="the new number of replicas or workers"
    )
    parser.add_argument("--metric", action="store_true", help="the metric of that label")
    parser.add_argument(
        "--timeout", metavar="S", type=at_least(1), default=600, help="seconds to wait for them (600)"
    )
    return parser
