"""Exact equality of two answers, by their forms, then by their numbers.

form | equal if
--- | ---
`(1, 2)`, `[1, 2)` | brackets, order and elements are equal
`{1, 2}`, `1, 2`, `1 and 2`, `\\pm 1` | elements are equal in any order
`(0, 1) \\cup (2, 3)`, `x < 3` | intervals are equal in any order
`x = 3`, `x \\in …` | right sides are equal; the variables, where both name one
`x + y = 3` | one side minus the other is the same, times a number
`1, 2, \\ldots, n` | elements are equal in order
`2:3`; `12:30` | shares are equal; times of day are equal texts
numbers | the exact difference is zero; beyond, 300 digits agree
decimals | the same, or six digits or more of the other value, rounded
expressions with variables | they agree in 60 digits at several points
words | letters agree
"""

import re
from collections.abc import Sequence
from itertools import pairwise

from reward_servers.verifiers.expressions import parsed, tidy
from reward_servers.verifiers.numbers import equal, same_value
from reward_servers.verifiers.relations import interval, relation, right_side, same_relation

ELLIPSIS = re.compile(r"\\(?:l|c|v|d)?dots(?:[bcim])?\b|\.\.\.+")
AND = re.compile(
    r"\\(?:text|mbox)\{\s*(?:,?\s*and|or)\s*\}|,?\s*\b(?:and|or|und|oder)\b\s*|\s*(?:;|、|和|或)\s*"
)
BRACKETS = {"(": (")", "]"), "[": (")", "]"), r"\{": (r"\}",), r"\langle": (r"\rangle",)}
CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?\s*(?:([ap])\.?\s?m\.?)?", re.IGNORECASE)
DATE = re.compile(r"\d{4}([-/.])\d{1,2}\1\d{1,2}|\d{1,2}([-/.])\d{1,2}\2\d{4}")
MODULUS = re.compile(r"\s*(?:\\pmod\s*\{?|\(\s*\\?b?mod\s*|\\[bp]?mod\s*)(\w+)\s*[})]?")
IN_BRACKETS = re.compile(r",(?=\d{3}(?!\d))")
DECIMAL_NUMBER, COMMA_NUMBER = re.compile(r"-?\d*\.\d+"), re.compile(r"-?\d+,\d+")


def same(right: str, answer: str) -> bool:
    r"""Return whether an answer equals the right one.

    >>> same("1/2", "0.5"), same("(1, 2)", "(2, 1)"), same("1, 2", "2, 1"), same("1 + 1/e", "1 - 1/e")
    (True, False, True, False)
    """
    right_tidy, answer_tidy = tidy(right), tidy(answer)
    if right_tidy == answer_tidy or not right_tidy or not answer_tidy:
        return right_tidy == answer_tidy
    if _same(right_tidy, answer_tidy):
        return True
    if DECIMAL_NUMBER.fullmatch(right_tidy) and COMMA_NUMBER.fullmatch(answer_tidy):
        return _same(right_tidy, answer_tidy.replace(",", "."))  # a decimal comma, where a decimal is right
    alternatives = set(re.split(r"\s+or\s+", answer_tidy))  # 3/4 or 0.75
    if answer_tidy not in alternatives:
        return all(_same(right_tidy, one) for one in alternatives)
    apart = [IN_BRACKETS.sub(", ", text) for text in (right, answer)]  # (100,200) is a pair, too
    return apart != [right, answer] and right_tidy[0] in "([\\" and _same(*map(tidy, apart))


def words_of(text: str) -> str:
    r"""Return the letters and digits of an answer in words.

    >>> words_of(r"\text{(C) Hepatitis B}."), words_of("Yes.")
    ('c hepatitis b', 'yes')
    """
    bare = re.sub(r"\\[a-zA-Z]+\s*|[{}$]", " ", text)
    return " ".join(re.findall(r"\w+", bare.casefold()))


def elements_of(text: str) -> list[str]:
    """Split a list at "and", "or" and commas outside brackets."""
    return [part.strip() for part in _split(AND.sub(", ", text), ",") if part.strip()]


def _same(right: str, answer: str) -> bool:
    if CLOCK.fullmatch(right) or CLOCK.fullmatch(answer):
        return _clock(right) == _clock(answer) is not None
    if DATE.fullmatch(right) or DATE.fullmatch(answer):
        return _numerals(right) == _numerals(answer)
    moduli = [MODULUS.search(text) for text in (right, answer)]
    if any(moduli):
        return _same_residue(right, answer, *moduli)
    one, other = relation(right), relation(answer)
    if one and other and same_relation(one, other):
        return True
    right_interval, answer_interval = interval(right), interval(answer)
    if right_interval or answer_interval:
        return _same_bare(right_interval or right_side(right)[1], answer_interval or right_side(answer)[1])
    (name, of_right), (another, of_answer) = right_side(right), right_side(answer)
    if name and another and name != another:
        return False
    return _same_bare(of_right, of_answer)


