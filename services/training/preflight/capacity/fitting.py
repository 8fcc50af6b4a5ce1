"""Choose open settings so that a run fits onto its GPUs; reject a run that can't fit, with the memory needed.

The choice covers checkpointing, the token budget, vLLM's share, and sleep if a learner's process and a worker
share a GPU. It never changes options that the user set. Without GPUs of known size it changes nothing.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from services.models.shape import ModelShape
from services.training.preflight.capacity.gpu_memory import (
    CONTEXT,
    USABLE,
    Load,
    Texts,
    learner_load,
    worker_least,
)
from services.training.preflight.capacity.memory_model import MemoryNeeds
from services.training.preflight.deployment import Deployment

BUDGETS = (16384, 8192, 4096, 2048, 1024)
ENOUGH = 4096  # tokens; below, recomputing activations costs less than small matrix products
SHARE, MOST_SHARE = 0.85, 0.92  # share of a GPU for vLLM, if no other process uses it

Options = Mapping[str, Any]  # by key: {"learner.token_budget": 4096}


@dataclass(frozen=True, slots=True)
class Fit:
    """Chosen options, and the resulting memory of a GPU.

    Example: with `chosen={"rollout.sleep": True, "rollout.gpu_memory_utilization": 0.53}` the words are "of
    24.0 GB the learner takes 9.0 GB while texts are written and 20.3 GB in updates (…); a worker …".
    """

    chosen: Options
    learner: Load
    worker_bytes: float  # vLLM's share
    workers_beside: int  # workers on the GPU of a learner's process
    gpu_bytes: float
    sleeps: bool

    @property
    def words(self) -> str:
        """Return the memory of a GPU in words, in GB."""
        where = "beside it" if self.workers_beside else "on a GPU of its own"
        asleep = ", asleep in updates" if self.sleeps else ""
        return (
            f"of {_gb(self.gpu_bytes)} the learner takes {_gb(self.learner.rest)} while texts are written "
            f"and {_gb(self.learner.peak)} in updates ({self.learner}); a worker {where} takes "
            f"{_gb(self.worker_bytes)}{asleep}"
        )


@dataclass(frozen=True, slots=True)
class Misfit:
    """Last choice that was tried, and why it does not fit."""

    learner: Load
    worker_least: float
    gpu_bytes: float

    @property
    def words(self) -> str:
        return (
            f"a GPU has {_gb(self.gpu_bytes)}; the learner takes at least {_gb(self.learner.rest)} while "
            f"texts are written and {_gb(self.learner.peak)} in updates ({self.learner}), and a worker "
            f"{_gb(self.worker_least)}"
        )


def fit(needs: MemoryNeeds, shape: ModelShape, texts: Texts, deployed: Deployment) -> Fit | Misfit:
    """Return the first choice that fits, the fastest first; a Misfit of the last choice if none fits.

    Args:
        deployed: deployment on a machine whose GPU memory is known.
    """
    gpu_bytes = deployed.machine.gpu_bytes
    assert gpu_bytes is not None, "the GPUs' memory is unknown"
    least = worker_least(needs, shape, texts, deployed)
    load = None
    for chosen in _candidates(needs):
        changed = with_options(needs, chosen)
        load = learner_load(changed, shape, texts, _bytes_each(changed))
        share_and_sleep = _beside(changed, load, least, deployed)
        if share_and_sleep is not None:
            share, sleeps = share_and_sleep
            chosen = chosen | _given_or(changed, share, sleeps)
            beside = deployed.placement.workers_beside_a_learner
            return Fit(chosen, load, share * gpu_bytes, beside, gpu_bytes, sleeps)
    assert load is not None, "at least one candidate was tried"
    return Misfit(load, least, gpu_bytes)


def with_options(needs: MemoryNeeds, options: Options) -> MemoryNeeds:
    """Return the needs of the same run with other options of model, learner and rollout."""
    for section in ("model", "learner", "rollout"):
        of_section = {key.partition(".")[2]: v for key, v in options.items() if key.startswith(f"{section}.")}
        if of_section:
            needs = replace(needs, **{section: getattr(needs, section).model_copy(update=of_section)})
    return needs


def _candidates(needs: MemoryNeeds) -> Iterator[dict[str, Any]]:
    """Yield choices of checkpointing and token budget, the fastest first."""
    learner, model = needs.learner, needs.model
    budgets = (learner.token_budget,) if "token_budget" in learner.model_fields_set else BUDGETS
    both: tuple[bool, ...] = (False, True)
    # A trust region needs forward-mode derivatives, which can't pass recomputed layers.
    if "gradient_checkpointing" in model.model_fields_set or needs.algorithm.traits.update == "trust_region":
        both = (model.gradient_checkpointing,)
    for recomputes in both:
        for budget in budgets:
            if recomputes or len(both) == 1 or len(budgets) == 1 or budget >= ENOUGH:
                chosen = {"learner.token_budget": budget, "model.gradient_checkpointing": recomputes}
                kept = {"learner.token_budget": learner.token_budget}
                kept["model.gradient_checkpointing"] = model.gradient_checkpointing
                yield {key: value for key, value in chosen.items() if value != kept[key]}


def _beside(needs: MemoryNeeds, load: Load, least: float, deployed: Deployment) -> tuple[float, bool] | None:
    """Return vLLM's share of a GPU and whether it sleeps; None if learner and workers do not fit."""
    placed, gpu = deployed.placement, float(deployed.machine.gpu_bytes or 0)
    rollout, beside = needs.rollout, deployed.placement.workers_beside_a_learner
    graders = sum(wanted * count for wanted, count in placed.rewards if wanted < 1)
    usable = (USABLE - (graders if graders < 1 else 0)) * gpu
    together = max(beside, int(1 / placed.worker.num_gpus + 1e-9)) if 0 < placed.worker.num_gpus < 1 else 1
    together = min(together, placed.num_workers)
    shares = [SHARE / together] + ([MOST_SHARE] if together == 1 else [])
    sleeps = rollout.sleep
    if "sleep" not in rollout.model_fields_set:
        sleeps = beside > 0 and not rollout.max_staleness
    awake = load.rest if sleeps else load.peak
    if beside:
        left = (usable - awake) / beside - CONTEXT
        shares = [min(SHARE / together, math.floor(100 * left / gpu) / 100)]
    if "gpu_memory_utilization" in rollout.model_fields_set:
        shares = [rollout.gpu_memory_utilization]
    for share in shares:
        writing = awake + beside * (CONTEXT + share * gpu) if beside else load.rest
        updating = load.peak + (beside * CONTEXT if sleeps else 0)
        if max(writing, updating) <= usable and least <= share * gpu <= gpu:
            return share, sleeps
    return None


def _given_or(needs: MemoryNeeds, share: float, sleeps: bool) -> dict[str, Any]:
    """Return vLLM's share and sleep, as far as they differ from the settings."""
    chosen = {"rollout.gpu_memory_utilization": round(share, 2), "rollout.sleep": sleeps}
    rollout = {"gpu_memory_utilization": needs.rollout.gpu_memory_utilization, "sleep": needs.rollout.sleep}
    return {key: value for key, value in chosen.items() if value != rollout[key.partition(".")[2]]}


def _bytes_each(needs: MemoryNeeds) -> int:
    return 4 if needs.learner.autocast == "none" else 2


def _gb(size: float) -> str:
    """
    >>> _gb(24e9)
    '24.0 GB'
    """
    return f"{size / 1e9:.1f} GB"
