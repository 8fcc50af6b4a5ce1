"""Words of texts in any script.

    script                                       words are
    Latin, Cyrillic, Greek, Arabic, Hebrew,      runs of letters, digits and their marks: "नमस्ते", "it", "s"
    Devanagari, Hangul, …
    Chinese, Japanese, Thai, Lao, Khmer, …       single characters with their marks, as these scripts have no
                                                 blanks between words
    a text without letters and digits            its signs: emoji, punctuation

Signs beside letters are no words. Plain English has its usual words.
"""

import re
import unicodedata

import regex

from contracts.errors import InputError

UNSPACED = (
    *("Han", "Hiragana", "Katakana", "Bopomofo", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan", "Yi"),
    *("Javanese", "Balinese", "Tai_Le", "New_Tai_Lue", "Tai_Tham", "Tai_Viet"),
)
# A character of a script without blanks; ー is written in two of them, and 、。「」 stand beside them.
CHARACTER = "".join(rf"\p{{Script={name}}}" for name in UNSPACED) + "ー"
SIGN = r"\u3001-\u3004\u3008-\u3020\u3030\uFF01-\uFF0F\uFF1A-\uFF20\uFF3B-\uFF40\uFF5B-\uFF65"
APART = regex.compile(rf"(?=[{CHARACTER}{SIGN}])\X")
WORD = regex.compile(rf"(?=[{CHARACTER}])\X|(?:(?![{CHARACTER}])[\p{{L}}\p{{Nd}}][\p{{M}}\u200c\u200d]*)+")
GRAPHEME = regex.compile(r"\X")
ASCII_WORD = re.compile(r"[a-z0-9]+")


def spaced(text: str) -> str:
    """Put blanks around characters of scripts without blanks; keep other texts.

    >>> spaced("我们去公园，OK？").split(), spaced("We go. Идём.")
    (['我', '们', '去', '公', '园', '，', 'OK', '？'], 'We go. Идём.')
    """
    return text if text.isascii() else APART.sub(r" \g<0> ", text)


def words_of(text: str) -> list[str]:
    """Return the lower-case words of letters and digits.

    >>> words_of("It's 3.5 km!"), words_of("去公园 क्या है"), words_of("🎉!")
    (['it', 's', '3', '5', 'km'], ['去', '公', '园', 'क्या', 'है'], [])
    """
    if text.isascii():
        return ASCII_WORD.findall(text.lower())
    return WORD.findall(unicodedata.normalize("NFC", text).casefold())


def words_or_signs(text: str) -> list[str]:
    """Return the words, or the signs of a text without words, so that equal texts share something.

    >>> words_or_signs("Hm... 🎉"), words_or_signs("🎉 ...")
    (['hm'], ['🎉', '.', '.', '.'])
    """
    return words_of(text) or [sign for sign in GRAPHEME.findall(text) if not sign.isspace()]


def check_latin(text: str, reader: str, instead: str) -> None:
    """Refuse a text without a to z and digits, for libraries that see nothing else.

    Raises:
        InputError: the text has only other letters.
    """
    if WORD.search(text) and not ASCII_WORD.search(text.lower()):
        raise InputError(
            f"{reader} reads the letters a to z and digits alone, and the reference {text!r:.80} has none; "
            f"expected {instead}"
        )
