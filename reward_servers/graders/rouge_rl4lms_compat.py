"""ROUGE F1 against the printed list of all references: RL4LMs' value for use_single_ref=False (0 to 1)."""

from collections.abc import Sequence
from typing import ClassVar, get_args

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.graders.grader import mean_of
from reward_servers.graders.rouge import RougeType, rouge_of_pair
from reward_servers.text.references import printed_references
from reward_servers.text.scripts import check_latin


class RougeRl4lmsCompat(Settings):
    """ROUGE against all references joined into one, for comparison with published numbers only.

    With one reference it is plain ROUGE, unless the reference holds line breaks or other control characters.
    """

    needs_references: ClassVar[bool] = True

    rouge_type: RougeType | None = None  # None: rougeL as a reward, all four as a metric

    def score(self, samples: Sequence[Sample]) -> list[float]:
        kind: RougeType = self.rouge_type or "rougeL"
        return [printed_rouge(sample, (kind,))[kind] for sample in samples]

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        kinds: tuple[RougeType, ...] = (self.rouge_type,) if self.rouge_type else get_args(RougeType)
        rows = [printed_rouge(sample, kinds) for sample in samples]
        return {f"lexical/rouge_{kind}_rl4lms_compat": mean_of([row[kind] for row in rows]) for kind in kinds}


def printed_rouge(sample: Sample, kinds: tuple[RougeType, ...]) -> dict[str, float]:
    """Return F1 by kind against the printed list of the references, on rouge-score's words.

    Raises:
        InputError: the sample has no reference, or none with a letter of a to z or a digit.
    """
    target = printed_references(sample, "rouge_rl4lms_compat")
    check_latin(target, "rouge_rl4lms_compat", "the reward or metric rouge")
    return rouge_of_pair(target, sample.text, kinds, "rouge_score")
