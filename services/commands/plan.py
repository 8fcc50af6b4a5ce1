"""`whetstone plan [--json] [OVERRIDES]`: print a run's plan, needs and data without starting it."""

from collections.abc import Sequence

from services.terminal.doing import doing
from services.terminal.visible import visible_json
from services.training.plan.as_json import as_json
from services.training.plan.plan import make_plan
from services.training.plan.screen import show

HELP = """whetstone plan [--json] [KEY=VALUE …]: what whetstone train with the same words would do, and read

Everything that train checks is checked, and nothing is started, loaded or written: exit code 0 means that
train would start, 2 that something is wrong, with the same message. Rewards and metrics of your own are
called with two texts, in a process that ends at once. whetstone train --help names the keys. --json prints
all of it as one JSON object."""


def run(argv: Sequence[str]) -> int:
    """Print the plan. Return 0."""
    if {"-h", "--help"} & set(argv):
        print(HELP)
        return 0
    overrides = [word for word in argv if word != "--json"]
    with doing("checking settings, model and data"):
        plan = make_plan(overrides)
    if len(overrides) < len(argv):
        print(visible_json(as_json(plan)))
    else:
        show(plan)
    return 0
