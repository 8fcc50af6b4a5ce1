"""`whetstone annotate`: score a data set's responses, to learn from them alone."""

from collections.abc import Sequence

from services.annotation.annotate import annotate
from services.annotation.settings import print_help, settings_from


def run(argv: Sequence[str]) -> int:
    """Annotate what is not annotated yet. Return the exit code."""
    if {"-h", "--help"} & set(argv):
        return print_help()
    annotate(settings_from(argv))
    return 0
