"""Corpus TER of the texts: edits over words of the references; smaller is better (0 up to above 1)."""

from collections.abc import Sequence

from contracts.scores import MetricValue, Sample
from reward_servers.rewards.ter import Ter as Reward
from reward_servers.rewards.ter import rate


class Ter(Reward):
    """All edits over all words of the references; the rows are each text's TER. The reward is 1 - TER."""

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        edits = [self.of_sample(sample) for sample in samples]
        return {"lexical/ter": MetricValue(corpus=rate(edits), rows=tuple(rate([own]) for own in edits))}
