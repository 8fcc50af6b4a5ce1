"""Compare a text's mathematical answer with the right ones, by math-verify."""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy import nsimplify, simplify

BOXED = re.compile(r"\\f?boxed\s*\{")
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,3}\b|\s*/\s*\d+)?%?")
HASHES = re.compile(r"####\s*\$?\s*([-+]?\d[\d,]*(?:\.\d+)?)")
MINUS = "\N{MINUS SIGN}"  # as models write it outside of formulas
GSM8K = "####"  # what comes before the answer in its solutions
TAIL = 300  # characters in which verl looks for it
# The limits of the process hold; math-verify's own are alarms, which can't interrupt a power of integers.
UNLIMITED: dict[str, Any] = {"parsing_timeout": None}


def perform(payload: Mapping[str, Any]) -> Any:
    """Return whether the text's answer is right; with `find`, the answer as a text, or None."""
    where, choices = payload["extract"], payload["choices"]
    found = answer_of(payload["text"].replace(MINUS, "-"), where, choices)
    if payload.get("find"):
        return _shown(found)
    rights = [right_answer(each.replace(MINUS, "-")) for each in payload["right"]]
    return any(_same(right, found, where, choices) for right in rights)


def answer_of(text: str, where: str, choices: Sequence[str]) -> list[Any]:
    """Return the answer as math-verify parses it; [] if there is none."""
    match where:
        case "boxed":
            inside = last_boxed(text)
            return [] if inside is None else _expression(inside)
        case "last_number":
            numbers = NUMBER.findall(text)
            return _expression(_digits(numbers[-1])) if numbers else []
        case "hashes":
            behind = behind_hashes(text)
            return [] if behind is None else _expression(_digits(behind))
        case "choice":
            chosen = choice_of(text, choices)
            return [] if chosen is None else [chosen]
    found = list(parse(text, [LatexExtractionConfig(), ExprExtractionConfig()], **UNLIMITED))
    inside = last_boxed(text)
    if inside is not None and all(isinstance(each, str) for each in found):  # such as \boxed{50\%}
        return _expression(inside)
    return found


def choice_of(text: str, choices: Sequence[str]) -> str | None:
    """Return the last choice in the box, else the last one after the last "answer", else the text's last.

    >>> [choice_of(text, "ABC") for text in ("Answer: (B).", "A? No. The answer is C", "**A**", "ABC", "")]
    ['B', 'C', 'A', None, None]
    """
    one = re.compile(rf"(?<![\w'])({'|'.join(map(re.escape, choices))})(?![\w'])")
    inside = last_boxed(text)
    if inside is not None:
        found = one.findall(_bare(inside))
        return found[-1] if found else None
    after = re.split(r"(?i:answer)", text)
    found = (one.findall(after[-1]) if len(after) > 1 else []) or one.findall(text)
    return str(found[-1]) if found else None


def behind_hashes(text: str) -> str | None:
    """Return the last number behind `####` among the text's last characters, or None.

    verl's strict rule takes no dollar sign, and wants a blank.

    >>> behind_hashes("3 + 4 = 7\\n#### 7"), behind_hashes("It is #### $1,250."), behind_hashes("It is 7")
    ('7', '1,250', None)
    """
    found = HASHES.findall(text[-TAIL:])
    return found[-1] if found else None


def right_answer(reference: str) -> str:
    """Return the answer in a reference: after GSM8K's mark, in the last box, or all of it.

    >>> right_answer("3 + 4 = 7\\n#### 7"), right_answer(r"so \\boxed{\\frac{1}{2}}."), right_answer("B")
    ('7', '\\\\frac{1}{2}', 'B')
    """
    if GSM8K in reference:
        return reference.rpartition(GSM8K)[2].strip()
    inside = last_boxed(reference)
    return reference.strip() if inside is None else inside


def last_boxed(text: str) -> str | None:
    """Return what the last closed box holds; None without one.

    >>> last_boxed(r"\\boxed{1}, or \\boxed{\\frac{1}{2}}."), last_boxed(r"\\boxed{1")
    ('\\\\frac{1}{2}', None)
    """
    for begin in reversed(list(BOXED.finditer(text))):
        depth, start = 1, begin.end()
        for place in range(start, len(text)):
            depth += (text[place] == "{") - (text[place] == "}")
            if depth == 0:
                return text[start:place].strip()
    return None


def _same(right: str, found: list[Any], where: str, choices: Sequence[str]) -> bool:
    if not found:
        return False
    if where == "choice":
        return bool(found[0] == _bare(right))
    gold = _expression(right)
    if gold:
        return bool(verify(gold, found, timeout_seconds=None))
    return _bare(right) == _bare(str(found[-1]))


def _expression(text: str) -> list[Any]:
    """Parse an answer that stands alone; a sum of money is its number."""
    bare = text.strip().strip("$").replace("\\$", "").replace("$", "").strip()
    return list(parse(f"${bare}$", [LatexExtractionConfig(), ExprExtractionConfig()], **UNLIMITED))


def _digits(number: str) -> str:
    """Return a number without commas, exponent and percent sign.

    >>> _digits("1,234.5"), _digits("2.5e3"), _digits("50%"), _digits("3 / 4")
    ('1234.5', '2500', '50', '3 / 4')
    """
    bare = number.replace(",", "").rstrip("%")
    return format(Decimal(bare), "f") if "e" in bare.lower() else bare


def _bare(text: str) -> str:
    r"""Return a choice or a word without its dress: "(B).", "\text{B}" and "B" are "B"."""
    return re.sub(r"\\(?:text|mathrm|textbf|mathbf)\s*\{([^}]*)\}", r"\1", text).strip(" ().:*$\n")


def _shown(found: list[Any]) -> str | None:
    """Return a text that equal answers share: 0.5 and 1/2 are "1/2"."""
    if not found or isinstance(found[0], str):
        return found[0] if found else None
    value = simplify(found[0])
    return str(nsimplify(value, rational=True) if getattr(value, "is_number", False) else value)


def prepare() -> None:
    """Build what ANTLR and sympy build at first use."""
    for example in (r"\boxed{\frac{1}{2} + \sqrt{3} x^{2}}", "The answer is 1,234.5"):
        verify(_expression("1/2"), answer_of(example, "any", ()), timeout_seconds=None)
