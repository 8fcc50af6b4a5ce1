r"""Answers as mathematics: only whole texts are parsed, and numbers are exact.

written | read as
--- | ---
`0.5`, `.5`, `0.\overline{3}`, `2\frac{1}{2}`, `3 1/2` | 1/2, 1/2, 1/3, 5/2, 7/2
`12 apples`, `12\text{ cm}`, `90^\circ`, `5\%` | 12, 12, 90, 5; units of measure are compared
`\frac12`, `\sqrt2`, `\sqrt(2)`, `\mathrm{e}` | \frac{1}{2}, \sqrt{2}, \sqrt{2}, e
`2.5e3`, `3 million` | 2500, 3000000
`1011_2` | 11

math-verify's own search takes any part of a text that it can parse: of `1 + \frac{1}{\mathrm{e}}` the 1.
"""

import re
from dataclasses import dataclass
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig

from reward_servers.answers.numerals import plain
from reward_servers.answers.readable import CLOSES, FUNCTIONS, OPENS, readable

NORMAL = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="none", equations=False
)
CONVERSION = ConversionConfig(interpret_as_mixed_fractions=False)
TEXT = re.compile(r"\\(?:text\w*|math(?:rm|bf|it|sf)|mbox|operatorname|rm)\s*\{([^{}]*)\}")
MATRIX = re.compile(
    r"[(\[]?\s*\\begin\{(?:array|matrix|[pbB]matrix|smallmatrix)\}(?:\{[^{}]*\})?(.*?)\\end\{\w+\}\s*[)\]]?",
    re.DOTALL,
)
ENVIRONMENT = re.compile(r"\\(?:begin|end)\{\w+\}")
WORDS = re.compile(r"(?<![\\a-zA-Z])[^\W\d_]{3,}")
ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)")
MOST_CHARACTERS = 2000  # limit of an answer; the parser needs seconds for more
SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12, "万": 4, "萬": 4, "亿": 8, "億": 8}
SCALE = re.compile(rf"(\d)\s*({'|'.join(SCALES)})\b|(\d)\s*([万亿億萬])", re.IGNORECASE)
EXPONENT = re.compile(r"(?<![\w}])(\d+(?:\.\d+)?)[eE]([-+]?\d{1,3})(?![\w])")
REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\{(\d+)\}")
DECIMAL = re.compile(r"(\d*)\.(\d+)")
MIXED = re.compile(r"(?<![\w.^}])(\d+)\s*(\\[dt]?frac\{\d+\}\{\d+\})|(?<![\w.^}])(\d+) (\d+/\d+)(?!\d)")
BASE = re.compile(r"(-?)([0-9A-Za-z]+)_\{?(?:\\text\{)?(\d+)\}?\}?")
NOTATIONS = tuple(  # in the order in which they are read
    (re.compile(pattern), written)
    for pattern, written in (
        (r"\A\s*(?:\\approx|\\sim(?:eq)?|≈|=)\s*(?=[-\d.\\(])", ""),
        (r"\\varnothing|∅|\\\{\s*\\\}", r"\\emptyset "),
        (r"\\mathbb\s*\{?R\}?|ℝ|\b[Aa]ll real numbers\b", r"(-\\infty, \\infty)"),
        (r"(?<=\d)\s*x\s*(?=10\s*\^)|(?<=\d) x (?=\d)", r"\\times "),
        (r"\.(\d*)\\(?:dot|bar)\{(\d+)\}", r".\1\\overline{\2}"),
        (r"\.\((\d+)\)", r".\\overline{\1}"),
        (r"\.(\d*?)(?:(\d)\2{2,}|(\d{2,6})\3+)(?:\.{3}|\\[lc]?dots(?![a-z]))", r".\1\\overline{\2\3}"),
        (r"\^\s*(-\d+)", r"^{\1}"),
        (r"\\\\\s*\[[^\[\]]*\]", r"\\\\"),  # the height of a matrix' row
    )
)
END = r"\s*[^\[\],;\s][^\[\],;]*"
INTERVAL = re.compile(rf"([\[\]])({END}[,;]{END})([\[\]])")  # in France ]0, 1[ is (0, 1)
UNIT = re.compile(
    r"(?<=[\d)}!])\s*(?:\^\{?\\circ\}?|\\degree)?\s*[-]?((?:[^\W\d_]+\.?(?:\^\{?-?\d\}?)?[\s*·/]*){1,6})\Z"
)
MEASURES = {
    name: unit
    for unit, names in {
        **{
            "mm": "mm",
            "cm": "cm centimeter centimetre",
            "dm": "dm",
            "m": "m meter metre",
            "km": "km kilometer kilometre",
        },
        **{"mg": "mg", "g": "g gram", "kg": "kg kilogram", "ml": "ml", "l": "l liter litre"},
        **{"s": "s sec second", "min": "min minute", "h": "h hr hour", "d": "day", "w": "week", "a": "year"},
        **{"in": "inch inche", "ft": "ft foot feet", "mi": "mile", "ct": "cent", "$": "dollar"},
        **{"km/h": "km/h", "m/s": "m/s", "mph": "mph"},
    }.items()
    for singular in names.split()
    for name in (singular, f"{singular}s")
}


