"""Corpus BLEU of the texts, with sacrebleu's tokenizers and smoothing (0 to 1)."""

from collections.abc import Sequence

from contracts.scores import MetricValue, Sample
from reward_servers.rewards.sacre_bleu import SacreBleu as Reward
from reward_servers.text.references import reference_streams


class SacreBleu(Reward):
    """BLEU with n-grams counted over the whole corpus; the rows are each text's own BLEU.

    `effective_order` affects the rows alone: a corpus is long enough.
    """

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        texts = [sample.text for sample in samples]
        corpus = self.counter(effective_order=False).corpus_score(
            texts, reference_streams(samples, "sacre_bleu")
        )
        value = MetricValue(corpus=float(corpus.score) / 100, rows=tuple(self.score(samples)))
        return {"lexical/sacrebleu": value}
