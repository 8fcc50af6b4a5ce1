"""Scores by places and records on their ways: servers, the sandbox, HTTP, the cache, the weighted sum."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from contracts.rollout import Prompt
from contracts.scores import Answer, Grade, Sample
from reward_servers.combine import weighted_sum
from reward_servers.local import LocalRewardClient
from reward_servers.server import RewardServer
from reward_servers.serving.cache import key_of
from reward_servers.serving.http import http_app
from reward_servers.settings import Part, Sandbox
from reward_servers.user_rewards.sandbox import SandboxedServer
from reward_servers.user_rewards.trial import MADE_UP, Verdict, trial_of

HERE = "tests.reward_servers.test_grades"
GRADE = Grade(((0, 1, 0.5), (2, 3, 1.0)), {"format": 1.0}, "Well.")


def graded(completions: Sequence[str]) -> list[Any]:
    return [GRADE.as_json() if text == "7 3" else 0.25 for text in completions]


def tokens(samples: Sequence[Sample]) -> list[Any]:
    return [[1.0] * len(sample.text.split()) for sample in samples]


def characters(completions: Sequence[str]) -> list[Any]:
    return [[1.0] * len(text) for text in completions]


async def awaits(completions: Sequence[str]) -> list[Any]:
    await asyncio.sleep(0)
    return [GRADE if text == "7 3" else 0.25 for text in completions]


def tenths(samples: Sequence[Sample]) -> list[Any]:
    return [[0.1] * sample.num_tokens for sample in samples]  # type: ignore[operator]


def by_answer(samples: Sequence[Sample]) -> list[Any]:
    return [Grade([float(len(answer)) for answer in sample.turns], by="turn") for sample in samples]


class Together:
    scores = "groups"

    def score(self, samples: Sequence[Sample]) -> list[Any]:
        assert all(sample.num_tokens == len(sample.text.split()) for sample in samples)
        return tenths(samples)


SAMPLES = [Sample("7 3"), Sample("8")]
ANSWERS: list[Answer] = [(GRADE, None), (0.25, None)]


@pytest.mark.parametrize("name", ["graded", "awaits"])
def test_a_server_returns_records_and_numbers_side_by_side(name: str) -> None:
    assert RewardServer(Part(name=f"{HERE}:{name}")).score(SAMPLES) == ANSWERS


def test_a_sandboxed_reward_returns_the_same() -> None:
    server = SandboxedServer(Part(name=f"{HERE}:graded"), Sandbox())
    try:
        assert server.score(SAMPLES) == ANSWERS
    finally:
        server.close()


def test_over_http_a_number_stays_a_number() -> None:
    class Remote:
        num_samples, num_cached = 0, 0

        async def score(self, samples: Sequence[Sample]) -> list[Answer]:
            assert [(sample.num_tokens, sample.turns) for sample in samples] == [(2, ("7", "3")), (None, ())]
            return [*ANSWERS, (None, "too long"), (Grade((1.0, 2.0), by="turn"), None)]

    client = TestClient(http_app({"mine": Remote()}, {}), base_url="http://127.0.0.1")
    rows = [{"text": "7\n3", "num_tokens": 2, "turns": ["7", "3"]}, {"text": "8"}]
    response = client.post("/score/mine", json={"samples": rows})
    assert response.json()["scores"] == [
        {"score": [[0, 1, 0.5], [2, 3, 1.0]], "error": None, "values": {"format": 1.0}, "comment": "Well."},
        {"score": 0.25, "error": None},
        {"score": None, "error": "too long"},
        {"score": [1.0, 2.0], "error": None, "by": "turn"},
    ]


def test_places_that_do_not_fit_cost_their_sample_alone() -> None:
    server = RewardServer(Part(name=f"{HERE}:tokens"))
    good, bad = server.score([Sample("7 3", num_tokens=2), Sample("7 3", num_tokens=3)])
    assert good == (Grade((1.0, 1.0)), None)
    assert bad[0] is None and bad[1] is not None
    phrases = ("reward tokens", "got 2 scores of tokens", "generated 3 tokens", "sample.num_tokens", "7 3")
    for phrase in phrases:
        assert phrase in bad[1]


@pytest.mark.parametrize("name", ["tenths", "by_answer", "Together", "tokens"])
def test_the_pages_scores_by_place_pass_each_trial(name: str) -> None:
    part = Part(name=f"{HERE}:{name}")
    for trial in (MADE_UP, trial_of([Prompt("p/0", "6 · 7?", ("It is 42.",))])):
        assert RewardServer(part).try_out(trial) == Verdict()
        assert LocalRewardClient([part]).try_out(trial) == []


def test_own_counts_of_tokens_are_not_compared_with_a_trials_made_up_ones() -> None:
    part = Part(name=f"{HERE}:characters")
    assert RewardServer(part).try_out(MADE_UP) == Verdict()


def test_a_text_from_a_file_has_no_tokens_and_the_refusal_says_so() -> None:
    rows = trial_of([Prompt("p/0", "6 · 7?")], generated=False)
    refusal = RewardServer(Part(name=f"{HERE}:tenths")).try_out(rows).refusal
    assert "sample.num_tokens is None, as nobody knows the tokens of a text from a file" in refusal


@pytest.mark.parametrize(
    "shaping", [{"clip": (0.0, 1.0)}, {"threshold": 0.5}, {"standardize": {"mean": 0, "std": 1}}]
)
def test_a_shaping_of_whole_texts_refuses_places_by_name(shaping: dict[str, Any]) -> None:
    part = Part(name=f"{HERE}:tokens", **shaping)
    (name,) = shaping
    message = (
        f"score() returned scores of tokens, but {name}= needs one score for the whole text; "
        f"leave out {name}="
    )
    assert message in RewardServer(part).try_out(MADE_UP).refusal
    answers = RewardServer(part).score([Sample("7 3", num_tokens=2)])
    assert answers[0][1] is not None and message in answers[0][1]


def test_parts_add_at_their_places_and_a_text_at_the_end() -> None:
    both = [Part(name=f"{HERE}:graded", weight=2.0), Part(name="length", weight=-0.5)]
    first, second = LocalRewardClient(both).submit(SAMPLES).result()
    assert (first.total, first.parts) == (2.0, {"graded": 1.5, "length": 2.0})
    assert first.earned == (Grade(((0, 1, 1.0), (2, 3, 2.0))), Grade(-1.0))
    assert first.grades == {"graded": GRADE}
    assert (second.total, second.earned, second.grades) == (0.0, (), {})


def test_a_record_without_a_score_leaves_its_part_out() -> None:
    both = [Part(name="a"), Part(name="b")]
    silent = Grade(None, comment="Not mine.")
    (score,) = weighted_sum(both, [[(silent, None)], [(0.5, None)]])
    assert (score.total, score.parts, score.grades, score.earned) == (0.5, {"b": 0.5}, {"a": silent}, ())
    (score,) = weighted_sum(both[:1], [[(silent, None)]])
    assert score.total is None and score.error is not None


def test_the_cache_tells_texts_of_other_tokens_apart() -> None:
    keys = [
        key_of(Sample("7 3", num_tokens=n, turns=turns)) for n, turns in ((2, ()), (3, ()), (2, ("7", "3")))
    ]
    assert len(set(keys)) == 3


def test_the_pages_example_scores(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/rewards.md").read_text(encoding="utf-8")
    (example,) = (
        body for body in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "import Grade" in body
    )
    (tmp_path / "noted_rewards.py").write_text(example, encoding="utf-8")
    noted, so_far = (
        RewardServer(Part(name=f"{tmp_path}/noted_rewards.py:{name}")) for name in ("noted", "so_far")
    )
    assert noted.score([Sample("7 3 7")]) == [(Grade(2.0, {"words": 3.0}, "Sevens!"), None)]
    assert so_far.score([Sample("7 3 7")]) == [(Grade(((0, 1, 1.0), (1, 3, 0.0), (3, 5, 1.0))), None)]