@dataclass(frozen=True, slots=True)
class Value:
    """A parsed answer. Example: of "12.50 km" it is `Value(Rational(25, 2), "12.50", "km", False)`."""

    value: Any  # sympy's
    written: str  # text without its unit
    unit: str = ""  # the unit of measure
    is_percent: bool = False

    @property
    def decimals(self) -> int | None:
        """Return a decimal number's written decimals; None for another answer."""
        match = re.fullmatch(r"-?\d*\.(\d+)", self.written)
        return len(match[1]) if match else None


def parsed(text: str) -> Value | None:
    """Return an expression's value; None if it can't be read whole, or is too long for an answer."""
    written, unit, is_percent = without_unit(text)
    if not 0 < len(written) <= MOST_CHARACTERS or any(
        word not in FUNCTIONS for word in WORDS.findall(ENVIRONMENT.sub("", written))
    ):
        return None
    based = BASE.fullmatch(written.replace(" ", ""))
    if based is not None and (value := _in_base(based)) is not None:
        return Value(value, written, unit, is_percent)
    try:
        value = latex2sympy(
            normalize_latex(_exact(written), NORMAL),
            is_real=None,
            normalization_config=None,
            conversion_config=CONVERSION,
        )
    except Exception:  # the parser raises plain exceptions, and sympy any
        return None
    return Value(_with_imaginary(value), written, unit, is_percent)


def tidy(text: str) -> str:
    r"""Return a lone answer in plain form.

    >>> tidy(r"\text{12,345}"), tidy(r"$\dfrac12$"), tidy(r"4\sqrt(2)"), tidy("1 234"), tidy(r"\mathrm{e}^2")
    ('12345', '\\dfrac12', '4\\sqrt{2}', '1234', 'e^2')
    """
    text = plain(readable(TEXT.sub(_inner, text)), spaced=True).replace(OPENS, " ").replace(CLOSES, " ")
    for pattern, written in NOTATIONS:
        text = pattern.sub(written, text)
    text = INTERVAL.sub(lambda ends: "[("[ends[1] == "]"] + ends[2] + "])"[ends[3] == "["], text)
    text = MATRIX.sub(r"\\begin{pmatrix}\1\\end{pmatrix}", text)
    text = re.sub(r"\\sqrt\s*\(([^()]*)\)|(?<![\\a-zA-Z])sqrt\s*\(([^()]*)\)", _root, text)
    text = re.sub(r"(?<![\\a-zA-Z])(pi|sin|cos|tan|log|ln)(?![a-zA-Z])", r"\\\1 ", text)
    text = SCALE.sub(
        lambda match: f"{match[1] or match[3]}*10^{{{SCALES[(match[2] or match[4]).lower()]}}}", text
    )
    text = EXPONENT.sub(r"\1*10^{\2}", text)
    text = re.sub(r"\s+(?=\^)", "", text.replace("**", "^").replace(r"\%", "%"))
    text = re.sub(r"\s+", " ", text).strip(" \"'`").rstrip(".")
    if re.fullmatch(r"\{[^{}]*\}", text):
        return rf"\{{{text[1:-1]}\}}" if "," in text else text[1:-1].strip()
    return DEGREES.sub(r"(\1\\cdot\\frac{\\pi}{180})", text) if ANGLE.search(text) else text


