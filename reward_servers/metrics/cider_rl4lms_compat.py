"""Mean CIDEr over the different prompts as RL4LMs computes it (0 to 10), on spaCy's case-sensitive words."""

from collections.abc import Sequence
from statistics import fmean

from contracts.scores import MetricValue, Sample
from reward_servers.rewards.cider_rl4lms_compat import CiderRl4lmsCompat as Reward
from reward_servers.rewards.cider_rl4lms_compat import by_prompt


class CiderRl4lmsCompat(Reward):
    """The reward of the same name, as a metric: only the last sample of each prompt counts."""

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        values = by_prompt(samples)
        rows = tuple(values[sample.prompt] for sample in samples)
        return {"lexical/cider_rl4lms_compat": MetricValue(corpus=fmean(values.values()), rows=rows)}
