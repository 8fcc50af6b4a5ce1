"""Measures of held-out responses: the learner's loss on them, and how well it predicts them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from contracts.processes import timeline
from contracts.rollout import Rollout
from services.config.settings import RunSettings
from services.loop.demonstrations import demonstrations_of
from services.sources.leasing import evaluation_leases
from services.sources.prompts import prompts_of
from services.sources.reading import reading_of
from services.tasks.base import Split

Measure = Callable[[Sequence[Rollout]], dict[str, float]]


@dataclass(frozen=True, slots=True)
class HeldOutResponses:
    """Responses of each split, and the learner's measure of them.

    Example: `HeldOutResponses({"validation": rollouts}, measure)("validation")` is
    `{"loss": 2.31, "perplexity": 10.1, "token_accuracy": 0.48}`.
    """

    of_split: Mapping[str, Sequence[Rollout]]
    measure: Measure

    def __call__(self, split: str) -> dict[str, float]:
        """Return the measures of a split; {} where it has no responses."""
        rollouts = self.of_split.get(split, ())
        if not rollouts:
            return {}
        with timeline.span("waits for measures"):
            return self.measure(rollouts)


def references_of(settings: RunSettings, split: Split) -> list[Rollout]:
    """Return the reference texts of a split's prompts, as training imitates them; [] where there are none."""
    prompts = prompts_of(settings.task, settings.task_name, split)[: settings.evaluation.num_prompts]
    leases = evaluation_leases(
        [prompt for prompt in prompts if any(map(str.strip, prompt.references))],
        reading_of(settings, split),
        settings.sampling(evaluating=True),
        samples=1,
        seed=settings.seed,
    )
    return demonstrations_of(settings)(leases).rollouts


def held_out_responses(
    settings: RunSettings, splits: Sequence[Split], measure: Measure
) -> HeldOutResponses | None:
    """Return the held-out responses that a run is measured by; None: it learns from its own texts."""
    if settings.demonstrates or settings.algorithm.traits.teacher:
        return HeldOutResponses({split: references_of(settings, split) for split in splits}, measure)
    return None
