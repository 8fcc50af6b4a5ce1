"""What a run will hold in memory, part by part: an estimate, from config.json and the weights' headers."""

from dataclasses import dataclass, replace
from typing import Literal

from learner.dropout import rates
from services.memory import (
    FROZEN_BYTES,
    LEARNER_PROCESS,
    WORKER_PROCESS,
    learner_parts,
    share_and_base,
    worker_parts,
)
from services.model_files import ModelFiles
from services.model_shape import ModelShape, num_heads, shape_of
from services.plan_arithmetic import batch
from services.plan_processes import Machine, engine_of, has_gpu, sleeps, worker_dtype
from services.settings import RunSettings

# Numbers that a layer keeps of each token for its gradient, in widths: 34 bytes at two each, attention's own
# aside, which today's kernels recompute (Korthikanti et al. 2022, arXiv 2205.05198, eq. 1).
KEPT_A_LAYER = 17
LOGITS_HELD = 3  # logits, their logarithms and the gradient
PROBABILITIES_HELD = 3  # attention's own, what is dropped out of them, and the rest: where none is recomputed
BYTES = {"float32": 4, "bfloat16": 2}

WORKER = "each worker"
Phase = Literal["rollouts", "update"]  # the halves of a synchronous iteration


@dataclass(frozen=True, slots=True)
class Amount:
    """Memory of one part of one process.

    Example: `Amount("learner", "gradients", 497_759_232.0, "", None)`; None bytes: not known from here.
    """

    where: str
    what: str
    num_bytes: float | None
    note: str = ""
    phase: Phase | None = None  # None: all the time


def num_parameters(model: ModelFiles) -> tuple[int | None, bool]:
    """Counted in the weights' headers; (…, True): estimated, since they are still on the hub."""
    if model.num_parameters is not None:
        return model.num_parameters, False
    shape = shape_of(model)
    return (None, True) if shape is None else (shape.num_parameters(), True)


def amounts(settings: RunSettings, model: ModelFiles, machine: Machine) -> list[Amount]:
    """The learner's parts, then those of each worker; nothing where the model's size is not known."""
    count, _ = num_parameters(model)
    if count is None:
        return []
    shape = shape_of(model)
    return [
        *_of_learner(settings, model, machine, count, shape),
        *_of_worker(settings, model, machine, count),
    ]


def total_bytes(found: list[Amount], num_workers: int) -> float:
    """Of all processes together, in the phase that takes more."""

    def held(phase: Phase | None) -> float:
        sizes = [(each.where, each.num_bytes or 0.0) for each in found if each.phase == phase]
        return sum(size * (num_workers if where == WORKER else 1) for where, size in sizes)

    return held(None) + max(held("rollouts"), held("update"))


def _of_learner(
    settings: RunSettings, model: ModelFiles, machine: Machine, count: int, shape: ModelShape | None
) -> list[Amount]:
    share, base = share_and_base(settings, model, count)
    processes = settings.learner.num_processes
    found = [Amount("learner", "Python, torch", processes * LEARNER_PROCESS, _of_processes(processes))]
    for what, size in learner_parts(settings, count, share, base).items():
        found.append(Amount("learner", what, size, phase="update" if what == "gradients" else None))
    if shape is None:
        return [*found, Amount("learner", "activations", None, "config.json names no width or layers")]
    tokens, bytes_each = _most_tokens(settings, model), _activation_bytes(settings, machine)
    kept = tokens * shape.width * bytes_each * _widths_kept(settings, shape, share)
    held = min(settings.learner.logits_budget, tokens * shape.vocabulary)
    note = f"at most: a micro-batch of {tokens:,} tokens"
    if settings.model.gradient_checkpointing:
        note += ", recomputed"
    logits = float(processes * LOGITS_HELD * 4 * held)
    found.append(Amount("learner", "activations", processes * kept, note, "update"))
    found.append(Amount("learner", "logits", logits, "at most", "update"))
    if _keeps_attention(settings, model, machine):
        layers = 1.0 if settings.model.gradient_checkpointing else shape.num_layers * share
        each = PROBABILITIES_HELD * 4 * layers * num_heads(model) * _longest(settings, model)
        why = "at most: dropout on a CPU keeps them"
        found.append(Amount("learner", "attention", processes * tokens * each, why, "update"))
    return found


