"""What CommonGen's texts are asked for: the concepts in any form, and no repetition of the task."""

import json

import pytest

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.metrics.coverage import Coverage as CoverageMetric
from reward_servers.rewards.common_gen_repeat_penalty import CommonGenRepeatPenalty
from reward_servers.rewards.coverage import Coverage
from tests.reward_servers.pairs import REAL


def sample(text: str, *concepts: str, prompt: str = "") -> Sample:
    return Sample(text, prompt=prompt, meta={"concepts": list(concepts)})


@pytest.mark.parametrize(
    ("text", "concepts", "expected"),
    [
        ("Two dogs are catching frisbees.", ("dog", "catch", "frisbee", "throw"), 0.75),
        ("He threw it and it was caught.", ("throw", "catch"), 1.0),  # irregular forms
        ("The children stood on feet", ("child", "stand", "foot"), 1.0),
        ("a doghouse", ("dog",), 0.0),  # whole words
        ("Ice-cream melts", ("ice cream", "melt"), 1.0),
        ("", ("dog",), 0.0),
        ("anything", (), 1.0),
    ],
)
def test_coverage_by_hand(text: str, concepts: tuple[str, ...], expected: float) -> None:
    assert Coverage().score([sample(text, *concepts)]) == [expected]


def test_coverage_as_a_metric_is_the_mean() -> None:
    value = CoverageMetric().compute([sample("a dog", "dog"), sample("a dog", "cat")])["lexical/coverage"]
    assert (value.corpus, value.rows) == (0.5, (1.0, 0.0))


@pytest.mark.skipif(not REAL.exists(), reason="the real samples are not here")
def test_what_people_wrote_covers_what_they_were_asked_for() -> None:
    rows = [
        sample(text, *row["concepts"])
        for line in (REAL / "common_gen" / "test.jsonl").read_text(encoding="utf-8").splitlines()
        for row in [json.loads(line)]
        for text in row["references"]
    ]
    scores = Coverage().score(rows)
    assert len(scores) > 200 and sum(scores) / len(scores) > 0.99
    assert sum(Coverage().score([sample("nothing", *row.meta["concepts"]) for row in rows])) == 0.0


@pytest.mark.parametrize(
    ("text", "prompt", "expected"),
    [
        ("A dog catches a frisbee.", "generate a sentence with: dog catch frisbee", 0.0),
        ("dog catch frisbee", "generate a sentence with: dog catch frisbee", -1.0),
        ("so: dog.catch.frisbee", "generate a sentence with: dog.catch.frisbee ", -1.0),
        ("so: dog catch frisbee", "no prefix here", -1.0),
        ("I generate noise", "", -1.0),
        ("This sentence has a dog", "", -1.0),
        ("", "generate a sentence with: dog catch frisbee", 0.0),
        ("anything", "generate a sentence with: ", 0.0),  # nothing after the prefix is nothing to repeat
    ],
)
def test_the_penalty_by_hand(text: str, prompt: str, expected: float) -> None:
    one = sample(text, "dog", "catch", "frisbee", prompt=prompt)
    assert CommonGenRepeatPenalty().score([one]) == [expected]


def test_the_prefix_is_an_option_and_one_concept_must_occur() -> None:
    reward = CommonGenRepeatPenalty(prefix="summarize: ")
    assert reward.score([sample("summarize: it", "dog", prompt="summarize: dog")]) == [-1.0]
    assert reward.score([sample("a dog", "dog", prompt="summarize: dog")]) == [0.0]


@pytest.mark.parametrize("meta", [{}, {"concepts": "dog cat"}, {"concepts": [1, 2]}])
@pytest.mark.parametrize("reward", [Coverage(), CommonGenRepeatPenalty()])
def test_missing_concepts_are_named(reward: Coverage, meta: dict[str, object]) -> None:
    assert type(reward).needs_meta == ("concepts",)
    with pytest.raises(InputError, match="wants meta data 'concepts', a list of words"):
        reward.score([Sample("a", meta=meta)])
