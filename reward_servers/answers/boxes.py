"""Boxes of LaTeX around answers: `\\boxed{…}`, `\\fbox{…}`, `\\boxed 2`."""

import re
from itertools import pairwise

from reward_servers.answers.readable import COMMAND, WORD

BOX = re.compile(r"\\f?box(?:ed)?(?![a-zA-Z])\s*")
BARE_BOX = re.compile(r"\\[dt]?frac(?=\{)|\\(?:text|sqrt)(?=\{)|\$?-?[\w.]+")
CORRECTS = re.compile(
    r"\b(?:no|not|wait|actually|rather|instead|sorry|hmm|correction|but|so|then|thus|hence)\b", re.IGNORECASE
)
JOINS = re.compile(r"[,;、&]|\b(?:and|or|und|oder|et|ou|y|o)\b|[和或与及]", re.IGNORECASE)


def boxes(text: str) -> list[tuple[int, int, str]]:
    r"""Return the beginning, end and content of each closed box without an inner box.

    >>> [inside for *_, inside in boxes(r"\boxed{1}, \fbox{2}, \boxed\frac{1}{2}, \boxed 3. \boxed{4")]
    ['1', '2', '\\frac{1}{2}', '3']
    """
    ends, closed = _closing_braces(text), []
    for box in BOX.finditer(text):
        start = box.end()
        if text[start : start + 1] == "{":
            end = ends.get(start)
            inside = None if end is None else text[start + 1 : end - 1]
        else:
            end = _end_of_bare(text, start, ends)
            inside = None if end is None else text[start:end].rstrip(".")
        if end is not None and inside is not None and not BOX.search(inside):
            closed.append((box.start(), end, inside.strip()))
    return closed


def boxed(text: str, count: int = 1) -> str | None:
    r"""Return the content of the last box and of boxes in the same list; None without a box.

    >>> boxed(r"\boxed{3}, no, \boxed{4}"), boxed(r"\boxed{1} papers and \boxed{2} bins"), boxed("3")
    ('4', '1, 2', None)

    Args:
        count: number of expected answers; as many boxes belong together.
    """
    closed = boxes(text)
    if not closed:
        return None
    different = list(dict.fromkeys(inside for *_, inside in closed))
    if len(different) == count:
        return ", ".join(different)
    joined = [closed[-1][2]]
    for (start, *_), (_, end, inside) in pairwise(reversed(closed)):
        if not joins(text[end:start]):
            break
        joined.insert(0, inside)
    return ", ".join(dict.fromkeys(joined))


def joins(between: str) -> bool:
    """Return whether the text between two answers joins them to a list."""
    num_words = len(WORD.findall(COMMAND.sub(r" \1 ", between)))
    if num_words > 4 or "." in between or "\n\n" in between:
        return False
    return not CORRECTS.search(between) and bool(JOINS.search(between))


def _closing_braces(text: str) -> dict[int, int]:
    """Map the place of each opening brace to the place after its closing brace."""
    opened, ends = [], {}
    for brace in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        if brace[0] == "{":
            opened.append(brace.start())
        elif brace[0] == "}" and opened:
            ends[opened.pop()] = brace.end()
    return ends


def _end_of_bare(text: str, start: int, ends: dict[int, int]) -> int | None:
    """Return the end of the content of a box without braces: `\\boxed 2`, `\\boxed\\frac{1}{2}`."""
    begins = BARE_BOX.match(text, start)
    if begins is None:
        return None
    end = begins.end()
    while begins[0].startswith("\\") and end in ends:
        end = ends[end]
    return end
