"""Split English text into sentences by rules, without a model."""

import re

PARAGRAPH = re.compile(r"\n\s*\n")
# A sentence may end at . ! ? or … with the quotes and brackets that close there, before a blank.
END = re.compile(r"""[.!?…]+["'”’)\]]*(?=\s)""")
INITIALS = re.compile(r"(?:[A-Z]\.)*[A-Z]")  # J. or U.S.
# fmt: off
ABBREVIATIONS = frozenset((
    "adm", "al", "apr", "approx", "aug", "ave", "brig", "capt", "cf", "co", "col", "corp", "dec",
    "dept", "dr", "e.g", "ed", "eds", "eq", "est", "etc", "feb", "fig", "fr", "gen", "gov", "hon",
    "i.e", "inc", "jan", "jr", "jul", "jun", "lt", "ltd", "maj", "mar", "messrs", "mr", "mrs", "ms",
    "mt", "nov", "oct", "p", "pp", "prof", "rep", "rev", "sen", "sep", "sept", "sgt", "sr", "st",
    "u.k", "u.n", "u.s", "vol", "vs",
))
# fmt: on


def sentences(text: str) -> list[str]:
    """Return the sentences in order, without blanks around them.

    A blank line ends a sentence, and so does an end mark before a blank. Exceptions are known abbreviations,
    initials, and an ellipsis before a lower-case letter. RL4LMs uses NLTK's Punkt, which has learned
    abbreviations from newspapers. It knows rarer ones, and ends a sentence at "Inc." if the next word often
    begins a sentence.

    >>> sentences('Dr. J. Smith came. "Did he?" well... he left at 5.30.')
    ['Dr. J. Smith came.', '"Did he?"', 'well... he left at 5.30.']
    """
    pieces: list[str] = []
    for paragraph in PARAGRAPH.split(text):
        start = 0
        for end in END.finditer(paragraph):
            sentence = paragraph[start : end.end()].strip()
            if not _goes_on(sentence, paragraph[end.end() :].lstrip()[:1]):
                pieces.append(sentence)
                start = end.end()
        pieces.append(paragraph[start:].strip())
    return [sentence for sentence in pieces if sentence]


def _goes_on(sentence: str, next_letter: str) -> bool:
    """Return whether the sentence continues after this end mark."""
    if sentence.endswith(("...", "…")):
        return next_letter.islower()
    words = sentence[:-1].split()
    if not sentence.endswith(".") or not words:
        return False
    last = words[-1].lstrip("\"'“‘([")
    return last.lower() in ABBREVIATIONS or (last != "I" and INITIALS.fullmatch(last) is not None)
