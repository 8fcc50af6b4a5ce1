"""Moses' detokenizer for English, which removes blanks between tokens.

ToTTo's evaluation script applies it to texts and tables before it counts words. Koehn et al., "Moses: Open
Source Toolkit for Statistical Machine Translation" (ACL 2007), `scripts/tokenizer/detokenizer.perl -l en`.
"""

import re
import unicodedata

MARKUP = re.compile(r"<.+>")
# Moses' escapes, in the order in which they are undone.
ESCAPES = (
    (" @-@ ", "-"), ("&bar;", "|"), ("&#124;", "|"), ("&lt;", "<"), ("&gt;", ">"), ("&bra;", "["),
    ("&ket;", "]"), ("&quot;", '"'), ("&apos;", "'"), ("&#91;", "["), ("&#93;", "]"), ("&amp;", "&"),
)  # fmt: skip
OPENING, CLOSING = frozenset("([{¿¡"), frozenset(",.?!:;\\%}])")
QUOTES, DOUBLE_QUOTES = frozenset("'\"„“`"), frozenset("„“”")
CJK = ((0x2E80, 0xA4CF), (0xA840, 0xA87F), (0xAC00, 0xD7AF), (0xF900, 0xFAFF), (0xFE30, 0xFE4F),
       (0xFF65, 0xFFDC), (0x1100, 0x11FF), (0x20000, 0x2FFFF))  # fmt: skip


def detokenized(line: str) -> str:
    """Join a line's tokens; keep a line that is a single tag.

    >>> detokenized("the man 's film ( 1990 ) , ' the jones ' house '")
    "the man's film (1990), 'the jones' house '"
    """
    if MARKUP.fullmatch(line) or not line.strip():
        return line
    padded = f" {line} "
    for escaped, plain in ESCAPES:
        padded = padded.replace(escaped, plain)
    tokens = padded.split(" ")
    pieces: list[str] = []
    gap, opened = " ", dict.fromkeys(QUOTES, False)
    for before, token in zip(["", *tokens], tokens, strict=False):
        left, right = _joins(before, token, opened)
        pieces.append(token if left else gap + token)
        gap = "" if right else " "
    joined = re.sub(" +", " ", "".join(pieces))
    return joined.removeprefix(" ").removesuffix(" ")


def _joins(before: str, token: str, opened: dict[str, bool]) -> tuple[bool, bool]:
    """Return two bools: whether no space goes before `token`, and whether none goes after it.

    `opened` holds the quotes so far.
    """
    if not token:
        return False, False
    letters = frozenset(token)
    if _is_cjk(token[0]):
        return before != "" and _is_cjk(before[-1]), False
    if all(letter in OPENING or unicodedata.category(letter) == "Sc" for letter in letters):
        return False, True
    if letters <= CLOSING:
        return True, False
    if token[0] == "'" and token[1:2].isalpha() and _ends_in_a_word(before):
        return True, False
    if not letters <= QUOTES:
        return False, False
    quote = '"' if letters <= DOUBLE_QUOTES else token
    if not opened.get(quote, False) and token == "'" and before.endswith("s"):
        return True, False  # the Jones' house
    opened[quote] = not opened.get(quote, False)
    return not opened[quote], opened[quote]


def _ends_in_a_word(token: str) -> bool:
    return token != "" and (token[-1].isalpha() or unicodedata.category(token[-1]) in ("Nd", "Nl"))


def _is_cjk(letter: str) -> bool:
    return any(first <= ord(letter) <= last for first, last in CJK)
