"""Measures of held-out responses: the learner's loss on them, and how well it predicts them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from contracts.errors import InputError
from contracts.processes import timeline
from contracts.rollout import Rollout
from learner.algorithms.base import Algorithm
from learner.algorithms.nll import NLL
from services.annotated.rows import read_annotated
from services.config.settings import RunSettings
from services.loop.demonstrations import demonstrations_of
from services.models.tokenizer import load_tokenizer
from services.sources.annotated_data import source_of
from services.sources.data_needs import needs_of
from services.sources.leasing import evaluation_leases
from services.sources.own_rows import as_they_are, first_groups, kept_in, rows_of
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


def responses_of_rows(settings: RunSettings, split: Split) -> list[Rollout]:
    """Return a split's examples of the run's own rows; [] where none can be compared.

    Algorithms that weigh responses are measured on the good ones alone, however these are rewarded.
    """
    assert settings.data is not None
    algorithm: Algorithm = settings.algorithm
    needs = needs_of(algorithm, settings.reward, settings.data)
    if not algorithm.traits.prefers:
        algorithm = NLL()
        needs = replace(needs, reference=False, scores=False, values=False, rewards=())
    own = first_groups(rows_of(settings, split).rows, settings.evaluation.num_prompts)
    rows = as_they_are(own, needs)
    if needs.reference:
        rows = read_annotated(kept_in(settings, split), (), needs_reference=True)
    try:
        source = source_of(settings, rows, needs, load_tokenizer(settings.model), algorithm)
    except InputError:
        return []
    return source.draw(min(source.num_kept, settings.evaluation.num_prompts or source.num_kept))


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


def has_held_out_responses(settings: RunSettings) -> bool:
    """Tell whether a run is measured by held-out responses: it imitates them, or it has rows of its own."""
    return _has_own_rows(settings) or settings.demonstrates or settings.algorithm.traits.teacher


def held_out_responses(
    settings: RunSettings, splits: Sequence[Split], measure: Measure
) -> HeldOutResponses | None:
    """Return the held-out responses that a run is measured by; None: it learns from its own texts."""
    if not has_held_out_responses(settings):
        return None
    find = responses_of_rows if _has_own_rows(settings) else references_of
    return HeldOutResponses({split: find(settings, split) for split in splits}, measure)


def _has_own_rows(settings: RunSettings) -> bool:
    data = settings.data
    return data is not None and data.has_rows and data.share is None
