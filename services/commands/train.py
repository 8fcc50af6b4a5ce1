"""`whetstone train [OVERRIDES]`: train one model, or with -m a sweep; --timeline keeps a trace."""

from collections.abc import Sequence

from contracts.errors import InputError
from contracts.processes import timeline
from services.terminal.doing import doing

TIMELINE = "--timeline"


def run(argv: Sequence[str]) -> int:
    """Train. Return the exit code."""
    if TIMELINE in argv:
        timeline.switch_on()
    with doing("loading the settings"):
        from services.config.compose import print_help, run_settings

    arguments = [argument for argument in argv if argument != TIMELINE]
    if {"-h", "--help"} & set(arguments):
        return print_help(arguments)
    if {"-m", "--multirun"} & set(arguments):
        from services.training.train.sweep import sweep

        if timeline.is_on():
            raise InputError(
                f"train -m: a sweep takes no {TIMELINE}; expected it with a single run, without -m"
            )
        return sweep([argument for argument in arguments if argument not in ("-m", "--multirun")])
    with doing("reading the configuration"):
        settings = run_settings(arguments)
    from services.training.train.train import train

    return train(settings)
