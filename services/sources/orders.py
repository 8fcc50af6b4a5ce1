"""The order in which a run takes its training prompts, as its settings say."""

from collections.abc import Sequence

from contracts.rollout import Prompt
from services.config.settings import RunSettings
from services.sources.curriculum import PassRates
from services.sources.leasing import weights_of
from services.sources.mixture_order import MixtureOrder, OrderedPart, seed_of
from services.sources.prompt_order import Order, PromptOrder
from services.tasks.mixture import InTurns, TaskMixture


def order_of(settings: RunSettings, prompts: Sequence[Prompt]) -> Order:
    """Return the order of a task's prompts, or of a mixture's."""
    if not isinstance(settings.task, TaskMixture) or not isinstance(prompts, InTurns):
        return _order(settings, prompts, settings.seed)
    return MixtureOrder(
        {
            name: OrderedPart(
                settings.task.parts[name].options.weight,
                _order(run, prompts.of_part(name), seed_of(settings.seed, name)),
                prompts.places(name),
            )
            for name, run in settings.parts.items()
        }
    )


def _order(settings: RunSettings, prompts: Sequence[Prompt], seed: int) -> PromptOrder:
    asked = settings.curriculum
    rates = None if asked is None else PassRates(asked.solved_at, asked.least_share)
    weights = weights_of(prompts, settings.rollout.priority_scale)
    return PromptOrder(len(prompts), seed, weights=weights, rates=rates)
