"""Mean ROUGE F1 of all kinds against printed lists of references: RL4LMs' use_single_ref=False (0 to 1)."""

from collections.abc import Sequence
from typing import ClassVar, get_args

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.metrics.mean import mean_of
from reward_servers.rewards.rouge import RougeType
from reward_servers.rewards.rouge_rl4lms_compat import printed_rouge


class RougeRl4lmsCompat(Settings):
    """ROUGE against all references joined into one, for comparison with published numbers only."""

    needs_references: ClassVar[bool] = True

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        kinds: tuple[RougeType, ...] = get_args(RougeType)
        found = [printed_rouge(sample, kinds) for sample in samples]
        return {
            f"lexical/rouge_{kind}_rl4lms_compat": mean_of([row[kind] for row in found]) for kind in kinds
        }
