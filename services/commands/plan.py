"""`whetstone plan [OVERRIDES]`: print what a run would do, need and read. Nothing is started."""

from collections.abc import Sequence

from services.plan.plan import make_plan
from services.plan.screen import show
from services.terminal.doing import doing

HELP = """whetstone plan [KEY=VALUE …]: what whetstone train with the same words would do, need and read

Everything that train checks is checked, and nothing is started, loaded or written: exit code 0 means that
train would start, 2 that something is wrong, with the same message. Rewards and metrics of your own are
called with two texts, in a process that ends at once. whetstone train --help names the keys."""


def run(argv: Sequence[str]) -> int:
    """Print the plan. Return 0."""
    if {"-h", "--help"} & set(argv):
        print(HELP)
        return 0
    with doing("checking settings, model and data"):
        plan = make_plan(list(argv))
    show(plan)
    return 0
