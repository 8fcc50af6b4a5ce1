"""Graders of a mixture of tasks; each part's rewards and metrics judge its texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from contracts.rollout import PART, Prompt
from contracts.scores import Answer, Sample
from reward_servers.settings import Part
from reward_servers.user_rewards.trial import MADE_UP, Trial, trial_of


@dataclass(frozen=True, slots=True)
class ByPart:
    """Labels of the graders of each part, by the part's name.

    Example: `ByPart({"easy": ("math",), "chat": ("judge",)}, metrics={"easy": ("math",), "chat": ()})`
    """

    rewards: Mapping[str, Sequence[str]] = field(default_factory=dict)
    metrics: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def asks(self, reward: str, sample: Sample) -> bool:
        """Return whether a reward scores a sample; without parts, every reward does."""
        return not self.rewards or reward in self.rewards[sample.meta[PART]]

    def measures(self, metric: str, part: str | None) -> bool:
        """Return whether a metric measures a part's texts; for all texts, whether every part has it."""
        parts = self.metrics.values() if part is None else (self.metrics[part],)
        return all(metric in labels for labels in parts)

    def graders(
        self, rewards: Sequence[Part], metrics: Sequence[Part], part: str | None
    ) -> list[tuple[str, Part]]:
        """Return the rewards and metrics of a part (None: of every part), each with its kind."""
        chosen = [reward for reward in rewards if part is None or reward.label in self.rewards[part]]
        measured = [metric for metric in metrics if self.measures(metric.label, part)]
        return [("reward", reward) for reward in chosen] + [("metric", metric) for metric in measured]


ONE_TASK = ByPart()


def places_for(by_part: ByPart, reward: str, samples: Sequence[Sample]) -> list[int]:
    """Return the places of the samples that a reward scores."""
    return [place for place, sample in enumerate(samples) if by_part.asks(reward, sample)]


def laid_out(answers: Sequence[Answer], places: Sequence[int], count: int) -> list[Answer]:
    """Return an answer for each of `count` samples, empty for samples that the reward does not score.

    >>> laid_out([(1.0, None)], [2], 3)
    [(None, None), (None, None), (1.0, None)]
    """
    all_answers: list[Answer] = [(None, None)] * count
    for place, answer in zip(places, answers, strict=True):
        all_answers[place] = answer
    return all_answers


def trial_of_parts(first: Mapping[str, Sequence[Prompt]], by_part: ByPart) -> Trial:
    """Make a trial in which each grader gets prompts of a part that it grades.

    Args:
        first: the first prompts of each part; key "": those of the only task.
    """
    trials = {part: trial_of(prompts) for part, prompts in first.items()}
    of_graders: dict[tuple[str, str], tuple[Sample, ...]] = {}
    for kind, labels_of in (("reward", by_part.rewards), ("metric", by_part.metrics)):
        for part, labels in labels_of.items():
            for label in labels:
                of_graders.setdefault((kind, label), trials[part].samples)
    return replace(next(iter(trials.values()), MADE_UP), of_graders=of_graders)
