"""Corpus BLEU of the texts, with sacrebleu's tokenizers and smoothing (0 to 1)."""

from collections.abc import Sequence

from contracts.scores import MetricValue, Sample
from reward_servers.rewards.sacre_bleu import SacreBleu as Reward
from reward_servers.rewards.sacre_bleu import corpus_bleu


class SacreBleu(Reward):
    """BLEU with n-grams counted over the whole corpus; the rows are each text's own BLEU.

    `effective_order` affects the corpus only where no text at all has four words.
    """

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        read = [self.read(sample) for sample in samples]
        corpus = corpus_bleu(self.counter(self.effective_order), read, "sacre_bleu")
        return {"lexical/sacrebleu": MetricValue(corpus=corpus, rows=tuple(self.score(samples)))}
