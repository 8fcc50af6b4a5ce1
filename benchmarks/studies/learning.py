"""Train every algorithm × {GPT, T5-like} on `increasing_numbers` from one supervised warm start.

All runs generate equally many tokens, with several seeds. Worker, learner and reward are plain classes in
this process. `python -m benchmarks.studies.learning` runs everything; names of algorithms, `--families`, `--seeds`
and `--tokens` run a part.
"""

import argparse
import json
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console

from benchmarks.models import engine_of
from benchmarks.outcome import OUT
from contracts.components import create
from contracts.rollout import Lease, MaskRule, Rollout, Sampling
from contracts.scores import Sample
from learner.algorithms import ALGORITHMS
from learner.algorithms.base import Algorithm
from reward_servers.graders.increasing_numbers import IncreasingNumbers as Reward
from rollout_workers.settings import RolloutSettings
from services.config.reward_view import with_score
from services.data.tasks.increasing_numbers import IncreasingNumbers as Task
from services.data.tokens.prompt_tokens import PromptTokens
from services.training.sources.leasing import EVALUATION, LeaseSource, evaluation_leases
from services.training.train.demo import (
    WARM_UP_ROWS,
    as_rollout,
    number_rows,
    number_tokenizer,
    save_untrained,
)

ROLLOUTS, MAX_TOKENS, TOKENS, EVAL_SAMPLES = 128, 20, 100_000, 4
WARM_UP_STEPS = {"gpt": 120, "t5": 250}
KL = {"coefficient": 0.01}
COMMON: dict[str, Any] = {"learning_rate": 1e-3, "kl": KL}
CLIPPED = {**COMMON, "num_epochs": 4, "minibatch_size": ROLLOUTS, "gamma": 1.0}
# The published defaults fine-tune large models; these fit a hundred thousand weights. Algorithms with the
# same option share its value.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", CLIPPED),
    "nlpo": ("nlpo", {**CLIPPED, "target_update_iterations": 5}),
    "nlpo, rl4lms": ("nlpo", {**CLIPPED, "compatibility": "rl4lms"}),
    "a2c": ("a2c", {**COMMON, "gamma": 1.0, "advantage_whitening": "batch"}),
    "trpo": ("trpo", {"kl": KL, "gamma": 1.0, "target_kl": 0.03, "minibatch_size": ROLLOUTS}),
    "grpo": ("grpo", {"learning_rate": 1e-3, "num_epochs": 4}),
    "rloo": ("rloo", {**COMMON, "num_epochs": 4}),
    "reinforce_pp": ("reinforce_pp", {**COMMON, "num_epochs": 4}),
    "rejection": (
        "rejection",
        {"learning_rate": 1e-3, "num_epochs": 4, "minibatch_size": 64, "top_share": 0.25},
    ),
    "supervised": ("supervised", {"learning_rate": 1e-3, "minibatch_size": ROLLOUTS}),
}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one run: validation reward before and after, and the mean training rewards."""

    name: str
    family: str
    seed: int
    before: float
    after: float
    after_masked: float | None  # with NLPO's mask, which belongs to its policy but not to the exported model
    curve: list[tuple[int, float]]  # (tokens generated, mean reward of the iteration)
    seconds: float
    metrics: dict[str, float]  # those of the last update


class Bench:
    """One family's warm start and worker; before every run the worker gets the initial weights."""

    def __init__(self, family: str, rule: MaskRule | None, factor: float = 1.0) -> None:
        from rollout_workers.worker import RolloutWorker

        self.family, self.model = family, warm_start(family)
        settings = RolloutSettings(max_concurrent=ROLLOUTS, kv_cache_gib=0.25)
        self.worker = RolloutWorker(
            str(self.model), str(self.model), None, engine_of(str(self.model)), settings, rule
        )
        self.worker.ready()
        self.reward, self.factor = Reward(), factor  # training's rewards are this many times the reward
        self.first_version = count(0, 1000)  # so that no run reuses another's cached prefixes
        self.lease_id = count(EVALUATION * 2)

    def run(self, name: str, seed: int, tokens: int, algorithm: Algorithm | None = None) -> Result:
        from learner.learner import Learner
        from learner.settings import LearnerSettings, ModelSettings

        algorithm = algorithm or algorithm_of(name)
        masked = algorithm.traits.masks
        sampling = Sampling(MAX_TOKENS, masked=masked)
        learner = Learner(
            ModelSettings(path=str(self.model), dropout=False),
            algorithm,
            LearnerSettings(),
            seed=seed,
            iterations=1000,
            sampling=sampling,
        )
        learner.version = learner.mask_version = next(self.first_version)
        group = algorithm.traits.default_group_size or 1
        task, to_tokens = Task(), PromptTokens(number_tokenizer())
        source = LeaseSource(task.prompts("train"), to_tokens, sampling, group_size=group, seed=seed)
        held_out = evaluation_leases(
            task.prompts("validation"),
            to_tokens,
            replace(sampling, masked=False),
            samples=EVAL_SAMPLES,
            seed=0,
        )
        started, rows = perf_counter(), number_rows(seed + 1)
        self.push(learner)
        before, generated, curve = self.mean_reward(held_out), 0, []
        metrics: dict[str, float] = {}
        while generated < tokens:
            if algorithm.traits.online:
                rollouts = self.generate(source.lease(ROLLOUTS // group))
                curve.append((generated, self.mean(rollouts)))
            else:
                tokenizer = number_tokenizer()
                rollouts = [as_rollout(i, next(rows), tokenizer) for i in range(ROLLOUTS)]
            generated += sum(rollout.num_generated for rollout in rollouts)
            metrics = learner.update(rollouts)
            self.push(learner)
        after, after_masked = self.mean_reward(held_out), None
        if masked:
            inside = [replace(lease, sampling=sampling) for lease in held_out]
            after_masked = self.mean_reward(inside)
        took = perf_counter() - started
        return Result(name, self.family, seed, before, after, after_masked, curve, took, metrics)

    def push(self, learner: Any) -> None:
        manifest, arrays = learner.publish("float32")
        self.worker.load_weights(manifest, arrays, learner.publish_mask("float32"))

    def mean_reward(self, leases: Sequence[Lease]) -> float:
        return self.mean(self.generate(leases))

    def mean(self, rollouts: Sequence[Rollout]) -> float:
        return statistics.fmean(rollout.total_reward for rollout in rollouts) / self.factor

    def generate(self, leases: Sequence[Lease]) -> list[Rollout]:
        """Return all scored rollouts; give the worker new lease ids, because evaluations repeat theirs."""
        renamed = {next(self.lease_id): lease for lease in leases}
        self.worker.submit([replace(lease, id=lease_id) for lease_id, lease in renamed.items()])
        rollouts: list[Rollout] = []
        while len(rollouts) < len(leases):
            rollouts += self.worker.poll(1.0).rollouts
        scores = self.reward.score([Sample(r.text, r.prompt.text, (), {}) for r in rollouts])
        from contracts.scores import Score

        return [
            with_score(
                replace(rollout, lease_id=renamed[rollout.lease_id].id), Score(self.factor * score, {})
            )
            for rollout, score in zip(rollouts, scores, strict=True)
        ]


def algorithm_of(name: str) -> Algorithm:
    kind, options = RUNS[name]
    made: Algorithm = create("algorithm", kind, options, ALGORITHMS, Algorithm)
    return made


def by_rule(names: Sequence[str]) -> dict[MaskRule | None, list[str]]:
    """Group algorithms that can share a worker, because they have no mask or the same mask."""
    names_of: dict[MaskRule | None, list[str]] = {}
    for name in names:
        algorithm = algorithm_of(name)
        rule = algorithm.mask_rule() if algorithm.traits.masks else None
        names_of.setdefault(rule, []).append(name)
    return names_of


def warm_start(family: str) -> Path:
    """Make, once, a small model that writes rows of mostly increasing numbers."""
    from learner.algorithms.supervised import Supervised
    from learner.learner import Learner
    from learner.settings import LearnerSettings, ModelSettings

    folder = OUT / f"learning-{family}"
    if (folder / "config.json").exists():
        return folder
    untrained = OUT / f"learning-{family}-untrained"
    tokenizer = save_untrained(untrained, 0) if family == "gpt" else save_untrained_t5(untrained)
    steps, rows = WARM_UP_STEPS[family], number_rows(0)
    supervised = Supervised(learning_rate=3e-3, minibatch_size=None)
    model = ModelSettings(path=str(untrained), dropout=False)
    learner = Learner(model, supervised, LearnerSettings(), seed=0, iterations=steps)
    for _ in range(steps):
        learner.update([as_rollout(i, next(rows), tokenizer) for i in range(WARM_UP_ROWS)])
    folder.mkdir(parents=True)
    learner.export(str(folder))
    return folder


def save_untrained_t5(folder: Path) -> Any:
    """Save the demo's GPT as an encoder-decoder: the same width, two layers on each side."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    tokenizer = number_tokenizer()
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=64,
        d_kv=32,
        d_ff=256,
        num_layers=2,
        num_heads=2,
        pad_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=0,
        initializer_factor=0.3,
    )
    T5ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list(RUNS), metavar="ALGORITHM")
    parser.add_argument("--families", nargs="+", default=["gpt", "t5"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--tokens", type=int, default=TOKENS)
    arguments = parser.parse_args()
    terminal, file = Console(), OUT / "learning.jsonl"
    describe = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()
    for family in arguments.families:
        for rule, names in by_rule(arguments.names).items():
            bench = Bench(family, rule)
            for name, seed in ((name, seed) for name in names for seed in arguments.seeds):
                result = bench.run(name, seed, arguments.tokens)
                line = {"commit": commit, **{f: getattr(result, f) for f in Result.__slots__}}
                with file.open("a") as opened:
                    opened.write(json.dumps(line) + "\n")
                terminal.print(
                    f"{family:4} {name:22} seed {seed}  {result.before:.3f} -> {result.after:.3f}"
                    f"   {'' if result.after_masked is None else f'masked {result.after_masked:.3f}'}"
                    f"   {result.seconds:.0f} s",
                    highlight=False,
                )


if __name__ == "__main__":
    main()
