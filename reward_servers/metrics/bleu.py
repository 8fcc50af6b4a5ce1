"""Corpus BLEU of the texts, on words that blanks separate, without smoothing (0 to 1)."""

from collections.abc import Sequence

from contracts.scores import MetricValue, Sample
from reward_servers.rewards.bleu import Bleu as Reward
from reward_servers.rewards.sacre_bleu import corpus_bleu
from reward_servers.text.references import with_blanks


class Bleu(Reward):
    """BLEU with n-grams counted over the whole corpus; the rows are each text's own BLEU.

    `effective_order` affects the corpus only where no text at all has four words.
    """

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        corpus = self._sacrebleu(samples) if self.variant == "sacrebleu" else self.of_corpus(samples)
        return {"lexical/bleu": MetricValue(corpus=corpus, rows=tuple(self.score(samples)))}

    def _sacrebleu(self, samples: Sequence[Sample]) -> float:
        return corpus_bleu(self.counter(self.effective_order), list(map(with_blanks, samples)), "bleu")
