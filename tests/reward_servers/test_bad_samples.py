"""Samples that no grader should have to see: a score or a counted failure, and no crash."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import RewardError
from contracts.scores import Sample
from reward_servers.graders import METRICS, REWARDS
from reward_servers.needs import has_reference
from reward_servers.part_checks import needs_meta
from reward_servers.server import MetricServer, RewardServer
from reward_servers.settings import Part

PICKY = Part(name="tests.reward_servers.graders:Picky", label="picky")
# Every machine has these; others need models, Java or data.
LIGHT = ("dates", "increasing_numbers", "length", "rouge", "sentiment", *({"meteor"} & REWARDS.keys()))
GOOD = Sample("a fine text", references=("a fine reference",))
ODD = {
    "empty: a generation of special tokens only": "",
    "blanks": " \n\t ",
    "100,000 characters": "the cat sat on the mat. " * 4167,
    "one word of 100,000 characters": "x" * 100_000,
    "half a surrogate pair": "a \ud800 b",
    "a null character": "a\0b",
    "line separators": "a\u2028b\x85c",
    "no letters": "!?… 🙂 ＡＢ",
}


@pytest.mark.parametrize("name", LIGHT)
@pytest.mark.parametrize("odd", ODD)
def test_odd_texts_cost_nobody_a_score(name: str, odd: str) -> None:
    server = RewardServer(Part(name=name))
    began = time.monotonic()
    answers = server.score([GOOD, Sample(ODD[odd], references=("a fine reference", "")), GOOD])
    assert time.monotonic() - began < 20
    assert answers[0] == answers[2] == server.score([GOOD])[0]
    assert answers[0][0] is not None
    score, error = answers[1]
    assert (score is None) != (error is None)
    assert len(error or "") < 500


@pytest.mark.parametrize("name", [name for name in LIGHT if name in METRICS])
def test_metrics_take_odd_texts(name: str) -> None:
    samples = [Sample(text, references=("a fine reference",)) for text in ODD.values()]
    for value in MetricServer(Part(name=name)).compute(samples).values():
        assert value.rows is None or len(value.rows) == len(ODD)


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (
            Sample("t", meta={"intent": 1}),
            "graders:Picky compares with references, and this sample has none; the sample: 't'",
        ),
        (Sample("t", references=("", " \n"), meta={"intent": 1}), "this sample has only empty ones"),
        (Sample("t", references=("r",)), "needs meta data intent, and this sample has: none"),
        (
            Sample("t", references=("r",), meta={"label": 0}),
            "needs meta data intent, and this sample has: label",
        ),
        (Sample("t", references=("r",), meta={"intent": None}), "needs meta data intent"),
    ],
)
def test_what_a_sample_lacks_is_said_and_counted(sample: Sample, reason: str) -> None:
    fine = Sample("fine", references=("", "r"), meta={"intent": 2})
    first, (score, error), last = RewardServer(PICKY).score([fine, sample, fine])
    assert first == last == (2.0, None)
    assert score is None
    assert reason in (error or "")
    assert (error or "").startswith("reward picky: ")
    with pytest.raises(RewardError, match=r"metric picky: .*\(one sample\); the sample: 't'"):
        MetricServer(PICKY).compute([fine, sample])
    with pytest.raises(RewardError, match=r"\(2 of 3 samples, the first\)"):
        MetricServer(PICKY).compute([sample, fine, sample])


def test_needs_are_read_from_the_class() -> None:
    assert needs_meta("reward", PICKY) == needs_meta("metric", PICKY) == ("intent",)
    assert needs_meta("reward", Part(name="length")) == ()
    assert needs_meta("reward", Part(name="tests.reward_servers.test_combine:Thresholded")) == ("label",)


@given(st.lists(st.text(alphabet=" \n\ta")))
def test_a_reference_is_more_than_blanks(references: list[str]) -> None:
    assert has_reference(references) == ("a" in "".join(references))


def test_a_metric_names_the_sample_that_it_can_not_use() -> None:
    good = Sample(text="a cat", references=("a cat",), meta={"concepts": ["cat"]})
    bad = Sample(text="a dog", references=("a dog",), meta={"concepts": "dog"})
    with pytest.raises(RewardError, match=r"\(sample 2 of 3\); the sample: 'a dog'"):
        MetricServer(Part(name="coverage")).compute([good, bad, good])


@pytest.mark.parametrize("name", ["leaves", "leaves_later"])
def test_a_grader_that_exits_costs_one_sample(name: str) -> None:
    server = RewardServer(Part(name=f"tests.reward_servers.graders:{name}", label=name))
    (first, _), (none, why), (last, _) = server.score([Sample("a"), Sample("bad"), Sample("ccc")])
    assert (first, none, last) == (1.0, None, 3.0)
    assert "SystemExit: 3" in (why or "")
