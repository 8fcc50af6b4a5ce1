"""Cache of a replica: it changes nothing but speed."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.scores import Answer, Sample
from reward_servers.part_checks import is_deterministic
from reward_servers.serving.cache import AnswerCache, key_of
from reward_servers.serving.replicas import RewardReplica
from reward_servers.settings import Part, ServerSettings, parts

GRADERS = "tests.reward_servers.graders"


class Grader:
    """The length of a text; long ones fail. Writes down what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def score(self, samples: Sequence[Sample]) -> list[Answer]:
        self.asked += [sample.text for sample in samples]
        return [(None, "too long") if len(s.text) > 5 else (float(len(s.text)), None) for s in samples]


def texts(*values: str) -> list[Sample]:
    return [Sample(value) for value in values]


def test_a_text_is_graded_once_and_failures_every_time() -> None:
    async def scenario() -> None:
        grader = Grader()
        cache = AnswerCache(grader.score, size=10)
        expected = [(1.0, None), (2.0, None), (1.0, None), (None, "too long")]
        assert await cache.score(texts("a", "bb", "a", "aaaaaa")) == (expected, 1)
        assert await cache.score(texts("a", "bb", "a", "aaaaaa")) == (expected, 3)
        assert await cache.score([]) == ([], 0)
        assert grader.asked == ["a", "bb", "aaaaaa", "aaaaaa"]

    asyncio.run(scenario())


def test_the_one_not_asked_for_longest_is_forgotten() -> None:
    async def scenario() -> list[str]:
        grader = Grader()
        cache = AnswerCache(grader.score, size=2)
        for text in ("a", "b", "a", "c", "a", "b"):  # c takes b's place
            await cache.score(texts(text))
        return grader.asked

    assert asyncio.run(scenario()) == ["a", "b", "c", "b"]


def test_a_call_larger_than_the_cache_is_answered_whole() -> None:
    async def scenario() -> None:
        cache = AnswerCache(Grader().score, size=1)
        for _ in range(2):
            answers, _ = await cache.score(texts("a", "bb", "ccc", "bb"))
            assert [score for score, _ in answers] == [1.0, 2.0, 3.0, 2.0]

    asyncio.run(scenario())


def test_no_size_keeps_nothing() -> None:
    async def scenario() -> list[str]:
        grader = Grader()
        cache = AnswerCache(grader.score, size=0)
        for _ in range(2):
            assert await cache.score(texts("a", "a")) == ([(1.0, None)] * 2, 0)
        return grader.asked

    assert asyncio.run(scenario()) == ["a"] * 4


@pytest.mark.parametrize(
    "other",
    [
        Sample("a", prompt="p", references=("r",), meta={"k": [1]}),
        Sample("t", prompt="a", references=("r",), meta={"k": [1]}),
        Sample("t", prompt="p", references=("r", ""), meta={"k": [1]}),
        Sample("t", prompt="p", references=("r",), meta={"k": [True]}),
        Sample("t", prompt="p", references=("r",)),
        Sample("t\ud800", prompt="p", references=("r",), meta={"k": [1]}),
    ],
)
def test_everything_that_a_grader_is_shown_tells_samples_apart(other: Sample) -> None:
    sample = Sample("t", prompt="p", references=("r",), meta={"k": [1]})
    assert key_of(sample) == key_of(Sample("t", "p", ("r",), {"k": [1]}))
    assert key_of(sample) != key_of(other)


def test_the_same_text_in_another_group_is_the_same_sample() -> None:
    async def scenario() -> list[str]:
        grader = Grader()
        cache = AnswerCache(grader.score, size=10)
        for group in ("train/1", "train/2", "validation/1"):
            await cache.score([Sample("a", group=group), Sample("b", group=group)])
        return grader.asked

    assert asyncio.run(scenario()) == ["a", "b"]


def test_what_json_does_not_know_is_graded_each_time() -> None:
    async def scenario() -> list[str]:
        grader = Grader()
        cache = AnswerCache(grader.score, size=10)
        odd: list[Any] = [Sample("a", meta={"k": object()}), Sample("b", meta={"k": {1, 2}}), Sample("c")]
        for _ in range(2):
            answers, _ = await cache.score(odd)
            assert [score for score, _ in answers] == [1.0, 1.0, 1.0]
        return grader.asked

    assert key_of(Sample("a", meta={"k": object()})) is None
    assert asyncio.run(scenario()) == ["a", "b", "c", "a", "b"]


@given(st.lists(st.lists(st.sampled_from(["a", "bb", "ccc", "dddddd", "é", "\ud800"]))), st.integers(0, 4))
def test_no_cache_changes_an_answer(calls: list[list[str]], size: int) -> None:
    async def scenario() -> None:
        cache, plain = AnswerCache(Grader().score, size), Grader()
        for call in calls:
            answers, num_cached = await cache.score(texts(*call))
            assert answers == await plain.score(texts(*call))
            assert 0 <= num_cached <= len(call)

    asyncio.run(scenario())


def test_only_deterministic_rewards_are_remembered() -> None:
    async def twice(name: str, **options: Any) -> int:
        (part,) = parts({"name": f"{GRADERS}:{name}", "label": "graded"})
        replica = RewardReplica(part, ServerSettings(**options))
        await replica.score(texts("fine"))
        return (await replica.score(texts("fine"))).num_cached

    assert asyncio.run(twice("Words")) == 1
    assert asyncio.run(twice("Words", cache_size=0)) == 0
    assert asyncio.run(twice("Moody")) == 0  # says that it is not
    assert asyncio.run(twice("Ranked")) == 0  # as everything has to that reads groups


@pytest.mark.parametrize("name", ["code_tests", "format", "math", "reasoning_gym"])
def test_a_score_that_a_time_limit_may_have_set_is_not_kept(name: str) -> None:
    assert not is_deterministic(Part(name=name))
    assert is_deterministic(Part(name="length"))
