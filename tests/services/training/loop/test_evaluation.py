"""Records of an evaluation: numbers by hand, rows with RL4LMs' keys."""

import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console as Terminal

from contracts.rollout import Prompt, Sampling
from contracts.scores import Score
from services.config.evaluation_settings import EvaluationSettings
from services.config.reward_view import with_score
from services.data.tokens.prompt_tokens import PromptTokens
from services.runs.tracking.console import Console
from services.training.loop.collecting import Collector, FailureBudget
from services.training.loop.evaluations.evaluation import Evaluation, evaluate, prediction_row
from services.training.loop.statistics.at_k import AtK
from services.training.loop.statistics.rollout_statistics import reward_statistics
from services.training.sources.leasing import EVALUATION, evaluation_leases
from tests.fakes import FakeRewards, FakeWorkers, WordTokens, prompts, rollout_of


def evaluated(count: int, rewards: FakeRewards) -> Evaluation:
    leases = evaluation_leases(
        prompts(count), PromptTokens(WordTokens()), Sampling(max_tokens=4), samples=2, seed=0
    )
    console = Console(Terminal(file=io.StringIO()))
    budget = FailureBudget(10, 10)
    collector = Collector(FakeWorkers([]), rewards, budget, console, lambda: None, 1.0)
    return evaluate("validation", leases, collector)


def test_numbers_of_a_split() -> None:
    evaluation = evaluated(2, FakeRewards())  # rewards EVALUATION + 0, 1, 2, 3

    assert evaluation.metrics == {
        "reward/mean": EVALUATION + 1.5,
        "reward/std": pytest.approx((5 / 3) ** 0.5),  # squares 2.25 + 0.25 + 0.25 + 2.25, over 3
        "reward/standard_error": 1.0,  # two prompts' means, 0.5 and 2.5 more: √2 / √2
        "response_length/mean": 2.0,
        "reward/number/mean": EVALUATION + 1.5,
        "length/mean": float(len(f"text {EVALUATION}")),
        "corpus/only": 0.5,
    }


def test_one_prompt_says_nothing_of_the_error() -> None:
    evaluation = evaluated(1, FakeRewards())  # two texts of it

    assert evaluation.metrics["reward/std"] > 0
    assert "reward/standard_error" not in evaluation.metrics


def test_rows_of_a_data_set_that_share_a_prompt_are_one_draw() -> None:
    leases = evaluation_leases(
        [Prompt(f"data/train/{n}", text) for n, text in enumerate("aabb")],
        PromptTokens(WordTokens()),
        Sampling(max_tokens=4),
        samples=1,
        seed=0,
    )
    rewards = (1.0, 3.0, 5.0, 7.0)
    rollouts = [
        with_score(rollout_of(lease), Score(reward)) for lease, reward in zip(leases, rewards, strict=True)
    ]
    of_data = [replace(rollout, from_data=True) for rollout in rollouts]
    assert reward_statistics(of_data)["reward/standard_error"] == 2.0  # means 2 and 6: √8 / √2
    assert reward_statistics(rollouts)["reward/standard_error"] == pytest.approx((20 / 3) ** 0.5 / 2)


def test_rows_are_in_the_prompts_order_and_hold_every_metrics_own() -> None:
    rows = evaluated(2, FakeRewards()).rows

    assert [row["sample_id"] for row in rows] == ["p/0", "p/0", "p/1", "p/1"]  # they came back in reverse
    assert [row["generated_text"] for row in rows] == [f"text {EVALUATION + n}" for n in range(4)]
    assert rows[0]["length/mean"] == len(f"text {EVALUATION}")
    assert rows[0]["corpus/only"] == "n/a"


def test_a_sample_without_a_score_is_in_no_number_and_no_row() -> None:
    evaluation = evaluated(1, FakeRewards(fails=lambda text: text.endswith(str(EVALUATION))))

    assert [row["generated_text"] for row in evaluation.rows] == [f"text {EVALUATION + 1}"]
    assert evaluation.metrics["reward/mean"] == EVALUATION + 1
    assert evaluation.metrics["reward/std"] == 0.0  # of a single one


def test_nothing_scored_is_no_number() -> None:
    assert evaluated(1, FakeRewards(fails=lambda text: True)) == Evaluation({}, [])
    assert reward_statistics([]) == {}


