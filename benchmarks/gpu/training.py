"""Share of the GPU's operations that updates use (MFU), and their peak of memory beside the plan's.

The rollouts have prompts of their own, so that no prompt is read once for several responses.
"""

import gc
import statistics
from typing import Any

import torch

from benchmarks.gpu.machine import gpu_name, model, on_gpu, peak_flops
from benchmarks.outcome import publish
from benchmarks.update import rollout_of
from contracts.settings import build
from learner.learner import Learner
from services.config.settings import RunSettings
from services.models.files import read_model
from services.models.shape import ModelShape, shape_of
from services.preflight.capacity.gpu_memory import Texts, learner_load
from services.preflight.capacity.memory_model import MemoryNeeds, share_and_base

ROUNDS = 3
GB = 1e9


def main() -> None:
    rollouts, prompt, new = (128, 128, 384) if on_gpu() else (4, 16, 16)
    rows: dict[str, Any] = {}
    for algorithm in ("ppo", "grpo"):
        run = settings(algorithm, rollouts)
        learner = Learner(run.model, run.algorithm, run.learner, seed=0, iterations=100)
        batch = [rollout_of(i, i, prompt, new) for i in range(rollouts)]
        if on_gpu():
            torch.cuda.reset_peak_memory_stats()
        spent = [learner.update(batch) for _ in range(ROUNDS + 1)][1:]
        update_s = statistics.median(metrics["time/update_s"] for metrics in spent)
        read = rollouts * (prompt + new) * run.algorithm.num_epochs
        files = read_model(run.model)
        shape, title = shape_of(files), algorithm.upper()
        assert shape is not None
        rows |= {f"{title}: tokens read a second": read / update_s} | used(
            shape, read / update_s, prompt, new, title
        )
        rows |= beside_the_plan(run, shape, title, rollouts)
        del learner
        gc.collect()  # it holds itself in a circle
        if on_gpu():
            torch.cuda.empty_cache()
    publish("gpu_training", f"{rollouts} rollouts of {prompt} + {new} tokens, {gpu_name()}", rows, {})


def settings(algorithm: str, rollouts: int) -> RunSettings:
    steps = {"name": algorithm, "num_epochs": 1, "minibatch_size": rollouts // 2}
    parts = {"algorithm": steps, "task": "increasing_numbers", "model": {"path": str(model())}}
    return build(RunSettings, parts, where="")


def used(shape: ModelShape, tokens_per_s: float, prompt: int, new: int, title: str) -> dict[str, Any]:
    """Return the operations a second of passes and gradients, and their share of what the GPU can do.

    The head computes at the response's tokens alone.
    """
    attention = shape.num_layers * shape.width * (prompt + new)  # causal: half of all pairs of tokens
    head = new / (prompt + new) * shape.vocabulary * shape.width
    flops = 6 * tokens_per_s * (shape.num_layers * shape.layer_parameters + head + attention)
    peak = peak_flops(gpu_name())
    return {
        f"{title}: TFLOP a second": flops / 1e12,
        f"{title}: MFU": "this GPU's peak is not known" if peak is None else flops / peak,
    }


def beside_the_plan(run: RunSettings, shape: ModelShape, title: str, rollouts: int) -> dict[str, Any]:
    files = read_model(run.model)
    assert files.num_parameters is not None
    share = share_and_base(run.model, files, files.num_parameters)
    needs = MemoryNeeds(run.model, run.algorithm, run.learner, run.rollout, files.num_parameters, *share)
    load = learner_load(needs, shape, Texts(files.window, rollouts), 2 if on_gpu() else 4)
    planned = load.peak - load.always["CUDA"]
    if not on_gpu():
        return {f"{title}: peak by the plan, GB": planned / GB}
    measured = float(torch.cuda.max_memory_allocated())
    return {
        f"{title}: peak by the plan, GB": planned / GB,
        f"{title}: peak measured, GB": measured / GB,
        f"{title}: plan / measured (0.85 to 1.15)": planned / measured,
    }


if __name__ == "__main__":
    main()
