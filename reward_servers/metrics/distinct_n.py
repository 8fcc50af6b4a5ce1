"""Different n-grams over all n-grams of the texts together, for n of 1, 2 and 3 (0 to 1)."""

from collections.abc import Sequence

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.rewards.distinct_n import distinct
from reward_servers.text.ngrams import ngram_counts


class DistinctN(Settings):
    """Words are what blanks separate, in lower case. Larger corpora repeat more: compare equal sizes only."""

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        texts = [sample.text.lower().split() for sample in samples]
        return {
            f"lexical/distinct-{n}": MetricValue(corpus=distinct([ngram_counts(text, n) for text in texts]))
            for n in (1, 2, 3)
        }
