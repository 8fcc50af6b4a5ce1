"""Read a text's choice among letters or words.

text | chosen of A, B, C, D
--- | ---
`\\boxed{\\text{(C) Hepatitis B}}` | C: the beginning of the last box
`The answer is B, not A.`, `**Answer: B**`, `答案是B。` | B: the choice directly after the last such phrase
`B is the correct answer.`, `The correct option is B.`, `I choose B.`, `选B` | B
`B`, `b`, `(B)`, `B. Paris`, `**B**` | B: the beginning of the text, or alone on its last line
`It is B. A is wrong.` | B: the only choice that the text does not reject
`A or B`, `The answer is A or B.` | none
"""

import re
from collections.abc import Sequence

from reward_servers.answers.boxes import boxed
from reward_servers.answers.readable import CLOSES, COMMAND, OPENS, readable
from reward_servers.answers.statements import statements

LATIN = "0-9A-Za-zÀ-ɏ_"  # a letter of another script may stand beside a choice: 选B
DRESS = r"[\s*_\"'“”«»$({\[]{0,20}"  # bounded, since two of them stand side by side
BEFORE = (
    r"(?:(?:the\s+)?(?:correct\s+|right\s+|best\s+)?(?:option|choice|answer|letter)\s*:?\s*|选项|选择|选)?"
)
VERBS = (
    r"\b(?:i(?:'ll| will| would)? (?:choose|pick|select|go with)|it is|it's|it must be"
    r"|so|thus|therefore|hence)\s*,?\s+"
)
RIGHT = r"(?:correct|right|best)\s+(?:option|choice|answer|one|statement)\s*(?:is|:|would be|must be)\s*"
WRONG = r"[\s*_).]*(?:(?:is|are|was)\s+(?:also\s+)?(?:wrong|false|incorrect|not)|:\s*(?:wrong|false|no)\b)"
NOT = r"(?:\bnot|n['’]t|\bneither|\bnor)\s+(?:be\s+)?"

# "A dog", "I think": words, not choices.
ARTICLE = re.compile(
    r"\bA(?=\s+[a-z])(?!\s+(?:and|or|is|was|are|because|since|as|fails?)\b)"
    r"|\bI(?=\s+[a-z])(?!\s+(?:and|or|is|was|because|since|as|fails?)\b)"
)


def choice_of(text: str, choices: Sequence[str]) -> str | None:
    """Return the choice in a part of a response; None for no choice or two at a time.

    >>> [choice_of(text, "ABC") for text in ("Answer: (B).", "A? No. The answer is C", "**A**", "ABC", "")]
    ['B', 'C', 'A', None, None]
    """
    one = _pattern(choices)
    inside = boxed(text)
    if inside is not None:
        return _begins(readable(COMMAND.sub(r" \1 ", inside)), one, choices)
    prose = readable(COMMAND.sub(r" \1 ", text)).replace(OPENS, " ").replace(CLOSES, " ").strip()
    for stated in statements(prose):
        if chosen := _begins(stated, one, choices):
            return chosen
        if re.match(rf"{DRESS}{BEFORE}{DRESS}{one}", stated):
            return None  # two at a time
    for pattern in _forms(one):
        if matches := list(re.finditer(pattern, prose)):
            return _named(next(group for group in matches[-1].groups() if group), choices)
    left = re.sub(rf"(?i:{NOT}{BEFORE}){DRESS}{one}|{one}(?i:{WRONG})", " ", prose)
    last = left.rpartition("\n")[2]
    return _heads(left, one, choices) or _alone(last, one, choices) or _only(left, one, choices)


def _pattern(choices: Sequence[str]) -> str:
    """Return a pattern of one choice; a lower-case letter counts in brackets or alone."""
    named = "|".join(map(re.escape, sorted(choices, key=len, reverse=True)))
    words = "|".join(re.escape(choice) for choice in choices if len(choice) > 1)
    loose = rf"|(?i:{words})" if words else ""
    lower = "".join(choice.lower() for choice in choices if len(choice) == 1 and choice.isalpha())
    behind = r"(?:\A|(?<=: )|(?<=is )|(?<=option )|(?<=choice ))"
    small = rf"|(?<=\()[{lower}](?=\))|{behind}[{lower}](?=\W*\Z|[.):]\s)" if lower else ""
    return rf"(?<![{LATIN}])((?:{named}){loose}{small})(?![{LATIN}]|['’][a-z])"


def _forms(one: str) -> tuple[str, ...]:
    """Return patterns of choosing sentences, the plainest first."""
    dressed = rf"{DRESS}(?i:{BEFORE}){DRESS}{one}"
    return (
        rf"{one}\W{{0,4}}\s*(?:is|was)\s+(?:the\s+|clearly\s+|indeed\s+)*(?:correct|right|best|answer)",
        rf"(?i:{RIGHT}){dressed}",
        rf"(?:选|选择|选项是|故选){DRESS}{one}",
        rf"(?i:{VERBS}){dressed}(?!{WRONG})",
    )


def _begins(prose: str, one: str, choices: Sequence[str]) -> str | None:
    """Return the choice at a text's beginning, unless another one stands beside it."""
    match = re.match(rf"{DRESS}(?i:{BEFORE}){DRESS}{one}", prose)
    if match is None:
        return None
    rest = prose[match.end() :]
    beside = re.match(
        rf"\W{{0,3}}\s*(?:or|/|&|或)\s*\W{{0,3}}{one}|\W{{0,3}}\s*(?:and|,)\s*\W{{0,3}}{one}\W*\Z", rest
    )
    return None if beside else _named(next(group for group in match.groups() if group), choices)


def _heads(prose: str, one: str, choices: Sequence[str]) -> str | None:
    """Return the choice that heads a text, unless other lines begin with other choices, as in a list."""
    heading = rf"{DRESS}(?i:{BEFORE}){DRESS}{one}(?=\s*(?:[.):,*]|\n\s*\n|\Z))"
    begun = {group for line in re.finditer(rf"^{heading}", prose, re.M) for group in line.groups() if group}
    return _begins(prose, rf"{one}(?=\s*(?:[.):,*]|\n\s*\n|\Z))", choices) if len(begun) == 1 else None


def _alone(line: str, one: str, choices: Sequence[str]) -> str | None:
    match = re.fullmatch(rf"{DRESS}{one}[\W_]*", line)
    return _named(next(group for group in match.groups() if group), choices) if match else None


def _only(prose: str, one: str, choices: Sequence[str]) -> str | None:
    """Return the only choice in a text; "A dog" is no choice."""
    named = {
        group for match in re.finditer(one, ARTICLE.sub(" ", prose)) for group in match.groups() if group
    }
    return _named(named.pop(), choices) if len(named) == 1 else None


def _named(written: str, choices: Sequence[str]) -> str:
    return next(choice for choice in choices if choice.casefold() == written.casefold())
