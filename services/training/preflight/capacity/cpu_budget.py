"""Choose the tokens of a micro-batch for a learner on a CPU, if the settings leave them open.

A GPU is fast only with large micro-batches. A CPU is as fast with small ones, which take less memory
(docs/results/memory.md). So the choice depends only on the model, unless memory is short.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from services.models.shape import ModelShape
from services.runs.folder import RunFolder, is_run
from services.training.preflight.capacity.memory import available_bytes
from services.training.preflight.capacity.memory_model import GIB, MemoryNeeds, cpu_pass_bytes
from services.training.preflight.deployment import Deployment

BUDGETS = (16384, 8192, 4096, 2048, 1024, 512, 256)
ENOUGH = 3 * GIB  # memory that suffices for a micro-batch; more makes no update faster
FAST = 1024  # tokens; with half as many, an update took a seventh longer
KEY = "learner.token_budget"


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens of a micro-batch on a CPU, and the memory of its passes.

    Example: SmolLM2-135M beside one worker on 16 GiB: `Budget(1024, 2.0e9, 6.5e9, 1.6e10, is_chosen=True)`
    """

    tokens: int
    passes: float  # bytes
    rest: float  # bytes of learner and workers without the passes
    available: float  # bytes
    is_chosen: bool

    @property
    def fits(self) -> bool:
        return self.rest + self.passes <= self.available

    @property
    def options(self) -> dict[str, int]:
        """Return the option by its key."""
        return {KEY: self.tokens}

    @property
    def words(self) -> str:
        """Return the memory of a micro-batch in words."""
        return (
            f"{KEY}={self.tokens}: a micro-batch takes up to {self.passes / GIB:.1f} GiB beside "
            f"{self.rest / GIB:.1f} GiB of learner and workers; {self.available / GIB:.1f} GiB are available"
        )

    @property
    def notes(self) -> list[str]:
        """Return the chosen budget as a note, unless it is the default of all small models."""
        is_news = self.is_chosen and self.fits and self.tokens != BUDGETS[0]
        return [f"chosen for the CPU: {self.words}"] if is_news else []

    @property
    def warnings(self) -> list[str]:
        """Return a warning with ways out, if the budget may not fit."""
        if self.fits:
            return []
        lower = "" if self.is_chosen else f"lower {KEY}, "
        return [
            f"memory may not suffice: {self.words}. Use less: {lower}set "
            "model.gradient_checkpointing=true, or use fewer rollout.num_workers"
        ]


def token_budget(
    needs: MemoryNeeds | None, shape: ModelShape | None, deployed: Deployment, folder: Path
) -> Budget | None:
    """Return the budget of a run on this machine.

    None: the learner has a GPU, a cluster decides, or the model's size is unknown.

    Args:
        folder: the run's folder; a resumed run keeps the budget of its configuration.
    """
    if needs is None or shape is None or deployed.machine.cluster:
        return None
    if deployed.learner_on_gpu and needs.learner.device != "cpu":
        return None
    kept = _kept(folder)
    if kept is not None and "token_budget" not in needs.learner.model_fields_set:
        needs = replace(needs, learner=needs.learner.model_copy(update={"token_budget": kept}))
    return budget_of(needs, shape, available_bytes())


def _kept(folder: Path) -> int | None:
    """Return the budget in a run's configuration; None if there is no run yet, or no budget was chosen.

    A run that began on a GPU has the largest budget by default, which may not fit on a CPU.
    """
    learner = RunFolder(folder).config().get("learner") if is_run(folder) else None
    kept = learner.get("token_budget") if isinstance(learner, dict) else None
    return kept if isinstance(kept, int) and kept != BUDGETS[0] else None


def budget_of(needs: MemoryNeeds, shape: ModelShape, available: float) -> Budget:
    """Return the budget that is set, or the largest sufficient one that fits, or the smallest one."""
    rest = sum(needs.least().values())
    is_set = "token_budget" in needs.learner.model_fields_set
    least = None
    for tokens in (needs.learner.token_budget,) if is_set else BUDGETS:
        least = Budget(tokens, _passes(needs, shape, tokens), rest, available, is_chosen=not is_set)
        if is_set or (least.fits and (least.passes <= ENOUGH or tokens <= FAST)):
            return least
    assert least is not None, "at least one budget was tried"
    return least


def _passes(needs: MemoryNeeds, shape: ModelShape, tokens: int) -> float:
    """Return the bytes of a micro-batch's passes in all processes. No text or pair of texts is split."""
    prompt, traits = needs.rollout.max_prompt_tokens, needs.algorithm.traits
    text = 0 if prompt is None else prompt + needs.rollout.max_tokens
    text *= 2 if traits.prefers and traits.whole_groups else 1
    bytes_each = 2 if needs.learner.autocast == "bfloat16" else 4
    size = sum(cpu_pass_bytes(needs, shape, max(tokens, text), bytes_each).values())
    return needs.learner.num_processes * size
