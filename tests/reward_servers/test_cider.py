"""CIDEr-D against its authors' code and by hand; rarity that does not depend on the batch."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.metrics.cider import Cider as CiderMetric
from reward_servers.rewards.cider import Cider
from reward_servers.rewards.cider_rl4lms_compat import CiderRl4lmsCompat
from reward_servers.server import check_at_hand
from reward_servers.settings import parts
from reward_servers.text.cider import caption_words
from tests.reward_servers.pairs import REAL, made, real

WORDS = st.lists(st.sampled_from("abcdef"), max_size=8).map(" ".join)
SAMPLES = st.lists(
    st.builds(Sample, WORDS, references=st.lists(WORDS, min_size=1, max_size=3).map(tuple)),
    min_size=1,
    max_size=6,
)


def write_references(file: Path, sets: list[list[str]]) -> str:
    file.write_text("".join(json.dumps({"references": texts}) + "\n" for texts in sets), encoding="utf-8")
    return str(file)


def rows_of(samples: list[Sample]) -> list[float]:
    return list(CiderMetric(tokenizer="whitespace").compute(samples)["lexical/cider"].rows)


@settings(deadline=None)
@given(SAMPLES)
def test_the_metric_is_that_of_the_authors_on_tokenized_text(samples: list[Sample]) -> None:
    scorer = pytest.importorskip("pycocoevalcap.cider.cider_scorer").CiderScorer(n=4, sigma=6.0)
    for sample in samples:
        scorer += (sample.text, list(sample.references))
    try:
        corpus, rows = scorer.compute_score()
    except ValueError:  # theirs needs one n-gram at least
        rows, corpus = [0.0] * len(samples), 0.0
    assert rows_of(samples) == pytest.approx(list(rows), abs=1e-6)
    found = CiderMetric(tokenizer="whitespace").compute(samples)["lexical/cider"].corpus
    assert found == pytest.approx(corpus, abs=1e-6)


@pytest.mark.parametrize("pairs", [made, real])
def test_it_is_that_of_the_authors_on_sentences(pairs: Callable[[], tuple[Sample, ...]]) -> None:
    scorer = pytest.importorskip("pycocoevalcap.cider.cider_scorer").CiderScorer(n=4, sigma=6.0)
    if pairs is real and not REAL.exists():
        pytest.skip(f"no real samples in {REAL}")
    assert len(pairs()) >= 200
    for sample in pairs():
        cut = [" ".join(caption_words(text)) for text in (sample.text, *sample.references)]
        scorer += (cut[0], cut[1:])
    corpus, rows = scorer.compute_score()
    value = CiderMetric().compute(pairs())["lexical/cider"]
    assert list(value.rows) == pytest.approx(list(rows), abs=1e-6) and max(rows) > 1.0
    assert value.corpus == pytest.approx(corpus, abs=1e-6)


def test_cider_by_hand() -> None:
    # Two documents. "a" is in both: weight log 2 - log 2 = 0. "b" and "a b" are in one: log 2. So the
    # unigram vectors are (0, log 2) on both sides, and the bigrams are equal: cosine 1 for orders 1 and 2,
    # nothing for 3 and 4. 10 · (1 + 1 + 0 + 0) / 4 = 5.
    samples = [Sample("a b", references=("a b",)), Sample("c", references=("a",))]
    assert rows_of(samples) == pytest.approx([5.0, 0.0])
    # One word more: 3 words against 2, a gap of one bigram: exp(-1/72). The text's own weights: "b" log 2,
    # "x" log 2, so cosine 1/√2; bigrams "a b" log 2, "b x" log 2: 1/√2 again; "a b x" finds nothing.
    longer = [Sample("a b x", references=("a b",)), samples[1]]
    assert rows_of(longer)[0] == pytest.approx(5.0 / math.sqrt(2) * math.exp(-1 / 72))


def test_equal_prompts_stay_two_samples_and_order_changes_nothing() -> None:
    samples = [
        Sample("a b c d", prompt="p", references=("a b c d",)),
        Sample("x", prompt="p", references=("a b c d",)),
        Sample("e f", prompt="q", references=("e f g",)),
    ]
    rows = rows_of(samples)
    assert rows[0] == pytest.approx(10.0) and rows[1] == 0.0
    assert rows_of(samples[::-1]) == pytest.approx(rows[::-1])
    # RL4LMs keeps the last sample of a prompt, and gives the perfect text that one's score.
    assert CiderRl4lmsCompat(tokenizer="whitespace").score(samples)[:2] == [0.0, 0.0]


def test_a_batch_of_one_prompt_scores_nothing_as_rl4lms_has_it_but_the_reward_does(tmp_path: Path) -> None:
    sample = Sample("a b c d", references=("a b c d",))
    file = write_references(tmp_path / "refs.jsonl", [["a b c d"], ["e f g h"]])
    assert CiderRl4lmsCompat(tokenizer="whitespace").score([sample]) == [0.0]
    assert Cider(df_file=file, tokenizer="whitespace").score([sample]) == [pytest.approx(10.0)]


@settings(deadline=None)
@given(SAMPLES)
def test_the_reward_of_a_text_does_not_depend_on_its_batch(samples: list[Sample]) -> None:
    reward = Cider(df_file=str(Path(__file__).with_name("references.jsonl")), tokenizer="whitespace")
    together = reward.score(samples)
    assert together == [score for sample in samples for score in reward.score([sample])]
    assert all(0.0 <= score <= 10.0 + 1e-9 for score in together)


def test_a_file_that_can_not_serve_is_refused_before_the_run(tmp_path: Path) -> None:
    one = write_references(tmp_path / "one.jsonl", [["a"]])
    for file, said in ((one, "one set of references"), (str(tmp_path / "none.jsonl"), "can't be read")):
        with pytest.raises(InputError, match=said):
            check_at_hand("reward", parts([{"name": "cider", "df_file": file}]))
    (tmp_path / "bad.jsonl").write_text('{"references": ["a"]}\n{"refs": []}\n')
    with pytest.raises(InputError, match=r"bad\.jsonl, line 2"):
        check_at_hand("reward", parts([{"name": "cider", "df_file": str(tmp_path / "bad.jsonl")}]))
    with pytest.raises(InputError, match=r"df_file: is required"):
        check_at_hand("reward", parts("cider"))


def test_words_are_those_of_the_coco_evaluation() -> None:
    # what its tokenizer (Stanford's, in Java) and its list of punctuation leave
    text = "He said: \"Stop (now)!\" - it's 5,000 dollars. The U.S. army isn't, but they won't..."
    expected = "he said stop ( now ) it 's 5,000 dollars the u.s. army is n't but they wo n't"
    assert " ".join(caption_words(text)) == expected
    assert caption_words("") == [] == caption_words(" . ")


def test_a_text_of_any_length_is_scored() -> None:
    (value,) = CiderMetric().compute([Sample("word " * 20_000, references=("a word",))]).values()
    assert value.corpus == 0.0
