"""Lines of a command about its own start on a slow machine: no test should depend on them."""

import re

LINE = re.compile(r"^.+( …| took \S+ .*|: \d+ s so far( \(.*\))?)\n", re.MULTILINE)


def without_progress(output: str) -> str:
    """
    >>> without_progress("loading Ray …\\nloading Ray took 1.2 s\\nwhetstone list: no such device\\n")
    'whetstone list: no such device\\n'
    """
    return LINE.sub("", output)