def without_unit(text: str) -> tuple[str, str, bool]:
    r"""Return an answer without its unit, the unit of measure or "", and a flag for a percentage.

    >>> without_unit("12 apples"), without_unit("5 km"), without_unit("90^\\circ"), without_unit("50%")
    (('12', '', False), ('5', 'km', False), ('90', '', False), ('50', '', True))
    """
    text = text.strip()
    percent = re.sub(r"\s*(?:%|\b(?:per\s?cent(?:age)?|pct))\s*\Z", "", text)
    if percent != text:
        return percent.strip(), "", True
    match = UNIT.search(text)
    if (
        match
        and match.start()
        and (name := _unit(match[1], text[match.start() : match.start(1)])) is not None
    ):
        return text[: match.start()].strip(), name, False
    return re.sub(r"\s*\^\{?\\circ\}?\s*[CF]?\Z|\s*\\degree\Z", "", text).strip(), "", False


def _unit(words: str, gap: str) -> str | None:
    """Return the unit of measure, or "" for a counted thing; None if the letters are variables."""
    name = words.strip()
    key = re.sub(r"\s", "", name).rstrip(".").lower()
    if key in MEASURES and (len(key) > 1 or gap.strip() != gap):
        return MEASURES[key]
    longest = max((len(word) for word in re.findall(r"[^\W\d_]+", name)), default=0)
    is_variable = name.isascii() and longest < 2
    if is_variable or any(word in FUNCTIONS for word in re.findall(r"[a-z]+", key)):
        return None
    return ""


def _inner(match: re.Match[str]) -> str:
    return f" {match[1]} " if len(match[1].strip()) > 1 else match[1]


def _root(match: re.Match[str]) -> str:
    return rf"\sqrt{{{match[1] or match[2]}}}"


def _exact(written: str) -> str:
    """Return an expression with fractions for decimals and mixed numbers."""
    written = REPEATING.sub(_repeating, written)
    written = MIXED.sub(lambda match: f"({match[1] or match[3]}+{match[2] or _fraction(match[4])})", written)
    return DECIMAL.sub(
        lambda match: rf"(\frac{{{int((match[1] or '0') + match[2])}}}{{{10 ** len(match[2])}}})", written
    )


def _fraction(slashed: str) -> str:
    above, _, below = slashed.partition("/")
    return rf"\frac{{{above}}}{{{below}}}"


def _repeating(match: re.Match[str]) -> str:
    """Return 1.2\\overline{34} as (1234 - 12) / 990."""
    whole, fixed, again = match[1] or "0", match[2], match[3]
    above = int(whole + fixed + again) - int(whole + fixed)
    return rf"(\frac{{{above}}}{{{(10 ** len(again) - 1) * 10 ** len(fixed)}}})"


def _in_base(match: re.Match[str]) -> Any:
    try:
        value = int(match[2], int(match[3]))
    except ValueError:  # no digits of this base: a variable with an index
        return None
    return sympy.Integer(-value if match[1] else value)


def _with_imaginary(value: Any) -> Any:
    if not hasattr(value, "free_symbols"):
        return value
    named = {symbol: sympy.I for symbol in value.free_symbols if symbol.name == "i"}
    named |= {symbol: sympy.E for symbol in value.free_symbols if symbol.name == "e"}
    return value.subs(named) if named and hasattr(value, "subs") else value
