"""`whetstone train [OVERRIDES]`: train one model, or with -m a sweep."""

from collections.abc import Sequence

from services.terminal.doing import doing


def run(argv: Sequence[str]) -> int:
    """Train. Return the exit code."""
    with doing("loading the settings"):
        from services.config.compose import print_help, run_settings

    arguments = list(argv)
    if {"-h", "--help"} & set(arguments):
        return print_help(arguments)
    if {"-m", "--multirun"} & set(arguments):
        from services.train.sweep import sweep

        return sweep([argument for argument in arguments if argument not in ("-m", "--multirun")])
    with doing("reading the configuration"):
        settings = run_settings(arguments)
    from services.train.train import train

    return train(settings)
