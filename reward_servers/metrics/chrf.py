"""Corpus chrF of the texts: F score of character n-grams (0 to 1)."""

from collections.abc import Sequence

from contracts.scores import MetricValue, Sample
from reward_servers.rewards.chrf import Chrf as Reward
from reward_servers.text.references import reference_streams


class Chrf(Reward):
    """chrF with n-grams counted over the whole corpus, each text's against its best reference.

    The rows are each text's own chrF.
    """

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        texts = [sample.text for sample in samples]
        corpus = self.counter().corpus_score(texts, reference_streams(samples, "chrf"))
        value = MetricValue(corpus=float(corpus.score) / 100, rows=tuple(self.score(samples)))
        return {"lexical/chrf": value}
