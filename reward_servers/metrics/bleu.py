"""Corpus BLEU of the texts, on words that blanks separate, without smoothing (0 to 1)."""

from collections.abc import Sequence

from contracts.scores import MetricValue, Sample
from reward_servers.rewards.bleu import Bleu as Reward
from reward_servers.text.references import reference_streams


class Bleu(Reward):
    """BLEU with n-grams counted over the whole corpus; the rows are each text's own BLEU.

    `effective_order` affects the rows alone: a corpus is long enough.
    """

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        corpus = self._sacrebleu(samples) if self.variant == "sacrebleu" else self.of_corpus(samples)
        return {"lexical/bleu": MetricValue(corpus=corpus, rows=tuple(self.score(samples)))}

    def _sacrebleu(self, samples: Sequence[Sample]) -> float:
        texts = [sample.text for sample in samples]
        found = self.counter(effective_order=False).corpus_score(texts, reference_streams(samples, "bleu"))
        return float(found.score) / 100
