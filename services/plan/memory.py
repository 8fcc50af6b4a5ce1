"""Estimate what a run holds in memory, part by part, from config.json and the weights' headers."""

from dataclasses import dataclass, replace
from typing import Literal

from learner.dropout import rates
from learner.settings import LearnerSettings
from services.models.files import ModelFiles
from services.models.shape import ModelShape, num_heads, shape_of
from services.preflight.deployment import Deployment
from services.preflight.memory import (
    FROZEN_BYTES,
    LEARNER_PROCESS,
    WORKER_PROCESS,
    MemoryNeeds,
)

# Numbers that a layer keeps of each token for its gradient, in widths: 34 bytes at two each, without
# attention's own, which fused kernels recompute (Korthikanti et al. 2022, arXiv 2205.05198, eq. 1).
KEPT_A_LAYER = 17
LOGITS_HELD = 3  # logits, their logarithms and the gradient
PROBABILITIES_HELD = 3  # attention's, the dropout mask and what is left: where none is recomputed
BYTES = {"float32": 4, "bfloat16": 2}

WORKER = "each worker"
Phase = Literal["rollouts", "update"]  # the halves of a synchronous iteration


@dataclass(frozen=True, slots=True)
class Amount:
    """Memory of one part of one process. `num_bytes` is None where the files do not tell.

    Example: `Amount("learner", "gradients", 497_759_232.0, phase="update")`
    """

    where: str
    what: str
    num_bytes: float | None
    note: str = ""
    phase: Phase | None = None  # None: all the time


def num_parameters(model: ModelFiles) -> tuple[int | None, bool]:
    """Count parameters in the weights' headers; (…, True): estimated, since the weights are on the hub."""
    if model.num_parameters is not None:
        return model.num_parameters, False
    shape = shape_of(model)
    return (None, True) if shape is None else (shape.num_parameters(), True)


def amounts(
    needs: MemoryNeeds, model: ModelFiles, deployed: Deployment, num_texts: int | None
) -> list[Amount]:
    """Estimate the learner's parts, then those of each worker.

    Args:
        num_texts: rollouts of an iteration; None: episodes of several turns, whose length is open.
    """
    shape = shape_of(model)
    return [*_of_learner(needs, model, deployed, shape, num_texts), *_of_worker(needs, deployed, shape)]


def total_bytes(found: list[Amount], num_workers: int) -> float:
    """Sum the bytes of all processes, in the phase that takes more."""

    def held(phase: Phase | None) -> float:
        sizes = [(each.where, each.num_bytes or 0.0) for each in found if each.phase == phase]
        return sum(size * (num_workers if where == WORKER else 1) for where, size in sizes)

    return held(None) + max(held("rollouts"), held("update"))


def _of_learner(
    needs: MemoryNeeds,
    model: ModelFiles,
    deployed: Deployment,
    shape: ModelShape | None,
    num_texts: int | None,
) -> list[Amount]:
    learner, checkpointing = needs.learner, needs.model.gradient_checkpointing
    processes = learner.num_processes
    note = f"in {processes} processes; what follows is of all together" if processes > 1 else ""
    found = [Amount("learner", "Python, torch", processes * LEARNER_PROCESS, note)]
    for what, size in needs.of_learner().items():
        found.append(Amount("learner", what, size, phase="update" if what == "gradients" else None))
    if shape is None:
        return [*found, Amount("learner", "activations", None, "config.json names no width or layers")]
    tokens = _most_tokens(learner.token_budget, model.window, num_texts)
    kept = tokens * shape.width * _activation_bytes(learner, deployed) * _widths_kept(needs, shape)
    held = min(learner.logits_budget, tokens * shape.vocabulary)
    note = f"at most: a micro-batch of {tokens:,} tokens"
    if checkpointing:
        note += ", recomputed"
    logits = float(processes * LOGITS_HELD * 4 * held)
    found.append(Amount("learner", "activations", processes * kept, note, "update"))
    found.append(Amount("learner", "logits", logits, "at most", "update"))
    if _keeps_attention(needs, model, deployed):
        layers = 1.0 if checkpointing else shape.num_layers * needs.trained_share
        longest = _longest(needs, model.window, is_open=num_texts is None)
        each = PROBABILITIES_HELD * 4 * layers * num_heads(model) * longest
        why = "at most: dropout on a CPU keeps them"
        found.append(Amount("learner", "attention", processes * tokens * each, why, "update"))
    return found


