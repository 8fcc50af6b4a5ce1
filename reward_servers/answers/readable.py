"""Prepare a response for graders of answers: plain numbers, formulas between marks, no decoration."""

import re

from reward_servers.answers.numerals import NUMBER, plain

OPENS, CLOSES = "\ue000", "\ue001"  # marks of a formula, in place of its dollars
FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\\\[(.+?)\\\]|(?<!\\)\\\((.+?)\\\)|\$([^$\n]+)\$", re.DOTALL)
COMMAND = re.compile(
    r"\\(?:text\w*|math\w+|mbox|operatorname)\s*\{([^{}]*)\}|\\(?:begin|end)\{\w+\*?\}(?:\{[clr|]+\})?|\\[a-zA-Z]+"
)
WORD = re.compile(r"[^\W\d_]{2,}")
FUNCTIONS = frozenset(  # names of mathematics, without a backslash
    [
        *("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh"),
        *("log", "ln", "lg", "exp", "sqrt", "pi", "mod", "max", "min", "gcd", "lcm"),
    ]
)
MATHS = FUNCTIONS | {"and", "or"}
SPACES = re.compile(r"(?<!\\)\\[,:;! ](?![a-zA-Z])|\\q?quad\b|~")
LOOKS = re.compile(
    r"\\(?:left|right|displaystyle|bigg?|Bigg?|m?left|m?right)(?![a-zA-Z])|\*\*|`"
    r"|</?(?:strong|em|code|span|br)\s*/?>|<\|(?:begin|end)_of_solution\|>"
    r"|[\u2600-\u27bf\U0001f300-\U0001faff\ufe0f]"  # ✅ 🎉
)
BOLD = re.compile(r"<([bi])>([^<>]*)</\1>")
MONEY = re.compile(
    r"\\?(?:US|A|C|HK|NT|R)?\$|[€£¥₹₩₽₺元円]|\bRs\.?(?=\s*\d)"
    r"|\b(?:USD|EUR|GBP|INR|CNY|RMB)(?=\s*\d)|(?<=\d)\s*(?:USD|EUR|GBP|INR|CNY|RMB)\b"
)


def readable(text: str) -> str:
    r"""Return a text with plain numbers, without bold type, LaTeX's spaces and currency signs.

    >>> readable(r"**Answer:** \$9{,}500"), readable("so $x = 3$")
    ('Answer: 9500', 'so \ue000x = 3\ue001')
    """
    text = SPACES.sub(" ", plain(text.replace("\\\n", "\\ ")))
    text = FORMULA.sub(_formula, LOOKS.sub("", BOLD.sub(r"\2", text.replace("\\$", ""))))
    return MONEY.sub("", text)


def is_expression(text: str) -> bool:
    r"""Return whether a text is only mathematics.

    >>> [is_expression(text) for text in (r"\frac{1}{2} + \sin x", "x = 3", "3 apples", "", "12 and")]
    [True, True, False, False, True]
    """
    words = WORD.findall(COMMAND.sub(" ", text))
    return bool(re.search(r"[\w\\]", text)) and all(word.lower() in MATHS for word in words)


def is_amount(text: str) -> bool:
    """Return whether a text is a number with a counted thing or unit: "12 apples", "5 km/h", "90 degrees"."""
    return (
        re.fullmatch(
            rf"(?:[a-zA-Z]\s*=\s*)?{NUMBER.pattern}(?:[\s-]*[^\W\d_][^\W\d]*\.?[/^]?[{{}}\d]*){{1,5}}", text
        )
        is not None
    )


def undressed(text: str) -> str:
    bare = text.replace(OPENS, " ").replace(CLOSES, " ").strip(" \t\n*_\"'“”«»")
    return re.sub(r"(?<!\.)\.\Z", "", bare).strip(" \t\n*_\"'“”«»")


def _formula(match: re.Match[str]) -> str:
    inside = next(group for group in match.groups() if group is not None)
    if match[4] is not None and not is_expression(inside):  # two sums of money: $3 for you and $4
        return match[0].replace("$", "")
    return OPENS + inside.strip() + CLOSES


def blank(match: re.Match[str]) -> str:
    return " " * len(match[0])
