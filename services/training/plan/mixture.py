"""Describe a mixture: the weight, size, rewards and metrics of each part."""

from collections.abc import Mapping, Sequence

from reward_servers.settings import Part
from services.config.curriculum_settings import AnyCurriculum, OwnCurriculum
from services.data.tasks.base import Split, Task
from services.data.tasks.mixture import TaskMixture
from services.training.sources.quotas import shares


def parts_of(task: Task, num_prompts: Mapping[str, Mapping[Split, int]]) -> dict[str, str]:
    """Return a line for each part of a mixture; {} for other tasks.

    Example: `{"part easy": "gsm8k, weight 3 = 75% of the prompts; 7,473 train, 747 validation, 1,319 test;
    reward math; metrics none"}`
    """
    if not isinstance(task, TaskMixture):
        return {}
    weights = {name: part.options.weight for name, part in task.parts.items()}
    lines = {}
    for name, share in shares(weights).items():
        part = task.parts[name]
        sizes = ", ".join(f"{count:,} {split}" for split, count in num_prompts[name].items())
        lines[f"part {name}"] = (
            f"{part.options.task}, weight {weights[name]:g} = {share:.0%} of the prompts; {sizes}; reward "
            f"{_labels(part.reward)}; metrics {_labels(part.metrics)}"
        )
    return lines


def curriculum_of(curriculum: AnyCurriculum | None) -> dict[str, str]:
    """Return a line about the curriculum; {} without a curriculum."""
    if curriculum is None:
        return {}
    if isinstance(curriculum, OwnCurriculum):
        return {"curriculum": f"{curriculum.by} chooses the prompts"}
    least = f"a prompt that is always or never solved comes in {curriculum.least_share:.0%} of the epochs"
    return {"curriculum": f"by pass rate, a reward of {curriculum.solved_at:g} solves a prompt; {least}"}


def _labels(graders: Sequence[Part]) -> str:
    return ", ".join(part.label for part in graders) or "none"