def _keeps_attention(needs: MemoryNeeds, model: ModelFiles, deployed: Deployment) -> bool:
    """Tell whether updates keep attention's probabilities: PyTorch's fused CPU kernels have no dropout."""
    drops_out = any("att" in name for name in rates(model.config))
    on_cpu = needs.learner.device == "cpu" or deployed.learner_on_gpu is False
    return drops_out and on_cpu and needs.model.drops_out(needs.algorithm)


def _longest(needs: MemoryNeeds, window: int | None, is_open: bool) -> int:
    """Return the tokens of the longest sequence that an update may read."""
    budget, prompt = needs.learner.token_budget, needs.rollout.max_prompt_tokens
    asked = budget if is_open or prompt is None else prompt + needs.rollout.max_tokens
    return min(asked, budget, window or budget)


def _most_tokens(budget: int, window: int | None, num_texts: int | None) -> int:
    """Return the most tokens of a micro-batch: its budget, or less where an iteration's texts have less."""
    if window is None or num_texts is None:
        return budget
    return min(budget, num_texts * window)


def _widths_kept(needs: MemoryNeeds, shape: ModelShape) -> float:
    """Return the widths that all layers keep of a token; frozen layers below the trained ones keep none.

    Beside an adapter all layers keep theirs.
    """
    layers: float = shape.num_layers
    if not needs.model.adapter.trains:
        layers *= needs.trained_share
    if needs.model.gradient_checkpointing:  # each layer's input, and one layer's inside at a time
        return layers + KEPT_A_LAYER
    return KEPT_A_LAYER * layers


def _of_worker(needs: MemoryNeeds, deployed: Deployment, shape: ModelShape | None) -> list[Amount]:
    awake = _of_worker_awake(needs, deployed, shape)
    if not deployed.workers_sleep:
        return awake
    process, *on_gpu = awake
    weights = sum(each.num_bytes or 0.0 for each in on_gpu if each.what != "KV cache")
    note = "in the host's memory, while the learner updates"
    return [
        process,
        *(replace(each, phase="rollouts") for each in on_gpu),
        Amount(WORKER, "weights, asleep", weights, note, "update"),
    ]


def _of_worker_awake(needs: MemoryNeeds, deployed: Deployment, shape: ModelShape | None) -> list[Amount]:
    bytes_each = BYTES[deployed.engine_dtype or "float32"]
    on_gpu = deployed.workers_on_gpu
    libraries = "Python, torch, vLLM" if deployed.engine == "vllm" else "Python, torch"
    found = [Amount(WORKER, libraries, WORKER_PROCESS)]
    size = needs.rollout.tensor_parallel_size
    of_what = f"each of {size} GPUs" if size > 1 else "a GPU"
    kept_in_gpu = f"{needs.rollout.gpu_memory_utilization:.0%} of {of_what}, all told"
    for what, amount in needs.of_worker(bytes_each).items():
        if what != "KV cache":
            found.append(Amount(WORKER, what, amount))
        elif on_gpu:
            found.append(Amount(WORKER, what, None, f"the rest of {kept_in_gpu}"))
        elif deployed.engine != "vllm":
            found.append(Amount(WORKER, what, None, "grows with the texts in progress"))
        else:
            note = (
                f"on a GPU the rest of {kept_in_gpu}"
                if on_gpu is None
                else _tokens_held(amount, shape, bytes_each)
            )
            found.append(Amount(WORKER, what, amount, note))
    return found


def _tokens_held(cache: float, shape: ModelShape | None, bytes_each: int) -> str:
    if shape is None:
        return ""
    return f"{cache / shape.cache_bytes(bytes_each):,.0f} tokens"


def _activation_bytes(learner: LearnerSettings, deployed: Deployment) -> int:
    """Return the bytes of one activation: half as many where the learner computes in bfloat16."""
    auto = learner.device == "auto" and deployed.learner_on_gpu
    halves = learner.autocast == "bfloat16" or (
        learner.autocast == "auto" and (auto or learner.device == "cuda")
    )
    return 2 if halves else FROZEN_BYTES