def _keeps_attention(settings: RunSettings, model: ModelFiles, machine: Machine) -> bool:
    """Whether updates keep attention's probabilities: PyTorch's fused kernels for CPUs have no dropout."""
    drops_out = any("att" in name for name in rates(model.config))
    on_cpu = settings.learner.device == "cpu" or has_gpu(machine, settings.cluster.learner_gpus) is False
    return drops_out and on_cpu and settings.model.drops_out(settings.algorithm)


def _longest(settings: RunSettings, model: ModelFiles) -> int:
    """Tokens of the longest sequence that an update may read."""
    budget, prompt = settings.learner.token_budget, settings.rollout.max_prompt_tokens
    asked = budget if settings.plays or prompt is None else prompt + settings.rollout.max_tokens
    return min(asked, budget, model.window or budget)


def _of_processes(count: int) -> str:
    return f"in {count} processes; what follows is of all together" if count > 1 else ""


def _most_tokens(settings: RunSettings, model: ModelFiles) -> int:
    """Of a micro-batch: as many as it may have, or as all rollouts of an iteration have."""
    budget = settings.learner.token_budget
    if model.window is None or settings.plays:
        return budget
    return min(budget, batch(settings).num_rollouts * model.window)


def _widths_kept(settings: RunSettings, shape: ModelShape, share: float) -> float:
    """Of a token, in all layers. Frozen ones below the trained keep nothing; beside an adapter all do."""
    layers: float = shape.num_layers
    if not settings.model.adapter.trains:
        layers *= share
    if settings.model.gradient_checkpointing:  # each layer's input, and one layer's inside at a time
        return layers + KEPT_A_LAYER
    return KEPT_A_LAYER * layers


def _of_worker(settings: RunSettings, model: ModelFiles, machine: Machine, count: int) -> list[Amount]:
    awake = _of_worker_awake(settings, model, machine, count)
    if not sleeps(settings, machine):
        return awake
    process, *on_gpu = awake
    weights = sum(each.num_bytes or 0.0 for each in on_gpu if each.what != "KV cache")
    note = "in the host's memory, while the learner updates"
    return [
        process,
        *(replace(each, phase="rollouts") for each in on_gpu),
        Amount(WORKER, "weights, asleep", weights, note, "update"),
    ]


def _of_worker_awake(settings: RunSettings, model: ModelFiles, machine: Machine, count: int) -> list[Amount]:
    bytes_each = BYTES.get(worker_dtype(settings, machine), BYTES["float32"])
    on_gpu = has_gpu(machine, settings.cluster.worker_gpus)
    libraries = "Python, torch, vLLM" if engine_of(settings, model) == "vllm" else "Python, torch"
    found = [Amount(WORKER, libraries, WORKER_PROCESS)]
    shape, size = shape_of(model), settings.rollout.tensor_parallel_size
    of_what = f"each of {size} GPUs" if size > 1 else "a GPU"
    kept_in_gpu = f"{settings.rollout.gpu_memory_utilization:.0%} of {of_what}, all told"
    for what, amount in worker_parts(settings, count, bytes_each).items():
        if what != "KV cache":
            found.append(Amount(WORKER, what, amount))
        elif on_gpu:
            found.append(Amount(WORKER, what, None, f"the rest of {kept_in_gpu}"))
        elif engine_of(settings, model) != "vllm":
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


def _activation_bytes(settings: RunSettings, machine: Machine) -> int:
    """Of a number: half as many where the learner computes in bfloat16."""
    asked = settings.learner.autocast
    auto = settings.learner.device == "auto" and has_gpu(machine, settings.cluster.learner_gpus)
    halves = asked == "bfloat16" or (asked == "auto" and (auto or settings.learner.device == "cuda"))
    return 2 if halves else FROZEN_BYTES
