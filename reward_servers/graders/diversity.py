"""Diversity of all texts together: types per token, different n-grams, entropies, lengths."""

import logging
import math
import string
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median, pstdev

from pydantic import Field

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.text.ngrams import Ngram, ngram_counts
from reward_servers.text.words import words

PUNCTUATION = frozenset(string.punctuation)
logger = logging.getLogger(__name__)

Texts = Sequence[Sequence[str]]


class Diversity(Settings):
    """GEM's diversity measures, on lower-cased words with and without punctuation (`nopunct`).

    Gehrmann et al., "The GEM Benchmark" (2021), after van Miltenburg et al., "Measuring the Diversity of
    Automatic Image Descriptions" (COLING 2018). If all texts together are shorter than one window, a warning
    replaces MSTTR.
    """

    window_size: int = Field(default=100, ge=1)

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        plain = [[word.lower() for word in words(sample.text)] for sample in samples]
        bare = [[word for word in text if word not in PUNCTUATION] for text in plain]
        stats: dict[str, float] = {}
        for texts, suffix in ((plain, ""), (bare, "nopunct")):
            if (value := msttr(texts, self.window_size)) is not None:
                stats[_key(f"msttr-{self.window_size}", suffix, "_")] = value
            else:
                logger.warning("diversity: fewer than %d words, so no MSTTR", self.window_size)
            numbers = lengths(texts) | ngram_stats(texts)
            stats |= {_key(name, suffix, "-"): value for name, value in numbers.items()}
        return {f"diversity_metrics/{name}": MetricValue(corpus=value) for name, value in stats.items()}


def _key(name: str, suffix: str, joint: str) -> str:
    return f"{name}{joint}{suffix}" if suffix else name


def msttr(texts: Texts, window: int) -> float | None:
    """Return the mean share of different words in adjacent windows of equal size over all texts.

    A last window that is not full is dropped. Johnson, "Studies in Language Behavior" (1944).

    >>> msttr([["a", "b", "a"], ["a", "a"]], window=2)  # a b, a a; the last a is dropped
    0.75
    """
    running = [word for text in texts for word in text]
    starts = range(0, len(running) - window + 1, window)
    return fmean(len(set(running[start : start + window])) / window for start in starts) if starts else None


def lengths(texts: Texts) -> dict[str, float]:
    """Return statistics of the numbers of words."""
    counts = [len(text) for text in texts]
    return {
        "total_length": sum(counts),
        "mean_pred_length": fmean(counts),
        "std_pred_length": pstdev(counts),
        "median_pred_length": median(counts),
        "min_pred_length": min(counts),
        "max_pred_length": max(counts),
    }


def ngram_stats(texts: Texts) -> dict[str, float]:
    """Return for n of 1, 2 and 3: share and number of different n-grams, of unique ones, and entropies."""
    stats: dict[str, float] = {}
    shorter: Counter[Ngram] = Counter()
    for n in (1, 2, 3):
        counts: Counter[Ngram] = sum((ngram_counts(text, n) for text in texts), Counter())
        stats[f"distinct-{n}"] = len(counts) / counts.total() if counts else 0.0
        stats[f"vocab_size-{n}"] = len(counts)
        stats[f"unique-{n}"] = sum(count == 1 for count in counts.values())
        stats[f"entropy-{n}"] = entropy(counts)
        if n > 1:
            stats[f"cond_entropy-{n}"] = conditional_entropy(counts, shorter)
        shorter = counts
    return stats


def entropy(counts: Counter[Ngram]) -> float:
    """Return Shannon's entropy in bits; 0 without counts.

    >>> entropy(Counter({("a",): 2, ("b",): 1, ("c",): 1}))  # 1/2 · 1 + 1/4 · 2 + 1/4 · 2
    1.5
    """
    total = counts.total()
    return math.fsum(count / total * math.log2(total / count) for count in counts.values())


def conditional_entropy(counts: Counter[Ngram], contexts: Counter[Ngram]) -> float:
    """Return -Σ p(ngram) · log2(p(ngram) / p(context)): the bits of a last word, given those before it.

    Contexts at the ends of texts count, too, although nothing follows, so that the value can be below 0.
    """
    total, total_contexts = counts.total(), contexts.total()
    return -math.fsum(
        count / total * math.log2(count / total / (contexts[ngram[:-1]] / total_contexts))
        for ngram, count in counts.items()
    )
