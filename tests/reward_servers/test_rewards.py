"""Each built-in reward against numbers worked by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.components import create
from contracts.errors import InputError
from contracts.scores import Reward, Sample
from reward_servers.graders import REWARDS
from reward_servers.graders.dates import Dates
from reward_servers.graders.increasing_numbers import IncreasingNumbers
from reward_servers.graders.length import Length
from reward_servers.graders.rouge import Rouge
from reward_servers.graders.sentiment import Sentiment
from reward_servers.graders.short_answer import ShortAnswer

REQUIRED = {
    **{name: {"df_file": "references.jsonl"} for name in ("cider", "spider")},
    "format": {"tags": ["answer"]},
    "overlong": {"max_tokens": 100, "buffer": 20},
    "function": {"function": "tests.reward_servers.graders:brevity"},
    **{name: {"url": "http://127.0.0.1:1/v1", "model": "any"} for name in ("judge", "judge_group")},
    **{name: {"model": "folder"} for name in ("bleurt", "learned_reward", "preference_model")},
}


def test_every_built_in_is_made_from_its_name_and_describes_itself() -> None:
    for name in REWARDS:
        reward = create("reward", name, REQUIRED.get(name, {}), REWARDS, Reward)
        assert __import__(type(reward).__module__, fromlist=["x"]).__doc__.strip()


@pytest.mark.parametrize(
    ("text", "min_tokens", "expected"),
    [
        ("1 2 3 4", 0, 1.0),  # a run of 4, of 4 words
        ("1 2 3 4", 20, 0.4),  # the same over 20 / 2
        ("1 2 2 3", 0, 0.5),  # equal is no increase: 2 of 4, the later 3 does not count
        ("5 1 2 3 4", 0, 0.2),  # stops at the first decrease, later runs do not count
        ("1 and 2 and 3", 0, 0.6),  # words are skipped, and count in the denominator: 3 of 5
        ("-1.5 0 2e3", 0, 1.0),  # signs, decimals and exponents are numbers
        ("7", 20, 0.1),  # one number is a run of 1, over 10
        ("no number here", 0, 0.0),
        ("", 20, 0.0),
        ("1 nan 2", 0, 2 / 3),  # nan is a word
        ("1, 2, 3", 0, 1 / 3),  # "1," is no number: only 3 is
    ],
)
def test_increasing_numbers_by_hand(text: str, min_tokens: int, expected: float) -> None:
    assert IncreasingNumbers(min_tokens=min_tokens).score([Sample(text)]) == [pytest.approx(expected)]


@given(st.text())
def test_increasing_numbers_is_a_fraction_of_any_text(text: str) -> None:
    assert 0.0 <= IncreasingNumbers().score([Sample(text)])[0] <= 1.0


@given(st.sets(st.integers(0, 10_000), min_size=10))
def test_sorted_numbers_are_a_perfect_answer(numbers: set[int]) -> None:
    text = " ".join(map(str, sorted(numbers)))
    assert IncreasingNumbers(min_tokens=20).score([Sample(text)]) == [1.0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It was 2024-01-31.", 1.0),
        ("x9999-99-99x", 1.0),  # the pattern counts, not the calendar
        ("24-01-31", 0.0),
        ("2024/01/31", 0.0),
        ("٢٠٢٤-٠١-٣١", 0.0),  # digits are 0 to 9
        ("", 0.0),
    ],
)
def test_dates_by_hand(text: str, expected: float) -> None:
    assert Dates().score([Sample(text)]) == [expected]


def test_length_counts_words_and_measures_the_way_to_a_target() -> None:
    samples = [Sample(""), Sample("one"), Sample(" one  two\nthree four "), Sample("a " * 20)]
    assert Length().score(samples) == [0.0, 1.0, 4.0, 20.0]
    # target 4: |0-4|/4 = 1, |1-4|/4 = 0.75, 0, and 20 words are beyond twice the target
    assert Length(target=4).score(samples) == [0.0, 0.25, 1.0, 0.0]


def test_rouge_by_hand() -> None:
    sample = Sample("the cat sat", references=("the cat lay down",))
    # unigrams: 2 of 3 and 2 of 4 agree, F1 = 2·(2/3)(1/2)/(2/3+1/2) = 4/7; bigrams: 1 of 2, 1 of 3: 2/5
    assert Rouge(rouge_type="rouge1").score([sample]) == [pytest.approx(4 / 7)]
    assert Rouge(rouge_type="rouge2").score([sample]) == [pytest.approx(2 / 5)]
    assert Rouge().score([sample]) == [pytest.approx(4 / 7)]  # longest common subsequence: the cat
    assert Rouge().score([Sample("running cats", references=("run cat",))]) == [1.0]  # stemmed


def test_rouge_takes_the_best_reference_or_the_first() -> None:
    sample = Sample("a b", references=("c d", "a b"))
    assert Rouge(references="best").score([sample]) == [1.0]
    assert Rouge(references="first").score([sample]) == [0.0]


@pytest.mark.parametrize("rouge_type", ["rouge1", "rouge2", "rougeL", "rougeLsum"])
def test_rouge_agrees_with_the_library(rouge_type: str) -> None:
    from rouge_score.rouge_scorer import RougeScorer

    text = "The film was long.\nIts actors were dreadful, the music was not."
    reference = "A long film with dreadful actors.\nThe music was good."
    expected = RougeScorer([rouge_type], use_stemmer=True).score(reference, text)[rouge_type].fmeasure
    assert 0 < expected < 1
    assert Rouge(rouge_type=rouge_type).score([Sample(text, references=(reference,))]) == [expected]


def test_rouge_without_references_says_so() -> None:
    with pytest.raises(InputError, match="this sample has none"):
        Rouge().score([Sample("a")])


def test_sentiment_is_the_compound_value_moved_into_0_to_1() -> None:
    # VADER's lexicon gives "good" a valence of 1.9; its compound is 1.9 / sqrt(1.9² + 15) = 0.4404
    good, nothing, bad = Sentiment().score([Sample("good"), Sample("table"), Sample("horrible")])
    assert good == pytest.approx((0.4404 + 1) / 2)
    assert nothing == 0.5
    assert bad < 0.3


def test_sentiment_reads_the_prompt_only_when_told() -> None:
    sample = Sample("table", prompt="good")
    assert Sentiment().score([sample]) == [0.5]
    assert Sentiment(include_prompt=True).score([sample])[0] > 0.7


@given(st.text())
def test_sentiment_stays_within_its_bounds(text: str) -> None:
    assert 0.0 <= Sentiment().score([Sample(text)])[0] <= 1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A camel eats dry grass and the leaves of desert shrubs.", 0.9),  # 11 words, 1 beside 10: 1 - 1/10
        ("Camels eat grass.", 0.3),  # 3 words: 1 - 7/10
        ("A camel eats only what its owner has left over.", 0.5),  # 10 words, none of a right answer: half
        ("A camel is an animal.", 0.25),  # 5 words: half of 1 - 5/10
        ("It eats leaves from the trees that grow near it!", 1.0),  # leaves are a form of leaf
        ("Camels eat grass. They live in deserts with little water.", 0.0),  # a second sentence
        ("A camel eats grass and the leaves of the", 0.0),  # cut off
        ("grass " * 30 + ".", 0.0),  # beyond twice as many
        ("", 0.0),
    ],
)
def test_short_answers_by_hand(text: str, expected: float) -> None:
    sample = Sample(text, meta={"key_words": ["grass", "leaf"]})
    assert ShortAnswer(words=10).score([sample]) == [pytest.approx(expected)]
