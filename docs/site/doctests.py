"""Extension of Griffe: turn doctests into blocks of code, because Markdown reads `>>>` as a quotation."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n.*\S.*)*", re.MULTILINE)  # up to a blank line


class Doctests(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Put doctests between fences, and a blank line before them.

    >>> fenced("Add.\\n>>> 1 + 1\\n2").splitlines()
    ['Add.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    return EXAMPLE.sub(lambda example: f"\n{example[1]}```pycon\n{example[0]}\n{example[1]}```\n", text)
