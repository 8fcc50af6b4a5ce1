"""Caption tokenizers, as for published values of CIDEr and SPICE.

ptb         the COCO evaluation's words, by NLTK: lower-cased Penn Treebank tokens without punctuation, unless
            a text has no others; single characters of scripts without blanks
coco        exactly the COCO evaluation's words, by its Java program
spacy       RL4LMs' and CommonGen's words: spaCy's English tokens with letter case and punctuation
whitespace  words between blanks, for tokenized texts
"""

import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from contracts.errors import RewardError
from contracts.scores import Sample
from reward_servers.requirements import CAPTIONS, check_named, package_folder
from reward_servers.text.references import references_of
from reward_servers.text.scripts import spaced
from reward_servers.text.sentences import sentences

Tokenizer = Literal["ptb", "coco", "spacy", "whitespace"]
Words = list[str]
Captions = tuple[Words, list[Words]]  # the words of a text, and of each of its references

REQUIRES: dict[Tokenizer, tuple[str, ...]] = {"coco": ("java", CAPTIONS), "spacy": ("spacy",)}
# The COCO evaluation drops these after its tokenizer, but keeps brackets.
PUNCTUATION = frozenset(("''", "'", "``", "`", ".", "?", "!", ",", ":", ";", "-", "--", "..."))
# The Java program reads each of these signs as its plain form; NLTK's rules do not.
BLANKS = re.compile(r"[^\S\n]|[\u180e\u200b\u200d\u2060\ufeff]")  # the second group is invisible
PLAIN = str.maketrans(
    {"‘": "'", "’": "'", "“": '"', "”": '"', "«": '"', "»": '"', "…": "...", "–": "--", "—": "--", "―": "--"}
    | {"\xad": None}
)
PTB_JAR = "stanford-corenlp-3.4.1.jar"
JAVA_SECONDS = 600.0


def check_tokenizer(tokenizer: Tokenizer, where: str) -> None:
    """Refuse a tokenizer whose requirements this machine lacks.

    Raises:
        InputError: a requirement is missing; the message has the commands that install it.
    """
    check_named(REQUIRES.get(tokenizer, ()), f"{where} with tokenizer={tokenizer}")


def caption_words(texts: Sequence[str], tokenizer: Tokenizer = "ptb") -> list[Words]:
    """Return the words of each text; `coco` starts one Java process for all of them.

    >>> caption_words(["The cat's asleep, isn't it?"])
    [['the', 'cat', "'s", 'asleep', 'is', "n't", 'it']]
    >>> caption_words(["The cat's asleep."], "whitespace")
    [['The', "cat's", 'asleep.']]
    """
    if tokenizer == "coco":
        return _java_words(texts)
    cut: Callable[[str], Words] = {"ptb": _ptb_words, "spacy": _spacy_words}.get(tokenizer, str.split)
    return [cut(text) for text in texts]


def captions_of(samples: Sequence[Sample], name: str, tokenizer: Tokenizer) -> list[Captions]:
    """Return a pair for each sample: the words of its text, and of each of its references.

    Raises:
        InputError: a sample has no reference.
    """
    texts = [text for sample in samples for text in (sample.text, *references_of(sample, name))]
    words = iter(caption_words(texts, tokenizer))
    return [(next(words), [next(words) for _ in sample.references]) for sample in samples]


def _ptb_words(text: str) -> Words:
    split = _treebank().tokenize
    plain = spaced(BLANKS.sub(" ", text).translate(PLAIN))
    words = [word for sentence in sentences(plain) for word in split(sentence.lower())]
    return [word for word in words if word not in PUNCTUATION and word.strip(".")] or words


def _spacy_words(text: str) -> Words:
    # RL4LMs splits a token again at its blanks.
    return [word for token in _english()(text) for word in token.text.split()]


def _java_words(texts: Sequence[str]) -> list[Words]:
    """Run pycocoevalcap's `PTBTokenizer` with one line for each text, without line breaks inside texts."""
    check_tokenizer("coco", "CIDEr")
    folder = package_folder(CAPTIONS)
    assert folder is not None  # a requirement
    with tempfile.TemporaryDirectory(prefix="captions-") as scratch:
        file = Path(scratch) / "texts"
        lines = "".join(" ".join(text.splitlines()) + "\n" for text in texts)
        file.write_text(lines, encoding="utf-8", errors="replace")
        command = ["java", "-Dfile.encoding=UTF-8", "-cp", str(folder / "tokenizer" / PTB_JAR)]
        command += ["edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase", str(file)]
        try:
            ended = subprocess.run(command, capture_output=True, timeout=JAVA_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise RewardError(
                f"the COCO evaluation's tokenizer took longer than {JAVA_SECONDS:g} s over {len(texts)} texts"
            ) from None
    printed = ended.stdout.decode("utf-8", "replace").split("\n")
    if ended.returncode != 0 or len(printed) < len(texts):
        errors = ended.stderr.decode("utf-8", "replace").strip()[-500:]
        raise RewardError(
            f"the COCO evaluation's tokenizer ended with code {ended.returncode} and {len(printed)} lines "
            f"for {len(texts)} texts: {errors}"
        )
    return [[word for word in line.split() if word not in PUNCTUATION] for line in printed[: len(texts)]]


@cache
def _treebank() -> Any:
    from nltk.tokenize import NLTKWordTokenizer  # importing NLTK takes a second

    return NLTKWordTokenizer()


@cache
def _english() -> Any:
    """Return the tokenizer of en_core_web_sm: spaCy's rules for English, which need no model."""
    from spacy.lang.en import English

    return English().tokenizer