def _same_bare(right: str, answer: str) -> bool:
    unions = _split(right, r"\cup"), _split(answer, r"\cup")
    if max(map(len, unions)) > 1:
        return _in_any_order(*unions)
    brackets = _brackets(right), _brackets(answer)
    if any(brackets):
        return _same_bracketed(right, answer, *brackets)
    lists = _values(right), _values(answer)
    if max(map(len, lists)) > 1:
        is_sequence = any(ELLIPSIS.search(part) for part in (right, answer))
        return _in_order(*lists) if is_sequence else _in_any_order(*lists)
    if any(ELLIPSIS.search(part) for part in (right, answer)):
        return _bare(right) == _bare(answer)
    return _same_single(right, answer)


def _same_bracketed(right: str, answer: str, of_right: str, of_answer: str) -> bool:
    inside = [
        text[len(ends.split()[0]) : -len(ends.split()[1])] if ends else text
        for text, ends in ((right, of_right), (answer, of_answer))
    ]
    sets = [not ends or ends.startswith(r"\{") for ends in (of_right, of_answer)]
    if all(sets):
        return _in_any_order(*(_values(text) for text in inside))
    parts = [elements_of(text) for text in inside]
    if len(parts[0]) != len(parts[1]):
        return False
    if len(parts[0]) == 1:  # (45) is 45, and \{3\} is 3
        return _same(*(text.strip() for text in inside))
    if of_right and of_answer and (any(sets) or (of_right != of_answer and len(parts[0]) == 2)):
        return False  # an interval of other ends, or a tuple beside a set
    return _in_order(*parts)


def _same_single(right: str, answer: str) -> bool:
    if ":" in right and ":" in answer:
        return _same_shares(right.split(":"), answer.split(":"))
    if relation(right) or relation(answer):  # equal relations were found before
        return False
    one, other = parsed(right), parsed(answer)
    if one is None or other is None:
        as_text = _bare if re.search(r"[\d+=^<>\\*/-]", right) else words_of
        return as_text(right) == as_text(answer)
    return same_value(one, other)


def _same_shares(right: Sequence[str], answer: Sequence[str]) -> bool:
    values = [[parsed(share) for share in shares] for shares in (right, answer)]
    if len(right) != len(answer) or any(value is None for row in values for value in row):
        return [words_of(share) for share in right] == [words_of(share) for share in answer]
    pairs = [(one.value, other.value) for one, other in zip(*values, strict=True)]  # type: ignore[union-attr]
    return all(equal(one[0] * two[1], two[0] * one[1]) for one, two in pairwise(pairs))


def _values(text: str) -> list[str]:
    r"""Return the elements of a list, without `x =` before each; `\pm 2` is two."""
    elements = []
    for part in elements_of(text):
        part = right_side(part)[1]
        elements += [part.replace(r"\pm", sign) for sign in "+-"] if part.count(r"\pm") == 1 else [part]
    return [part.lstrip("+ ") for part in elements]


def _brackets(text: str) -> str:
    """Return the brackets around the whole text, such as "( )"; "" without."""
    for begin, ends in BRACKETS.items():
        for end in ends:
            if text.startswith(begin) and text.endswith(end) and _closes_at_the_end(text):
                return f"{begin} {end}"
    return ""


def _closes_at_the_end(text: str) -> bool:
    depth = 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and place < len(text) - 1 and character in ")]}":
            return False
    return depth == 0


def _in_order(right: Sequence[str], answer: Sequence[str]) -> bool:
    return len(right) == len(answer) and all(_same_or_dots(*pair) for pair in zip(right, answer, strict=True))


def _same_or_dots(right: str, answer: str) -> bool:
    dots = [ELLIPSIS.fullmatch(text.strip()) is not None for text in (right, answer)]
    return all(dots) or (not any(dots) and _same(right, answer))


def _in_any_order(right: Sequence[str], answer: Sequence[str]) -> bool:
    left = list(answer)
    if len(left) != len(right):
        return False
    for one in right:
        place = next((place for place, other in enumerate(left) if _same(one.strip(), other.strip())), None)
        if place is None:
            return False
        del left[place]
    return True


def _split(text: str, at: str) -> list[str]:
    """Split a text at marks outside brackets."""
    parts, depth, begin, place = [], 0, 0, 0
    while place < len(text):
        character = text[place]
        depth += (character in "([{") - (character in ")]}")
        if depth <= 0 and text.startswith(at, place):
            parts.append(text[begin:place])
            begin = place + len(at)
            place = begin
        else:
            place += 1
    return [*parts, text[begin:]]


def _bare(text: str) -> str:
    return ELLIPSIS.sub("…", re.sub(r"[\s{}]", "", text)).lower()


def _numerals(date: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", date)]


def _same_residue(right: str, answer: str, *moduli: re.Match[str] | None) -> bool:
    """Return whether two residues are equal; `9 \\pmod{11}` is 9, but not `9 \\pmod{7}`."""
    one, other = moduli
    if one and other and one[1] != other[1]:
        return False
    bare = [MODULUS.sub("", text).replace(r"\equiv", "=") for text in (right, answer)]
    return _same(bare[0], bare[1])


def _clock(text: str) -> tuple[int, int, int, str] | None:
    """Return hours, minutes, seconds, and "a" or "p" if the text names the half of the day.

    >>> _clock("03:30 PM"), _clock("15:30"), _clock("noon")
    ((3, 30, 0, 'p'), (15, 30, 0, ''), None)
    """
    match = CLOCK.fullmatch(text)
    if match is None:
        return None
    return int(match[1]), int(match[2]), int(match[3] or 0), (match[4] or "").lower()
