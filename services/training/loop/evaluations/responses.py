"""Metrics of held-out responses: the learner's loss, and how well the learner predicts them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from contracts.errors import InputError
from contracts.processes import timeline
from contracts.rollout import Rollout
from services.config.settings import RunSettings
from services.data.tasks.base import Split
from services.models.tokenizer import load_tokenizer
from services.training.loop.demonstrations import demonstrations_of
from services.training.sources.held_out_rows import held_out_source
from services.training.sources.leasing import evaluation_leases
from services.training.sources.own_rows import kept_in, tokens_of
from services.training.sources.prompts import prompts_of
from services.training.sources.reading import reading_of

Measure = Callable[[Sequence[Rollout]], dict[str, float]]


@dataclass(frozen=True, slots=True)
class HeldOutResponses:
    """Responses of each split, and the learner's function that measures them.

    Example: `HeldOutResponses({"validation": rollouts}, measure)("validation")` is
    `{"loss": 2.31, "perplexity": 10.1, "token_accuracy": 0.48}`.
    """

    of_split: Mapping[str, Sequence[Rollout]]
    measure: Measure

    def __call__(self, split: str) -> dict[str, float]:
        """Return the measures of a split; {} if the split has no responses."""
        rollouts = self.of_split.get(split, ())
        if not rollouts:
            return {}
        with timeline.span("waits for measures"):
            return self.measure(rollouts)


@dataclass(frozen=True, slots=True)
class ReadsHeldOut:
    """Reader of a run's held-out responses.

    Args:
        warn: function that reports why a split has no measures.
    """

    settings: RunSettings
    warn: Callable[[str], None]

    def __call__(self, splits: Sequence[Split], measure: Measure) -> HeldOutResponses | None:
        """Return the responses of these splits; None if the run learns only from its own texts."""
        if not self.settings.has_held_out_responses:
            return None
        find = self._of_rows if self.settings.has_own_rows else self._references
        return HeldOutResponses({split: find(split) for split in splits}, measure)

    def _of_rows(self, split: Split) -> list[Rollout]:
        """Return a split's examples from the run's own rows; [] if no row can be compared."""
        settings = self.settings
        assert settings.data is not None
        to_tokens = tokens_of(settings, load_tokenizer(settings.model))
        count, kept = settings.evaluation.num_prompts, kept_in(settings.run_folder, split)
        try:
            source = held_out_source(settings.data, settings.algorithm, split, count, to_tokens, kept)
        except InputError as error:
            self.warn(f"evaluations do not measure {split} responses: {error}")
            return []
        return source.draw(source.num_kept)

    def _references(self, split: Split) -> list[Rollout]:
        """Return the reference texts of a split's prompts, in the form in which training imitates them."""
        settings = self.settings
        prompts = prompts_of(settings.task, settings.task_name, split)[: settings.evaluation.num_prompts]
        leases = evaluation_leases(
            [prompt for prompt in prompts if any(map(str.strip, prompt.references))],
            reading_of(settings, split),
            settings.sampling(evaluating=True),
            samples=1,
            seed=settings.seed,
        )
        return demonstrations_of(settings)(leases).rollouts
