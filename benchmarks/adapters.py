"""(m) LoRA, QLoRA and full training with PPO on 98 million parameters: memory, trained parameters, speed."""

from statistics import median
from typing import Any

import torch

from benchmarks.models import llama_100m
from benchmarks.outcome import in_turns, publish, ratio
from benchmarks.shared_trunk import random_rollouts
from learner.algorithms.ppo import PPO
from learner.learner import Learner
from learner.models.adapter_settings import AdapterSettings
from learner.models.quantization import base_sizes
from learner.settings import LearnerSettings, ModelSettings

NUM_ROLLOUTS, ROUNDS = 4, 3
KINDS = ("none", "lora", "qlora")
NAMES = {"none": "full", "lora": "LoRA", "qlora": "QLoRA"}


def main() -> None:
    torch.set_num_threads(1)
    learners = {NAMES[kind]: _learner(kind) for kind in KINDS}
    rows: dict[str, Any] = {}
    for name, learner in learners.items():
        linear, rest = base_sizes(learner.pair.lm)
        rows[f"{name}: base's linear layers, bytes a parameter"] = linear.num_bytes / linear.num_parameters
        rows[f"{name}: base's linear layers; embeddings, norms and head, MB"] = (
            f"{linear.num_bytes / 1e6:.1f}; {rest.num_bytes / 1e6:.1f}"
        )
        rows[f"{name}: parameters that train"] = sum(
            p.numel() for p in learner.pair.parameters() if p.requires_grad
        )
    rollouts = random_rollouts(NUM_ROLLOUTS)

    def speed(learner: Learner) -> float:
        metrics = learner.update(rollouts)
        return metrics["tokens/trained"] / metrics["time/update_s"]

    speeds = in_turns({name: lambda one=one: speed(one) for name, one in learners.items()}, ROUNDS)  # type: ignore[misc]
    rows |= {f"{name}: response tokens trained a second": median(values) for name, values in speeds.items()}
    rows |= {
        f"{name}: of full training's tokens a second": ratio(speeds[name], speeds["full"])
        for name in ("LoRA", "QLoRA")
    }
    for name, learner in learners.items():
        state = [t for entry in learner.optimizer.state.values() for t in entry.values()]
        rows[f"{name}: optimiser's numbers, MB"] = sum(t.nbytes for t in state) / 1e6
        rows[f"{name}: pushed to a worker, MB"] = learner.publish("float32")[0].num_bytes / 1e6
    publish("adapters", "adapters: PPO, 1 epoch, 98 million parameters, rank 16", rows, speeds)


def _learner(kind: Any) -> Learner:
    return Learner(
        ModelSettings(path=str(llama_100m()), adapter=AdapterSettings(kind=kind)),
        PPO(num_epochs=1),
        LearnerSettings(device="cpu", num_threads=1),
        seed=0,
        iterations=1000,
    )


if __name__ == "__main__":
    main()
