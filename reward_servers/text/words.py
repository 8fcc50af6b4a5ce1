"""Cached words and stems of texts, for the lexical rewards."""

import re
from functools import cache, lru_cache
from typing import Any

from reward_servers.text.scripts import spaced

# Sentences matter to the words only if the text has a full stop inside.
INNER_STOP = re.compile(r"\.[\"'”’)\]]*\s+\S")
# Here NLTK's rules look beyond the next blank: other kinds of blanks, closing marks alone after a stop.
ENTANGLED = re.compile(r"[^\S ]|(?:^| )[\])}>\"'»”’]+ *$")


def words(text: str) -> list[str]:
    """Return the words of NLTK's `word_tokenize`, with punctuation, without its downloaded data.

    Untrained Punkt finds the sentences, because the trained one is a download. It also splits after
    abbreviations, so "Mr." inside a text is two words. In scripts without blanks each character is a word.

    >>> words("It didn't end. He left (late).")
    ['It', 'did', "n't", 'end', '.', 'He', 'left', '(', 'late', ')', '.']
    """
    text = spaced(text)
    sentences = _punkt().tokenize(text) if INNER_STOP.search(text) else [text]
    return [word for sentence in sentences for word in _sentence_words(sentence)]


def plain_words(text: str) -> list[str]:
    """Return a text's words without punctuation, like ROUGE-1.5.5's Python port; "cannot" stays whole.

    >>> plain_words("i cannot because i am gonna")
    ['i', 'cannot', 'because', 'i', 'am', 'gon', 'na']
    """
    tokens = _tokenizer().tokenize(text.replace("cannot", "_cannot_"))
    return [word.replace("_cannot_", "cannot") for word in tokens]


@lru_cache(maxsize=1024)
def reference_words(text: str) -> tuple[str, ...]:
    """Return the cached words of a frequent text, such as a reference."""
    return tuple(words(text))


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """Return the stem by NLTK's extended Porter stemmer.

    >>> stem("running"), stem("sentences")
    ('run', 'sentenc')
    """
    return str(_porter("NLTK_EXTENSIONS").stem(word))


@lru_cache(maxsize=65536)
def original_stem(word: str) -> str:
    """Return the stem by Porter's stemmer as published (1980), which ROUGE-1.5.5 uses."""
    return str(_porter("ORIGINAL_ALGORITHM").stem(word))


def _sentence_words(sentence: str) -> list[str]:
    """Return NLTK's words, cached for each piece between blanks; NLTK's 30 regular expressions are slow."""
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
    """Return the words of a piece without blanks; a blank and an x replace its neighbours."""
    tokens = _tokenizer().tokenize(before + piece + after)
    return tuple(tokens[len(before.strip()) : len(tokens) - len(after.strip())])


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
