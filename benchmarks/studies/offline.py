"""A-LoL's family, NLL, WBC and R-GOLD on a data set with a known best policy, from one warm start.

benchmarks/studies/offline_data.py makes the data set. The warm start imitates all of it, and supplies the
reference's log-probabilities. A value head trained on its answers' rewards supplies the values.
Everything runs twice, the second time with half of the rewards shuffled among the rows.

`python -m benchmarks.studies.offline` runs everything; names of runs and `--seeds` run a part.
`python -m benchmarks.studies.offline_report` writes benchmarks/out/offline.md from the results so far.
"""

import argparse
import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from benchmarks.outcome import OUT
from benchmarks.studies.offline_data import (
    END,
    WORDS,
    annotated,
    corrupted,
    known_of,
    make_data,
    mean_reward,
    with_rewards,
)
from contracts.components import create
from contracts.rollout import Rollout
from learner.algorithms import ALGORITHMS
from learner.algorithms.base import Algorithm
from learner.algorithms.nll import NLL
from learner.algorithms.offline import Offline
from learner.learner import Learner
from learner.settings import LearnerSettings, ModelSettings
from services.models.new_tokenizer import word_tokenizer

FOUND = OUT / "offline.jsonl"
BATCH, STEPS, WARM_UP_STEPS = 32, 400, 1500
COMMON: dict[str, Any] = {"learning_rate": 5e-4, "minibatch_size": BATCH, "max_grad_norm": 1.0}
# Every run takes the same number of steps with the same number of answers.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "nll": ("nll", {}),
    "nll, positive advantages": ("nll", {"sampling_strategy": "good_random"}),
    "wbc": ("wbc", {}),
    "wbc, priority": ("wbc", {"sampling_strategy": "good_priority"}),
    "r_gold": ("r_gold", {}),
    "r_gold, priority": ("r_gold", {"sampling_strategy": "good_priority"}),
    "r_lol": ("r_lol", {}),
    "a_lol": ("a_lol", {}),
    "a_lol, priority": ("a_lol", {"sampling_strategy": "good_priority"}),
    "a_lol_seq": ("a_lol_seq", {}),
    "a_lol_seq, priority": ("a_lol_seq", {"sampling_strategy": "good_priority"}),
    "a_lol_ref_free": ("a_lol_ref_free", {}),
    "a_lol_kl": ("a_lol_kl", {"kl_beta": 0.05}),
    "a_lol_kl, unbiased": ("a_lol_kl", {"kl_beta": 0.05, "kl_form": "unbiased"}),
}


@dataclass(frozen=True, slots=True)
class Result:
    """One run's mean rewards on new prompts, sampled and greedy."""

    name: str
    corrupted: bool
    seed: int
    before: float
    sampled: float
    greedy: float
    share_dropped: float
    seconds: float
    commit: str


def warm_start(data: Sequence[Rollout]) -> Path:
    """Make, once, a Llama of a hundred thousand weights that imitates the data set."""
    folder, untrained = OUT / "offline-warm", OUT / "offline-untrained"
    if (folder / "config.json").exists():
        return folder
    save_untrained(untrained)
    algorithm = NLL(learning_rate=3e-3, minibatch_size=BATCH, max_grad_norm=1.0, reduction="mean")
    learner = train(untrained, algorithm, data, seed=0, steps=WARM_UP_STEPS, lr_schedule="cosine")
    learner.export(str(folder))
    return folder


def save_untrained(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    word_tokenizer(WORDS, "<pad>", eos_token="<end>", pad_token="<pad>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def train(
    model: Path, algorithm: Offline, data: Sequence[Rollout], *, seed: int, steps: int, **settings: Any
) -> Learner:
    learner = Learner(
        ModelSettings(path=str(model)),
        algorithm,
        LearnerSettings(device="cpu", **settings),
        seed=seed,
        iterations=steps,
    )
    rows = drawn(algorithm, data, seed)
    for _ in range(steps):
        # An answer sampled twice makes two rollouts.
        learner.update([replace(next(rows), lease_id=i, group=i) for i in range(BATCH)])
    return learner


def drawn(algorithm: Offline, data: Sequence[Rollout], seed: int) -> Iterator[Rollout]:
    """Yield the algorithm's choice of rollouts, epoch after epoch."""
    rewards_M, values_M = known_of(data)
    epoch = 0
    while True:
        chosen = algorithm.select_epoch(rewards_M, values_M, seed=seed, epoch=epoch)
        yield from (data[place] for place in chosen.order_E)
        epoch += 1


def run(
    name: str,
    seed: int,
    model: Path,
    data: Sequence[Rollout],
    before: float,
    *,
    is_corrupted: bool,
    steps: int = STEPS,
) -> Result:
    started, (kind, options) = perf_counter(), RUNS[name]
    algorithm: Offline = create("algorithm", kind, COMMON | options, ALGORITHMS, Algorithm)
    if is_corrupted:
        data = with_rewards(data, corrupted(known_of(data)[0], seed))
    dropped = algorithm.select_epoch(*known_of(data), seed=seed, epoch=0).share_dropped
    learner = train(model, algorithm, data, seed=seed, steps=steps)
    learner.pair.eval()
    return Result(
        name,
        is_corrupted,
        seed,
        before,
        mean_reward(learner.pair.lm, sampled=True),
        mean_reward(learner.pair.lm, sampled=False),
        dropped,
        perf_counter() - started,
        commit(),
    )


def commit() -> str:
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    return git.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="*", default=list(RUNS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    rows = make_data()
    model = warm_start(rows)
    data, pair, explained = annotated(rows, model)
    before = mean_reward(pair.lm, sampled=True)
    print(f"warm start {before:.3f}, its values explain {explained:.0%} of held-out prompts' rewards")
    for seed in arguments.seeds:
        for name in arguments.runs:
            for is_corrupted in (False, True):
                result = run(name, seed, model, data, before, is_corrupted=is_corrupted)
                with FOUND.open("a") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
                print(result, flush=True)


if __name__ == "__main__":
    main()
