"""Texts of CommonGen: they hold the concepts in any form, and do not repeat the task."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.graders.common_gen_repeat_penalty import CommonGenRepeatPenalty
from reward_servers.graders.coverage import Coverage
from services.data.tasks.commongen import CommonGen
from tests.reward_servers.pairs import REAL

PREFIX = "generate a sentence with: "


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
    value = Coverage().compute([sample("a dog", "dog"), sample("a dog", "cat")])["lexical/coverage"]
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
        ("A dog catches a frisbee.", f"{PREFIX}dog catch frisbee.", 0.0),
        ("dog catch frisbee", f"{PREFIX}dog catch frisbee.", -1.0),
        ("So: Dog Catch  FRISBEE!", f"{PREFIX}dog catch frisbee.", -1.0),
        ("so: Dog.Catch.Frisbee", f"{PREFIX}dog.catch.frisbee ", -1.0),  # other separator, other end
        ("so: dog, catch and frisbee", "Say something of dog, catch and frisbee please", -1.0),
        ("Say something  OF a dog", "Say something of dog, catch and frisbee please", -1.0),
        ("with a dog", "with dog catch frisbee.", 0.0),  # a prefix of one word is in many a sentence
        ("summarize: a dog", "Summarize: dog catch frisbee ", -1.0),
        ("so: dog\u00a0catch frisbee", "no prefix here", -1.0),
        ("I generate noise", "", -1.0),
        ("GENERATE noise", f"{PREFIX}dog catch frisbee.", -1.0),
        ("This Sentence has a dog", "", -1.0),
        ("", f"{PREFIX}dog catch frisbee.", 0.0),
        ("anything", PREFIX, 0.0),  # nothing after the prefix is nothing to repeat
    ],
)
def test_the_penalty_by_hand(text: str, prompt: str, expected: float) -> None:
    one = sample(text, "dog", "catch", "frisbee", prompt=prompt)
    assert CommonGenRepeatPenalty().score([one]) == [expected]


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["dog", "run", "field", "Look"]), min_size=2, max_size=5),
    st.lists(
        st.sampled_from(["dog", "RUN", "a", "field", "look", ".", "Generate", "sentences"]), max_size=12
    ),
    st.sampled_from([(" ", "."), (".", " "), (", ", "!")]),
)
def test_whatever_rl4lms_punishes_is_punished(
    concepts: list[str], words: list[str], form: tuple[str, str]
) -> None:
    """RL4LMs cuts the prompt at its prefix and takes the last character off what follows."""
    prompt, text = f"{PREFIX}{form[0].join(concepts)}{form[1]}", " ".join(words)
    listed = prompt.split(PREFIX)[1][:-1].lower()
    theirs = any(phrase in text.lower() for phrase in (listed, PREFIX, "generate", "sentence"))
    (ours,) = CommonGenRepeatPenalty().score([sample(text, *concepts, prompt=prompt)])
    repeats_with_blanks = " ".join(concepts).lower() in text.lower()
    assert (ours == -1.0) == (theirs or repeats_with_blanks)


def test_the_task_says_its_words_as_the_penalty_looks_for_them() -> None:
    row = {"concepts": ["field", "look", "stand"], "target": "They stand in the field and look."}
    (prompt,) = CommonGen().of_row("train", row, "here")
    listed = prompt.text[len(CommonGen().prefix) : -1]
    samples = [Sample(text, prompt.text, meta=prompt.meta) for text in (listed.title(), row["target"])]
    assert CommonGenRepeatPenalty().score(samples) == [-1.0, 0.0]


def test_one_concept_must_occur() -> None:
    texts = ("Summarize: it", "a dog")
    samples = [sample(text, "dog", prompt="summarize: dog") for text in texts]
    assert CommonGenRepeatPenalty().score(samples) == [-1.0, 0.0]


def test_a_prompt_of_pages_takes_no_time() -> None:
    pages = sample("a " * 50_000, *"abcde", prompt="a b " * 50_000)
    start = time.perf_counter()
    assert CommonGenRepeatPenalty().score([pages]) == [0.0]
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize("meta", [{}, {"concepts": "dog cat"}, {"concepts": [1, 2]}])
@pytest.mark.parametrize("reward", [Coverage(), CommonGenRepeatPenalty()])
def test_missing_concepts_are_named(reward: Coverage, meta: dict[str, object]) -> None:
    assert type(reward).needs_meta == ("concepts",)
    with pytest.raises(InputError, match="needs meta data 'concepts', a list of words"):
        reward.score([Sample("a", meta=meta)])
