"""The order in which a run takes its training prompts, from its settings."""

from collections.abc import Mapping, Sequence

from contracts.rollout import Prompt
from services.config.curriculum_settings import AnyCurriculum, OwnCurriculum
from services.data.tasks.base import Task
from services.data.tasks.mixture import InTurns, TaskMixture
from services.training.sources.curriculum import PassRates
from services.training.sources.leasing import weights_of
from services.training.sources.mixture_order import MixtureOrder, OrderedPart, seed_of
from services.training.sources.own_order import OwnOrder
from services.training.sources.prompt_order import Order, PromptOrder


def order_of(
    task: Task,
    prompts: Sequence[Prompt],
    seed: int,
    priority_scale: float,
    curricula: Mapping[str, AnyCurriculum | None],
) -> Order:
    """Return the order of a task's prompts, or of a mixture's.

    Args:
        priority_scale: power of the prompts' weights; 0: each prompt comes once an epoch.
        curricula: by the name of a mixture's part; the only task has the name "".
    """
    if not isinstance(task, TaskMixture) or not isinstance(prompts, InTurns):
        return _order(prompts, seed, priority_scale, curricula[""])
    return MixtureOrder(
        {
            name: OrderedPart(
                task.parts[name].options.weight,
                _order(prompts.of_part(name), seed_of(seed, name), priority_scale, curriculum),
                prompts.places(name),
            )
            for name, curriculum in curricula.items()
        }
    )


def _order(
    prompts: Sequence[Prompt], seed: int, priority_scale: float, curriculum: AnyCurriculum | None
) -> PromptOrder | OwnOrder:
    if isinstance(curriculum, OwnCurriculum):
        return OwnOrder(curriculum, prompts, seed)
    rates = None if curriculum is None else PassRates(curriculum.solved_at, curriculum.least_share)
    return PromptOrder(len(prompts), seed, weights=weights_of(prompts, priority_scale), rates=rates)
