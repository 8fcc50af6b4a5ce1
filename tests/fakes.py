"""Clients of the training loop as plain classes, which record their calls in one list."""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

from contracts.clients import PublishedWeights, Scoring, TokenNumbers
from contracts.rollout import FinishReason, Lease, Prompt, Rollout, Turn
from contracts.scores import MetricValue, Sample, Score
from contracts.weights import Probe, WeightManifest

Calls = list[tuple[str, object]]


def rollout_of(lease: Lease, version: int = 0) -> Rollout:
    """Two tokens, the text of its lease's number."""
    turn = Turn(lease.tokens, (7, 1), f"text {lease.id}", (-0.5, -1.0), (version, version))
    return Rollout(lease.id, lease.group, lease.prompt, (turn,), FinishReason.STOP)


class FakeWorkers:
    """Brings the last lease back first, one a round, with empty rounds between."""

    environment_restarts = 0
    idle_s, num_workers, num_up, num_quarantined = 0.0, 1, 1, 0

    def __init__(self, calls: Calls) -> None:
        self.calls, self.version = calls, -1
        self.submitted: list[Lease] = []
        self.before_each: Callable[[Lease], None] = lambda lease: None

    def generate(self, leases: Sequence[Lease]) -> Iterator[list[Rollout]]:
        self.calls.append(("generate", [lease.id for lease in leases]))
        for lease in reversed(leases):
            self.before_each(lease)
            yield []
            yield [rollout_of(lease, self.version)]

    def submit(self, leases: Sequence[Lease]) -> None:
        self.calls.append(("submit", [lease.id for lease in leases]))
        self.submitted += leases

    def collect(self) -> list[Rollout]:
        """The newest lease comes back first, one a call."""
        return [rollout_of(self.submitted.pop(), self.version)] if self.submitted else []

    def cancel_all(self) -> None:
        self.calls.append(("cancel_all", [lease.id for lease in self.submitted]))
        self.submitted.clear()

    def sleep(self) -> None:
        self.calls.append(("sleep", self.version))

    def scale(self, num_workers: int) -> None:
        self.calls.append(("scale", num_workers))
        self.num_workers = self.num_up = num_workers

    def logprobs(self, texts: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        return [tuple(-token / 4 for token in text[1:]) for text in texts]

    def load_weights(self, weights: PublishedWeights) -> None:
        self.version = weights.manifest.version
        self.calls.append(("load_weights", self.version))


class FakeRewards:
    """Scores a text by the number in it; `None` where `fails` says so."""

    def __init__(self, fails: Callable[[str], bool] = lambda text: False) -> None:
        self.fails = fails

    def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
        future: Future[list[Score]] = Future()
        future.set_result([self._score(sample.text) for sample in samples])
        return future

    def compute_metrics(self, samples: Sequence[Sample], part: str | None = None) -> dict[str, MetricValue]:
        rows = tuple(float(len(sample.text)) for sample in samples)
        return {"length/mean": MetricValue(sum(rows) / len(rows), rows), "corpus/only": MetricValue(0.5)}

    def answers(self, texts: Sequence[str], part: str | None = None) -> list[str | None] | None:
        return None

    def cached(self) -> dict[str, float]:
        return {"number": 0.25}

    def take_counts(self) -> dict[str, float]:
        return {}

    def scoring(self) -> Scoring:
        return Scoring()

    def _score(self, text: str) -> Score:
        if self.fails(text):
            return Score(None, error="no number to my liking")
        number = float(text.split()[-1])
        return Score(number, {"number": number})


class FakeLearner:
    """Counts its versions, and keeps them in checkpoints."""

    def __init__(self, calls: Calls) -> None:
        self.calls, self.version = calls, 0
        self.trained: list[list[int]] = []

    def update(
        self, rollouts: Sequence[Rollout], on_progress: Callable[[str, int, int], None]
    ) -> dict[str, float]:
        self.calls.append(("update", sorted(rollout.lease_id for rollout in rollouts)))
        self.trained.append(sorted(rollout.lease_id for rollout in rollouts))
        for done in range(3):
            on_progress("update", done, 2)
        self.version += 1
        return {
            "kl/mean": 0.01,
            "loss/policy": -0.2,
            "mismatch/kl": 0.0,
            "time/score_s": 0.5,
            "time/update_s": 2.0,
            "tokens/trained": 100.0,
            "rollouts/trained": float(len(rollouts)),
        }

    def token_numbers(self) -> list[TokenNumbers]:
        return []

    def restart(self, on_progress: Callable[[str, int, int], None]) -> None:
        on_progress("start", 0, 1)
        self.calls.append(("restart", self.version))
        self.version = 0

    def publish(self) -> PublishedWeights:
        self.calls.append(("publish", self.version))
        return PublishedWeights(WeightManifest(self.version, {}, 0, Probe((1,), (), 0.0)), {})

    def save(self, folder: str) -> None:
        self.calls.append(("save", self.version))
        (Path(folder) / "learner.json").write_text(json.dumps(self.version))

    def load(self, folder: str) -> None:
        self.version = json.loads((Path(folder) / "learner.json").read_text())
        self.calls.append(("load", self.version))

    def export(self, folder: str) -> None:
        self.calls.append(("export", self.version))
        (Path(folder) / "config.json").write_text("{}")


class WordTokens:
    """A tokenizer: one token a word, by its length."""

    bos_token_id: int | None = None
    eos_token_id = 1
    truncation_side = "right"

    def __call__(self, text: str, truncation: bool = False, max_length: int = 0) -> dict[str, list[int]]:
        tokens = [10 + len(word) for word in text.split()]
        if truncation:
            tokens = tokens[-max_length:] if self.truncation_side == "left" else tokens[:max_length]
        return {"input_ids": tokens}


def prompts(count: int) -> list[Prompt]:
    return [Prompt(f"p/{row}", "a" * (row + 1)) for row in range(count)]
