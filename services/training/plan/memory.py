"""Estimate the memory of each part of a run from config.json and the weights' headers."""

from dataclasses import dataclass, replace
from typing import Literal

from learner.models.dropout import rates
from learner.settings import LearnerSettings
from rollout_workers.engines.traits import traits_of
from services.models.files import ModelFiles
from services.models.shape import ModelShape, num_heads, shape_of
from services.training.preflight.capacity.memory_model import (
    FROZEN_BYTES,
    LEARNER_PROCESS,
    WORKER_PROCESS,
    MemoryNeeds,
    cpu_pass_bytes,
    longest_text,
    most_tokens,
    pass_bytes,
)
from services.training.preflight.deployment import Deployment

PROBABILITIES_HELD = 3  # attention's probabilities, dropout mask and output, unless they are recomputed
BYTES = {"float32": 4, "bfloat16": 2}

WORKER = "each worker"
Phase = Literal["rollouts", "update"]  # the halves of a synchronous iteration


@dataclass(frozen=True, slots=True)
class Amount:
    """Memory of one part of one process. `num_bytes` is None if the files don't say.

    Example: `Amount("learner", "gradients", 497_759_232.0, phase="update")`
    """

    where: str
    what: str
    num_bytes: float | None
    note: str = ""
    phase: Phase | None = None  # None: all the time


def amounts(
    needs: MemoryNeeds, model: ModelFiles, deployed: Deployment, num_texts: int | None
) -> list[Amount]:
    """Estimate the learner's parts, then those of each worker.

    Args:
    num_texts: rollouts of an iteration; None: episodes of several turns, whose length is unknown.
    """
    shape = shape_of(model)
    return [*_of_learner(needs, model, deployed, shape, num_texts), *_of_worker(needs, deployed, shape)]


def total_bytes(all_amounts: list[Amount], num_workers: int) -> float:
    """Sum the bytes of all processes in the phase that takes more memory."""

    def held(phase: Phase | None) -> float:
        sizes = [(amount.where, amount.num_bytes or 0.0) for amount in all_amounts if amount.phase == phase]
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
    learner_amounts = [Amount("learner", "Python, torch", processes * LEARNER_PROCESS, note)]
    for what, size in needs.of_learner().items():
        learner_amounts.append(Amount("learner", what, size, phase="update" if what == "gradients" else None))
    if shape is None:
        return [
            *learner_amounts,
            Amount("learner", "activations", None, "config.json names no width or layers"),
        ]
    tokens = most_tokens(learner.token_budget, model.window, num_texts)
    bytes_each, on_cpu = computes_with(learner, deployed), _on_cpu(learner, deployed)
    note = f"at most: a micro-batch of {tokens:,} tokens"
    notes = {"activations": note + (", recomputed" if checkpointing else ""), "logits": "at most"}
    if on_cpu:
        passes = cpu_pass_bytes(needs, shape, tokens, bytes_each)
    else:
        passes = pass_bytes(needs, shape, tokens, bytes_each, on_cpu=False)
    for what, size in passes.items():
        if size:
            learner_amounts.append(Amount("learner", what, processes * size, notes.get(what, ""), "update"))
    if _keeps_attention(needs, model, deployed):
        layers = 1.0 if checkpointing else shape.num_layers * needs.trained_share
        longest = longest_text(needs, model.window, is_open=num_texts is None)
        per_token = PROBABILITIES_HELD * 4 * layers * num_heads(model) * longest
        why = "at most: dropout on a CPU keeps them"
        learner_amounts.append(Amount("learner", "attention", processes * tokens * per_token, why, "update"))
    return learner_amounts


def _keeps_attention(needs: MemoryNeeds, model: ModelFiles, deployed: Deployment) -> bool:
    """Tell whether updates keep attention's probabilities. PyTorch's fused CPU kernels have no dropout."""
    drops_out = any("att" in name for name in rates(model.config))
    return drops_out and _on_cpu(needs.learner, deployed) and needs.model.drops_out(needs.algorithm)


def _on_cpu(learner: LearnerSettings, deployed: Deployment) -> bool:
    return learner.device == "cpu" or deployed.learner_on_gpu is False


def _of_worker(needs: MemoryNeeds, deployed: Deployment, shape: ModelShape | None) -> list[Amount]:
    awake = _of_worker_awake(needs, deployed, shape)
    if not deployed.workers_sleep:
        return awake
    process, *on_gpu = awake
    weights = sum(amount.num_bytes or 0.0 for amount in on_gpu if amount.what != "KV cache")
    note = "in the host's memory, while the learner updates"
    return [
        process,
        *(replace(amount, phase="rollouts") for amount in on_gpu),
        Amount(WORKER, "weights, asleep", weights, note, "update"),
    ]


def _of_worker_awake(needs: MemoryNeeds, deployed: Deployment, shape: ModelShape | None) -> list[Amount]:
    bytes_each = BYTES[deployed.engine_dtype or "float32"]
    on_gpu = deployed.workers_on_gpu
    engine = traits_of(deployed.engine)
    libraries = f"Python, torch, {engine.title}" if engine.package else "Python, torch"
    worker_amounts = [Amount(WORKER, libraries, WORKER_PROCESS)]
    size = needs.rollout.tensor_parallel_size
    of_what = f"each of {size} GPUs" if size > 1 else "a GPU"
    kept_in_gpu = f"{needs.rollout.gpu_memory_utilization:.0%} of {of_what}, all told"
    for what, amount in needs.of_worker(bytes_each).items():
        if what != "KV cache":
            worker_amounts.append(Amount(WORKER, what, amount))
        elif on_gpu:
            worker_amounts.append(Amount(WORKER, what, None, f"the rest of {kept_in_gpu}"))
        elif not engine.reserves_cache:
            worker_amounts.append(Amount(WORKER, what, None, "grows with the texts in progress"))
        else:
            note = (
                f"on a GPU the rest of {kept_in_gpu}"
                if on_gpu is None
                else _tokens_held(amount, shape, bytes_each)
            )
            worker_amounts.append(Amount(WORKER, what, amount, note))
    return worker_amounts


def _tokens_held(cache: float, shape: ModelShape | None, bytes_each: int) -> str:
    if shape is None:
        return ""
    return f"{cache / shape.cache_bytes(bytes_each):,.0f} tokens"


def computes_with(learner: LearnerSettings, deployed: Deployment) -> int:
    """Return the bytes of one activation: 2 if the learner computes in half precision."""
    auto = learner.device == "auto" and deployed.learner_on_gpu
    halves = learner.autocast in ("bfloat16", "float16") or (
        learner.autocast == "auto" and (auto or learner.device == "cuda")
    )
    return 2 if halves else FROZEN_BYTES
