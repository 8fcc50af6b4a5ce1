"""`whetstone annotate`: score a data set's responses, or the model's own answers to its prompts."""

from collections.abc import Sequence

PASS_RATE = "--pass-rate"


def run(argv: Sequence[str]) -> int:
    """Annotate the remaining rows. Return the exit code."""
    asks_help = bool({"-h", "--help"} & set(argv))
    if PASS_RATE in argv:
        from services.studies.annotation.pass_rate_settings import pass_rate_settings, print_pass_rate_help

        if asks_help:
            return print_pass_rate_help()
        settings = pass_rate_settings([word for word in argv if word != PASS_RATE])
        from services.studies.annotation.pass_rates import filter_by_pass_rate

        filter_by_pass_rate(settings)
        return 0
    from services.studies.annotation.annotate import annotate
    from services.studies.annotation.settings import print_help, settings_from

    if asks_help:
        return print_help()
    annotate(settings_from(argv))
    return 0
