"""Say what a mixture is made of: its parts with their weights, their sizes, and what grades them."""

from collections.abc import Mapping, Sequence

from reward_servers.settings import Part
from services.config.curriculum_settings import CurriculumSettings
from services.sources.quotas import shares
from services.tasks.base import Split, Task
from services.tasks.mixture import TaskMixture


def parts_of(task: Task, num_prompts: Mapping[str, Mapping[Split, int]]) -> dict[str, str]:
    """Return a line for each part of a mixture; none for other tasks.

    Example: `{"part easy": "gsm8k, weight 3 = 75% of the prompts; 7,473 train, 747 validation, 1,319 test;
    reward math; metrics none"}`
    """
    if not isinstance(task, TaskMixture):
        return {}
    weights = {name: part.options.weight for name, part in task.parts.items()}
    found = {}
    for name, share in shares(weights).items():
        part = task.parts[name]
        sizes = ", ".join(f"{count:,} {split}" for split, count in num_prompts[name].items())
        found[f"part {name}"] = (
            f"{part.options.task}, weight {weights[name]:g} = {share:.0%} of the prompts; {sizes}; reward "
            f"{_labels(part.reward)}; metrics {_labels(part.metrics)}"
        )
    return found


def curriculum_of(asked: CurriculumSettings | None) -> dict[str, str]:
    """Return a line about the curriculum; none without one."""
    if asked is None:
        return {}
    least = f"a prompt that is always or never solved comes in {asked.least_share:.0%} of the epochs"
    return {"curriculum": f"by pass rate, a reward of {asked.solved_at:g} solves a prompt; {least}"}


def _labels(graders: Sequence[Part]) -> str:
    return ", ".join(part.label for part in graders) or "none"
