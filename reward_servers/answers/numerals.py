r"""Convert numbers in any notation to ASCII digits with a decimal point and without groups.

written | read as
--- | ---
`1,234,567.5`, `12,34,567` (India) | 1234567.5, 1234567
`1'234`, `1_234`, `1 234` with a fixed or thin space | 1234
`9{,}500`, `12\,345`, `12,\!345`, `12~345` | 9500, 12345
`1.234.567`, `1.234,5`, `3{,}5` | 1234567, 1234.5, 3.5
`1.234` | 1.234, because a single point is a decimal point
`1,2`, `1,23`, `1234,567` | lists: a comma groups three digits, or as in India
`１２`, `١٢`, `१२`, `−5`, `minus 5`, `½`, `²` | 12, 12, 12, -5, -5, 1/2, ^2
"""

import re
import unicodedata

# Characters of other keyboards; the fixed and the thin space group digits.
WIDE = str.maketrans(
    {
        **dict.fromkeys("\u2212\ufe63\uff0d\u2010\u2011", "-"),
        **dict.fromkeys("\u00a0\u202f\u2009\u2007", "\N{NO-BREAK SPACE}"),
        **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},  # Ｂ, （, ：
        "٫": ".",
        "٬": ",",
        "٪": "%",
        "’": "'",
        "π": r"\pi ",
        "∞": r"\infty ",
        "×": r"\times ",
        "·": r"\cdot ",
        "÷": "/",
        "≤": r"\le ",
        "≥": r"\ge ",
        "±": r"\pm ",
        "∪": r"\cup ",
        "∈": r"\in ",
        "°": r"^\circ ",
        "…": r"\ldots ",
        "\u200b": "",
        "\ufeff": "",
    }
)
RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-", strict=True))
SUPERSCRIPT = re.compile(f"[{''.join(RAISED)}]+")
ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|(\w+))")
# A sign in front of a number: not between two digits, where a dash is a range's.
DASH = re.compile(r"(?<![\w)\]])\s?[–—](?=\d)")

WESTERN = re.compile(r"(?<![\d.,])([1-9]\d{0,2}(?:,\d{3})+)(?!\d|,\d)")
INDIAN = re.compile(r"(?<![\d.,])([1-9]\d?(?:,\d{2})+,\d{3})(?!\d|,\d)")
LATEX_GROUP = r"(?:\{,\}|,\\!|\\[,:; !]|~|\{\\,\}|\xa0|'|_)"
LATEX = re.compile(rf"(?<![\d.,])([1-9]\d{{0,2}}(?:{LATEX_GROUP}\d{{3}})+)(?!\d)")
LATEX_SEPARATOR = re.compile(LATEX_GROUP)
SPACED = re.compile(r"(?<![\d.,])([1-9]\d{0,2}(?: \d{3})+)(?!\d| \d)")
DOTTED = re.compile(
    r"(?<![\d.,])(?:([1-9]\d{0,2}(?:\.\d{3})+),(\d+)|([1-9]\d{0,2}(?:\.\d{3}){2,}))(?!\d|[.,]\d)"
)
DECIMAL_COMMA = re.compile(r"(?<=\d)\{,\}(?=\d)")

SIGN_IN_WORDS = re.compile(r"(?<![\d)}] )\b(?:negative|minus)\s+(?=\$?\d)", re.IGNORECASE)
NUMBER = re.compile(
    r"(?<![A-Za-zÀ-ɏ0-9_.^])(?<!\^\{)[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,3}\b|\s*/\s*\d+(?!\.?\d))?%?"
)


def plain(text: str, spaced: bool = False) -> str:
    r"""Return a text with its numbers in one form.

    >>> [plain(text) for text in ("1,234.5", "12,34,567", r"9{,}500", r"12\,345", "1.234,5", "1,2", "١٢")]
    ['1234.5', '1234567', '9500', '12345', '1234.5', '1,2', '12']

    Args:
        spaced: whether a blank also groups digits, as in a lone answer.
    """
    text = SIGN_IN_WORDS.sub("-", text.translate(WIDE))
    text = DASH.sub(lambda dash: dash[0].replace("–", "-").replace("—", "-"), text)
    text = "".join(_digit(character) for character in text)
    text = SUPERSCRIPT.sub(lambda match: "^{" + "".join(RAISED[digit] for digit in match[0]) + "}", text)
    text = ROOT.sub(lambda match: rf"\sqrt{{{match[1] or match[2]}}}", text)
    for groups in (DOTTED, LATEX, INDIAN, WESTERN, *((SPACED,) if spaced else ())):
        text = groups.sub(_joined, text)
    return DECIMAL_COMMA.sub(".", text).replace("\xa0", " ")


def _joined(match: re.Match[str]) -> str:
    if match.re is DOTTED:
        return match[1].replace(".", "") + "." + match[2] if match[1] else match[3].replace(".", "")
    if match.re is LATEX:
        return LATEX_SEPARATOR.sub("", match[1])
    return re.sub(r"[, ]", "", match[1])


def _digit(character: str) -> str:
    """Convert any script's digit to ASCII, and a vulgar fraction to `1/2`; keep other characters."""
    if character.isascii() or character in RAISED:
        return character
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    if unicodedata.category(character) == "No" and "⁄" in (shown := unicodedata.normalize("NFKC", character)):
        return f" {shown.replace('⁄', '/')}"
    return character
