"""Diversity, repetition and tf-idf weights: numbers worked by hand, and scikit-learn's."""

import json
import logging
import math
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.graders.distinct_n import DistinctN
from reward_servers.graders.diversity import Diversity, conditional_entropy, entropy, msttr
from reward_servers.graders.tfidf_diversity import TfidfDiversity
from tests.reward_servers.pairs import made

TEXTS = [Sample("The cat, the dog."), Sample("the cat!")]
# the cat , the dog .   the cat !     9 words, with 6 different ones; the 3 times, cat 2 times
# the cat the dog       the cat       6 words without punctuation, with 3 different ones


def diversity(samples: list[Sample], window: int = 100) -> dict[str, float]:
    values = Diversity(window_size=window).compute(samples)
    assert all(key.startswith("diversity_metrics/") for key in values)
    return {key.removeprefix("diversity_metrics/"): value.corpus for key, value in values.items()}


def test_diversity_by_hand() -> None:
    stats = diversity(TEXTS, window=2)
    assert stats["msttr-2"] == 1.0  # the cat | , the | dog . | the cat; the ! is dropped
    assert stats["msttr-2_nopunct"] == 1.0
    assert diversity(TEXTS, window=4)["msttr-4"] == 7 / 8  # the cat , the | dog . the cat
    assert stats["total_length"] == 9 and stats["total_length-nopunct"] == 6
    assert stats["mean_pred_length"] == 4.5 and stats["mean_pred_length-nopunct"] == 3.0
    assert stats["std_pred_length"] == 1.5 and stats["std_pred_length-nopunct"] == 1.0
    assert stats["median_pred_length"] == 4.5
    assert (stats["min_pred_length"], stats["max_pred_length"]) == (3, 6)
    # words: the ×3, cat ×2, and , dog . ! once each
    assert stats["vocab_size-1"] == 6 and stats["distinct-1"] == 6 / 9 and stats["unique-1"] == 4
    assert stats["entropy-1"] == pytest.approx(
        3 / 9 * math.log2(3) + 2 / 9 * math.log2(4.5) + 4 / 9 * math.log2(9)
    )
    # pairs: the-cat ×2, cat-, ,-the the-dog dog-. cat-!  once each
    assert stats["vocab_size-2"] == 6 and stats["distinct-2"] == 6 / 7 and stats["unique-2"] == 5
    assert stats["entropy-2"] == pytest.approx(2 / 7 * math.log2(3.5) + 5 / 7 * math.log2(7))
    # without punctuation the-cat ×2, cat-the, the-dog of 4; the ×3, cat ×2, dog of 6
    expected = -(0.5 * math.log2(0.5 / 0.5) + 0.25 * math.log2(0.25 / (2 / 6)) + 0.25 * math.log2(0.25 / 0.5))
    assert stats["cond_entropy-2-nopunct"] == pytest.approx(expected)
    assert stats["vocab_size-3-nopunct"] == 2 and stats["unique-3-nopunct"] == 2


def test_diversity_has_every_key_of_rl4lms() -> None:
    base = [f"{name}-{n}" for name in ("distinct", "vocab_size", "unique", "entropy") for n in (1, 2, 3)]
    base += ["cond_entropy-2", "cond_entropy-3", "total_length"]
    base += [f"{name}_pred_length" for name in ("mean", "std", "median", "min", "max")]
    expected = {*base, *(f"{name}-nopunct" for name in base), "msttr-100", "msttr-100_nopunct"}
    assert set(diversity([Sample("a b c ! " * 50)])) == expected


