"""Texts into words and words into stems, each remembered: what the lexical rewards share."""

import re
from functools import cache, lru_cache
from typing import Any

# Only where a full stop stands inside the text do its sentences matter to the words.
INNER_STOP = re.compile(r"\.[\"'”’)\]]*\s+\S")
# Where NLTK's rules look further than to the next blank: other blanks, closing marks alone after a stop.
ENTANGLED = re.compile(r"[^\S ]|(?:^| )[\])}>\"'»”’]+ *$")


def words(text: str) -> list[str]:
    """What NLTK's `word_tokenize` gives, punctuation as words of its own, without data from elsewhere.

    The words of a sentence are NLTK's; its sentences are found by Punkt untrained, for the trained one is a
    download: it also splits after abbreviations, so that "Mr." inside a text is two words.

    >>> words("It didn't end. He left (late).")
    ['It', 'did', "n't", 'end', '.', 'He', 'left', '(', 'late', ')', '.']
    """
    sentences = _punkt().tokenize(text) if INNER_STOP.search(text) else [text]
    return [word for sentence in sentences for word in _sentence_words(sentence)]


def plain_words(text: str) -> list[str]:
    """Words of a text without punctuation, as ROUGE-1.5.5's Python port cuts them: "cannot" stays whole.

    >>> plain_words("i cannot because i am gonna")
    ['i', 'cannot', 'because', 'i', 'am', 'gon', 'na']
    """
    found = _tokenizer().tokenize(text.replace("cannot", "_cannot_"))
    return [word.replace("_cannot_", "cannot") for word in found]


@lru_cache(maxsize=1024)
def reference_words(text: str) -> tuple[str, ...]:
    """The same for a text that comes again and again."""
    return tuple(words(text))


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """NLTK's Porter stemmer, in its own extended form.

    >>> stem("running"), stem("sentences")
    ('run', 'sentenc')
    """
    return str(_porter("NLTK_EXTENSIONS").stem(word))


@lru_cache(maxsize=65536)
def original_stem(word: str) -> str:
    """Porter's stemmer as published (1980), which ROUGE-1.5.5 uses."""
    return str(_porter("ORIGINAL_ALGORITHM").stem(word))


def _sentence_words(sentence: str) -> list[str]:
    """NLTK's words, remembered for what stands between two blanks: 30 regular expressions take their time."""
    if ENTANGLED.search(sentence):
        return list(_tokenizer().tokenize(sentence))
    pieces = sentence.split()
    before = " " if sentence.startswith(" ") else ""
    after = " " if sentence.endswith(" ") else ""
    last = len(pieces) - 1
    return [
        word
        for index, piece in enumerate(pieces)
        for word in _piece_words(piece, "x " if index else before, " x" if index < last else after)
    ]


@lru_cache(maxsize=65536)
def _piece_words(piece: str, before: str, after: str) -> tuple[str, ...]:
    """The words of a piece without blanks, in its place: a blank and an x stand in for the rest."""
    found = _tokenizer().tokenize(before + piece + after)
    return tuple(found[len(before.strip()) : len(found) - len(after.strip())])


@cache
def _porter(mode: str) -> Any:
    from nltk.stem.porter import PorterStemmer  # brings NLTK along: 1 s

    return PorterStemmer(mode)


@cache
def _punkt() -> Any:
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    return PunktSentenceTokenizer()


@cache
def _tokenizer() -> Any:
    from nltk.tokenize.destructive import NLTKWordTokenizer

    return NLTKWordTokenizer()
