"""Say what a mixture is made of: its parts with their weights, their sizes, and what grades them."""

from collections.abc import Mapping, Sequence

from reward_servers.settings import Part
from services.config.settings import RunSettings
from services.sources.quotas import shares
from services.tasks.base import Split
from services.tasks.mixture import TaskMixture


def parts_of(settings: RunSettings, num_prompts: Mapping[str, Mapping[Split, int]]) -> dict[str, str]:
    """Return a line for each part, and one for the curriculum; none without them.

    Example: `{"part easy": "gsm8k, weight 3 = 75% of the prompts; 7,473 train, 747 validation, 1,319 test;
    reward math; metrics none"}`
    """
    found = {}
    if isinstance(settings.task, TaskMixture):
        weights = {name: part.options.weight for name, part in settings.task.parts.items()}
        for name, share in shares(weights).items():
            run = settings.parts[name]
            sizes = ", ".join(f"{count:,} {split}" for split, count in num_prompts[name].items())
            found[f"part {name}"] = (
                f"{run.task_name}, weight {weights[name]:g} = {share:.0%} of the prompts; {sizes}; reward "
                f"{_labels(run.reward)}; metrics {_labels(run.metrics)}"
            )
    if (asked := settings.curriculum) is not None:
        least = f"a prompt that is always or never solved comes in {asked.least_share:.0%} of the epochs"
        found["curriculum"] = f"by pass rate, a reward of {asked.solved_at:g} solves a prompt; {least}"
    return found


def _labels(graders: Sequence[Part]) -> str:
    return ", ".join(part.label for part in graders) or "none"
