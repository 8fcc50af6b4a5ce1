"""Updates' share of the GPU's operations (MFU), and their peak memory beside the plan's.

Each rollout has its own prompt, so no prompt is read once for several responses. Seconds include the scoring
passes.
"""

import gc
import statistics
from typing import Any

import torch

from benchmarks.gpu.lines import record
from benchmarks.gpu.machine import gpu_name, model, on_gpu
from benchmarks.update import rollout_of
from contracts.settings import build
from learner.distributed.cards import card_of
from learner.learner import Learner
from learner.passes.operations import Passes, products_of
from services.config.settings import RunSettings
from services.models.files import read_model
from services.models.shape import ModelShape, shape_of
from services.training.preflight.capacity.gpu_memory import Texts, learner_load
from services.training.preflight.capacity.memory_model import MemoryNeeds, share_and_base

ROUNDS = 3
GB = 1e9
COMPARED = {"kl": {"placement": "loss", "estimator": "k3", "coefficient": 0.04}}
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {  # title: (algorithm, minibatches, options)
    "GRPO, reference, 2 steps": ("grpo", 2, COMPARED),
    "GRPO, reference, 1 step": ("grpo", 1, COMPARED),
    "PPO, 2 steps": ("ppo", 2, {}),
}


def main() -> None:
    rollouts, prompt, new = (128, 128, 384) if on_gpu() else (4, 16, 16)
    batch = [rollout_of(number, number, prompt, new) for number in range(rollouts)]
    for title, (algorithm, steps, options) in CASES.items():
        run = settings(algorithm, rollouts, rollouts // steps, options)
        learner = Learner(run.model, run.algorithm, run.learner, seed=0, iterations=100)
        if on_gpu():
            torch.cuda.reset_peak_memory_stats()
        spent = [learner.update(batch) for _ in range(ROUNDS + 1)][1:]
        seconds = {
            name: statistics.median(metrics[f"time/{name}_s"] for metrics in spent)
            for name in ("score", "update")
        }
        rows = {f"{name}, s": value for name, value in seconds.items()}
        rows |= used(learner, run.passes, (rollouts, prompt, new), sum(seconds.values()))
        shape = shape_of(read_model(run.model))
        assert shape is not None
        rows |= beside_the_plan(run, shape, rollouts)
        record("training", {f"{title}: {what}": value for what, value in rows.items()})
        del learner
        gc.collect()  # it holds itself in a circle
        if on_gpu():
            torch.cuda.empty_cache()


def settings(algorithm: str, rollouts: int, minibatch_size: int, options: dict[str, Any]) -> RunSettings:
    group = 1 if algorithm == "ppo" else 2
    steps = {"name": algorithm, "num_epochs": 1, "minibatch_size": minibatch_size, **options}
    parts = {
        "algorithm": steps,
        "task": "increasing_numbers",
        "model": {"path": str(model())},
        "rollout": {"prompts_per_iteration": rollouts // group, "group_size": group},
    }
    return build(RunSettings, parts, where="")


def used(learner: Learner, passes: Passes, texts: tuple[int, int, int], seconds: float) -> dict[str, float]:
    """Return tokens a second and, for a known card, both shares of its operations.

    Args:
        texts: rollouts, and tokens of each prompt and response.
    """
    rollouts, prompt, new = texts
    length = prompt + new
    forward = products_of(learner.pair.lm).forward(rollouts * length, rollouts * new, rollouts * length**2)
    rows = {
        "tokens read a second": rollouts * length / seconds,
        "TFLOP a second, all passes": passes.operations(forward) / seconds / 1e12,
    }
    if (card := card_of(gpu_name())) is not None:
        rows["MFU of training"] = passes.trained(forward) / seconds / card.flops
        rows["MFU of all passes"] = passes.operations(forward) / seconds / card.flops
    return rows


def beside_the_plan(run: RunSettings, shape: ModelShape, rollouts: int) -> dict[str, float]:
    files = read_model(run.model)
    assert files.num_parameters is not None
    share = share_and_base(run.model, files, files.num_parameters)
    needs = MemoryNeeds(run.model, run.algorithm, run.learner, run.rollout, files.num_parameters, *share)
    load = learner_load(needs, shape, Texts(files.window, rollouts), 2 if on_gpu() else 4)
    planned = load.peak - load.always["CUDA"]
    if not on_gpu():
        return {"peak by the plan, GB": planned / GB}
    measured = float(torch.cuda.max_memory_allocated())
    return {
        "peak by the plan, GB": planned / GB,
        "peak measured, GB": measured / GB,
        "plan / measured (0.85 to 1.15)": planned / measured,
    }


if __name__ == "__main__":
    main()
