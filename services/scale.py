"""`whetstone scale`: more or fewer replicas of one reward or metric, while a run or service goes on."""

import argparse
from collections.abc import Sequence

from services.run_model import at_least


def run(argv: Sequence[str]) -> int:
    """Scale and wait for it; the exit code.

    Raises:
        InputError: nothing runs here, or serves nothing under this label, or what does scales itself.
        DeadlineExceeded: the new replicas do not come up.
    """
    arguments = _parser().parse_args(argv)
    kind = "metric" if arguments.metric else "reward"
    from reward_servers.app import scale_what_runs  # imports Ray: seconds

    scale_what_runs(kind, arguments.label, arguments.replicas, arguments.timeout)
    print(f"{kind} {arguments.label}: {arguments.replicas} up")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone scale",
        description="Give a reward of a running `whetstone train` or `serve` more replicas, or fewer. "
        "Nothing else restarts. It is the one last started on this machine, or that of RAY_ADDRESS.",
    )
    parser.add_argument("label", metavar="LABEL", help="the reward's label: its name, unless it has one")
    parser.add_argument("replicas", metavar="N", type=at_least(1), help="how many there are to be")
    parser.add_argument("--metric", action="store_true", help="the metric of that label")
    parser.add_argument(
        "--timeout", metavar="S", type=at_least(1), default=300, help="seconds to wait for them (300)"
    )
    return parser
