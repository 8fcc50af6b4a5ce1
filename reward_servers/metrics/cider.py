"""CIDEr-D of the texts against their references (0 to 10), rare n-grams counting most."""

from collections.abc import Sequence
from typing import ClassVar

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.metrics.mean import mean_of
from reward_servers.text.cider import (
    Tokenizer,
    caption_words,
    cider,
    document_frequencies,
    reference_words,
)


class Cider(Settings):
    """Each sample is a document of its own, so prompts that occur twice stay two.

    Rarity is measured over the samples of the call; a single sample has no rarity and gets 0.
    """

    needs_references: ClassVar[bool] = True

    tokenizer: Tokenizer = "ptb"

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        texts = [caption_words(sample.text, self.tokenizer) for sample in samples]
        references = [reference_words(sample, self.tokenizer) for sample in samples]
        frequencies = document_frequencies(references)
        rows = [cider(text, own, frequencies) for text, own in zip(texts, references, strict=True)]
        return {"lexical/cider": mean_of(rows)}