def test_a_row_has_rl4lms_keys_with_all_references() -> None:
    (lease,) = evaluation_leases(
        [Prompt("p/0", "a", references=("one", "two"))],
        PromptTokens(WordTokens()),
        Sampling(max_tokens=4),
        samples=1,
        seed=0,
    )
    rollout = with_score(rollout_of(replace(lease, id=7)), Score(0.25, {"rouge": 0.5}))

    read = prediction_row("validation", rollout, lambda tokens: f"{len(tokens)} tokens")
    assert read["prompt_as_read"] == "1 tokens"
    assert list(read)[2:4] == ["prompt_text", "prompt_as_read"]
    assert prediction_row("validation", rollout) == {
        "split_name": "val",
        "sample_id": "p/0",
        "prompt_text": "a",
        "generated_text": "text 7",
        "ref_text": "<START-1>one<END-1><START-2>two<END-2>",
        "reward": 0.25,
        "reward/rouge": 0.5,
    }


class Parity(FakeRewards):
    """A text with an even number passes; its answer is its number's last digit halved."""

    def _score(self, text: str) -> Score:
        number = int(text.split()[-1])
        return Score(float(number % 2 == 0), {"number": float(number)})

    def answers(self, texts: Sequence[str]) -> list[str | None] | None:
        return [str(int(text.split()[-1]) % 4 // 2) for text in texts]


def with_at_k(rule: AtK | None, rewards: FakeRewards, samples: int = 4) -> Evaluation:
    leases = evaluation_leases(
        prompts(2), PromptTokens(WordTokens()), Sampling(max_tokens=4), samples=samples, seed=0
    )
    console = Console(Terminal(file=io.StringIO()))
    collector = Collector(FakeWorkers([]), rewards, FailureBudget(10, 10), console, lambda: None, 1.0)
    return evaluate("validation", leases, collector, at_k=rule)


def test_several_texts_of_a_prompt_give_numbers_of_their_own() -> None:
    evaluation = with_at_k(AtK(4), Parity())  # rewards 1 0 1 0, answers 0 0 1 1 of each
    assert {key: evaluation.metrics[key] for key in list(evaluation.metrics)[::2][:5]} == {
        "mean@4": 0.5,
        "pass@1": 0.5,
        "pass@2": pytest.approx(5 / 6),
        "pass@4": 1.0,
        "maj@4": 0.5,
    }
    assert evaluation.metrics["reward/mean"] == 0.5
    assert len(evaluation.rows) == 8
    assert [row["answer"] for row in evaluation.rows] == ["0", "0", "1", "1"] * 2
    assert {row["pass@4"] for row in evaluation.rows} == {1.0}


class NobodyVotes(Parity):
    def answers(self, texts: Sequence[str]) -> list[str | None] | None:
        raise AssertionError("nobody votes")


def test_a_text_per_prompt_is_evaluated_as_ever() -> None:
    evaluation = with_at_k(AtK.of(EvaluationSettings(pass_at=0.5)), NobodyVotes(), samples=1)
    assert not [key for key in (*evaluation.metrics, *evaluation.rows[0]) if "@" in key or key == "answer"]


class OnePartVotes(Parity):
    """The answers of sums are found, those of chats are not."""

    def answers(self, texts: Sequence[str], part: str | None = None) -> list[str | None] | None:
        return super().answers(texts) if part == "sums" else None


def test_a_part_without_answers_is_in_no_vote() -> None:
    two_prompts = [Prompt("s/0", "a", meta={"part": "sums"}), Prompt("c/0", "b", meta={"part": "chat"})]
    tokens, sampling = PromptTokens(WordTokens()), Sampling(max_tokens=4)
    leases = evaluation_leases(two_prompts, tokens, sampling, samples=4, seed=0)
    console = Console(Terminal(file=io.StringIO()))
    collector = Collector(FakeWorkers([]), OnePartVotes(), FailureBudget(10, 10), console, lambda: None, 1.0)
    evaluation = evaluate("validation", leases, collector, at_k=AtK(4), parts=("sums", "chat"))
    assert evaluation.metrics["maj@4"] == evaluation.metrics["parts/sums/maj@4"] == 0.5
    assert evaluation.metrics["pass@1"] == 0.5  # of both parts
    assert "parts/chat/pass@1" in evaluation.metrics and "parts/chat/maj@4" not in evaluation.metrics
    assert [row.get("answer") for row in evaluation.rows] == ["0", "0", "1", "1", None, None, None, None]
