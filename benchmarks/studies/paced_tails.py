"""Compare two orders of training on a paced engine and learner; one text in 64 is twenty times longer.

A step of the engine writes a token of each of at most 128 texts and takes `STEP_S`, an update `UPDATE_S`.
Both sleep, so processors are idle and only the order decides. Sources of batches, leases and bound are a
run's. `python -m benchmarks.studies.paced_tails` prints trained tokens a second as ratios to
whole iterations one version ahead, and how old the tokens were.
"""

import argparse
import io
import statistics
import time
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from rich.console import Console as Terminal

from contracts.clients import Scoring
from contracts.rollout import FinishReason, Lease, Prompt, Rollout, Sampling
from contracts.scores import Sample, Score
from contracts.turn import Turn
from learner.algorithms.grpo import GRPO
from services.runs.tracking.console import Console
from services.training.loop.batches import BatchSource
from services.training.loop.collecting import Collector, FailureBudget
from services.training.loop.finished_groups import FinishedGroups
from services.training.loop.rollout_stream import RolloutStream
from services.training.sources.leasing import LeaseSource

SHORT, LONG, RARE = 12, 240, 64  # tokens of a text; one in RARE is long
PROMPTS, GROUP, AT_ONCE = 8, 8, 128
STEP_S, UPDATE_S, LOOK_S = 0.004, 0.08, 0.01
WARM_UP, ITERATIONS = 8, 64
KINDS = {
    "leased, 1": ("leased", 1),
    "leased, 3": ("leased", 3),
    "leased, 6": ("leased", 6),
    "finished, 3": ("finished", 3),
    "finished, 6": ("finished", 6),
}


@dataclass(slots=True)
class Written:
    """An unfinished text."""

    lease: Lease
    length: int
    begun_at: float


class PacedEngine:
    """A `FleetClient` of one worker whose texts all grow by one token a step."""

    environment_restarts = 0
    idle_s, num_workers, num_up, num_quarantined = 0.0, 1, 1, 0

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._changed_at: list[float] = []  # times at which the versions 1, 2, … came
        self._waiting: list[Lease] = []
        self._active: list[Written] = []

    def load(self) -> None:
        """Take the next version of the weights."""
        self._changed_at.append(time.perf_counter())

    def submit(self, leases: Sequence[Lease]) -> None:
        self._waiting += leases
        self._admit(time.perf_counter())

    def collect(self) -> list[Rollout]:
        now = time.perf_counter()
        done = [text for text in self._active if now - text.begun_at >= text.length * STEP_S]
        self._active = [text for text in self._active if text not in done]
        self._admit(now)
        return [self._rollout(text) for text in done]

    def cancel_all(self) -> None:
        self._waiting, self._active = [], []

    def _admit(self, now: float) -> None:
        while self._waiting and len(self._active) < AT_ONCE:
            lease = self._waiting.pop(0)
            is_long = np.random.default_rng((self._seed, lease.id)).random() < 1 / RARE
            self._active.append(Written(lease, LONG if is_long else SHORT, now))

    def _rollout(self, text: Written) -> Rollout:
        times = [text.begun_at + step * STEP_S for step in range(text.length)]
        zeros, versions = (0.0,) * text.length, tuple(bisect_right(self._changed_at, at) for at in times)
        turn = Turn(text.lease.tokens, (7,) * text.length, "text", zeros, versions)
        return Rollout(text.lease.id, text.lease.group, text.lease.prompt, (turn,), FinishReason.STOP)


class AtOnce:
    """Rewards that take no time."""

    def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
        future: Future[list[Score]] = Future()
        future.set_result([Score(1.0, {"one": 1.0})] * len(samples))
        return future

    def scoring(self) -> Scoring:
        return Scoring()


def source(order: str, max_staleness: int, engine: PacedEngine, iterations: int) -> BatchSource:
    prompts = [Prompt(f"train/{number}", "?") for number in range(1000)]
    leases = LeaseSource(prompts, lambda _: (1,), Sampling(max_tokens=LONG), group_size=GROUP, seed=0)
    console = Console(Terminal(file=io.StringIO()))
    collector = Collector(engine, AtOnce(), FailureBudget(0, 0), console, lambda: None, 60.0)
    parts = leases, PROMPTS, collector, engine, ()
    if order == "leased":
        return RolloutStream(*parts, max_staleness=max_staleness, iterations=iterations)
    return FinishedGroups(
        *parts, GRPO(), max_staleness=max_staleness, iterations=iterations, max_concurrent=AT_ONCE
    )


def measured(kind: str, seed: int, iterations: int) -> dict[str, float]:
    """Train; return the trained tokens a second, and their age, over the counted iterations."""
    engine = PacedEngine(seed)
    batches = source(*KINDS[kind], engine, iterations)
    tokens, ages, oldest, started, described = 0, [], 0, 0.0, {}
    for done in range(iterations):
        if done == WARM_UP:
            started = time.perf_counter()
        batch = batches.next(done)
        until = time.perf_counter() + UPDATE_S
        while (left := until - time.perf_counter()) > 0:
            time.sleep(min(LOOK_S, left))
            batches.attend()
        engine.load()
        batches.prepare(done + 1)
        described = batches.describe(batch, 1.0)
        if done >= WARM_UP:
            tokens += sum(rollout.num_generated for rollout in batch.rollouts)
            versions = [
                v for rollout in batch.rollouts for turn in rollout.turns for v in turn.weight_versions
            ]
            ages.append(done - statistics.fmean(versions))
            oldest = max(oldest, done - min(versions))
    return {
        "tokens a second": tokens / (time.perf_counter() - started),
        "age": statistics.fmean(ages),
        "oldest": float(oldest),
        "length ratio": described.get("order/length_ratio", 1.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    arguments = parser.parse_args()
    runs_of: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for seed in range(arguments.seeds):
        for kind, runs in runs_of.items():
            runs.append(measured(kind, seed, arguments.iterations))
    base = runs_of[next(iter(KINDS))]
    print("order, max_staleness   tokens a second (ratio)   mean age   oldest   length ratio")
    for kind, runs in runs_of.items():
        pairs = zip(runs, base, strict=True)
        ratios = [mine["tokens a second"] / theirs["tokens a second"] for mine, theirs in pairs]
        error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
        means = [statistics.fmean(run[key] for run in runs) for key in ("age", "oldest", "length ratio")]
        print(f"{kind:22} {statistics.fmean(ratios):.2f} ± {error:.2f}", *(f"{mean:10.2f}" for mean in means))


if __name__ == "__main__":
    main()