def test_texts_shorter_than_a_window_have_no_msttr(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        stats = diversity(TEXTS)
    assert not [key for key in stats if key.startswith("msttr")]
    assert "fewer than 100 words" in caplog.text
    assert stats["distinct-1"] == 6 / 9


def test_lengths_are_numpys() -> None:
    stats = diversity(list(made(50)))
    counts = np.array([len(sample.text.split()) for sample in made(50)])
    assert stats["total_length"] >= counts.sum()
    assert stats["mean_pred_length"] == pytest.approx(stats["total_length"] / 50)


@pytest.mark.parametrize("texts", [[""], ["", " "], ["!"], ["one"], ["</s>"]])
def test_next_to_nothing_is_no_error(texts: list[str]) -> None:
    samples = [Sample(text) for text in texts]
    assert all(math.isfinite(value) for value in diversity(samples).values())
    assert all(math.isfinite(value.corpus) for value in DistinctN().compute(samples).values())
    assert all(0.0 <= score <= 1.0 for score in DistinctN().score(samples))
    assert all(0.0 <= score <= 1.0 for score in TfidfDiversity().score(samples))


@given(st.lists(st.text("ab .", max_size=20), min_size=1, max_size=8), st.randoms())
def test_the_order_of_texts_changes_nothing_but_msttr(texts: list[str], rng: random.Random) -> None:
    shuffled = list(texts)
    rng.shuffle(shuffled)
    one, other = (diversity([Sample(text) for text in order]) for order in (texts, shuffled))
    assert one == pytest.approx(other, abs=1e-12)


def test_entropy_is_scipys() -> None:
    from scipy.stats import entropy as oracle

    counts = Counter({("a",): 5, ("b",): 3, ("c",): 1})
    assert entropy(counts) == pytest.approx(oracle([5, 3, 1], base=2))
    # A word that is always followed by the same one leaves nothing open: 0 bits of 4 pairs, 4 contexts.
    assert conditional_entropy(Counter({("a", "b"): 4}), Counter({("a",): 4})) == pytest.approx(0.0)
    assert msttr([["a"] * 10], 5) == 0.2


def test_distinct_n_by_hand() -> None:
    # two of the pairs a-b b-a a-b are different; words of one text don't pair with those of another
    assert DistinctN().score([Sample("a b A b"), Sample("a"), Sample("")]) == [2 / 3, 0.0, 0.0]
    assert DistinctN(n=1).score([Sample("a b A b")]) == [0.5]
    values = DistinctN().compute([Sample("a b a"), Sample("b a")])
    assert {key: value.corpus for key, value in values.items()} == {
        "lexical/distinct-1": 2 / 5,
        "lexical/distinct-2": 2 / 3,  # a-b b-a b-a
        "lexical/distinct-3": 1.0,
    }


def test_lolrls_distinctness_counts_letter_case_and_divides_by_words() -> None:
    samples = [Sample("A dog ran"), Sample("a  dog")]  # two blanks: a word of no letters between them
    assert {
        key: value.corpus for key, value in DistinctN(variant="distinctness").compute(samples).items()
    } == {
        "lexical/distinct-1": 5 / 6,  # A, dog, ran, a, ""
        "lexical/distinct-2": 4 / 6,  # A dog, dog ran, a "", "" dog
        "lexical/distinct-3": 2 / 6,
    }
    assert DistinctN().compute(samples)["lexical/distinct-1"].corpus == 3 / 5


def test_tfidf_is_scikit_learns(tmp_path: Path) -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer

    documents = [sample.references[0].replace("\n", " ") for sample in made(60)]
    corpus = tmp_path / "responses.txt"
    corpus.write_text("\n".join(documents), encoding="utf-8")
    texts = [sample.text for sample in made(200)[100:]]
    matrix = TfidfVectorizer().fit(documents).transform(texts)
    expected = [
        row.data.mean() * (1.0 if row.nnz >= 5 else row.nnz / 10) if row.nnz else 0.0 for row in matrix
    ]
    scores = TfidfDiversity(corpus=str(corpus)).score([Sample(text) for text in texts])
    assert scores == pytest.approx(expected, abs=1e-12)
    value = TfidfDiversity(corpus=str(corpus)).compute([Sample(text) for text in texts])[
        "diversity_metrics/tfidf"
    ]
    assert value.corpus == pytest.approx(sum(expected) / len(expected))


def test_tfidf_by_hand(tmp_path: Path) -> None:
    # four different words that weigh the same: entries 1/2, mean 1/2, times 4/10; nine: 1/3
    assert TfidfDiversity().score([Sample("red green blue grey")]) == [pytest.approx(0.2)]
    nine = "one two three four five six seven eight nine"
    assert TfidfDiversity().score([Sample(nine)]) == [pytest.approx(1 / 3)]
    assert TfidfDiversity(full_from=10).score([Sample(nine)]) == [pytest.approx(0.3)]
    corpus = tmp_path / "train.jsonl"
    corpus.write_text(
        json.dumps({"reply": "red cars"}) + "\n" + json.dumps({"reply": "red"}), encoding="utf-8"
    )
    # red is in both documents, cars in one: weights 1 and ln(3/2) + 1; green is not known
    weight = math.log(1.5) + 1
    expected = (1 + weight) / math.hypot(1, weight) / 2 * 0.2
    reward = TfidfDiversity(corpus=str(corpus), field="reply")
    assert reward.score([Sample("red green cars"), Sample("green")]) == [pytest.approx(expected), 0.0]


def test_a_wrong_corpus_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"corpus=nowhere\.txt: there is no such file"):
        TfidfDiversity(corpus="nowhere.txt")
    corpus = tmp_path / "train.jsonl"
    corpus.write_text('{"reply": "a"}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"KeyError.*another field=NAME"):
        TfidfDiversity(corpus=str(corpus)).score([Sample("a")])
