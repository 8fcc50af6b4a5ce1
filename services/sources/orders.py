"""The order in which a run takes its training prompts, as its settings say."""

from collections.abc import Sequence

from contracts.rollout import Prompt
from services.config.curriculum_settings import CurriculumSettings
from services.config.settings import RunSettings
from services.sources.curriculum import PassRates
from services.sources.leasing import weights_of
from services.sources.mixture_order import MixtureOrder, OrderedPart, seed_of
from services.sources.prompt_order import Order, PromptOrder
from services.tasks.mixture import InTurns, TaskMixture


def order_of(settings: RunSettings, prompts: Sequence[Prompt]) -> Order:
    """Return the order of a task's prompts, or of a mixture's."""
    scale = settings.rollout.priority_scale
    if not isinstance(settings.task, TaskMixture) or not isinstance(prompts, InTurns):
        return _order(prompts, settings.seed, scale, settings.curriculum)
    return MixtureOrder(
        {
            name: OrderedPart(
                settings.task.parts[name].options.weight,
                _order(prompts.of_part(name), seed_of(settings.seed, name), scale, run.curriculum),
                prompts.places(name),
            )
            for name, run in settings.parts.items()
        }
    )


def _order(
    prompts: Sequence[Prompt], seed: int, priority_scale: float, curriculum: CurriculumSettings | None
) -> PromptOrder:
    rates = None if curriculum is None else PassRates(curriculum.solved_at, curriculum.least_share)
    return PromptOrder(len(prompts), seed, weights=weights_of(prompts, priority_scale), rates=rates)
