"""CIDEr-D of the texts against their references (0 to 10); rare n-grams count most."""

from collections.abc import Sequence
from typing import ClassVar

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.metrics.mean import mean_of
from reward_servers.text.captions import Tokenizer, captions_of, check_tokenizer
from reward_servers.text.cider import cider, document_frequencies


class Cider(Settings):
    """CIDEr-D with each sample as one document, even if its prompt occurs twice.

    Rarity is measured over the samples of the call; a single sample has no rarity and gets 0.
    """

    needs_references: ClassVar[bool] = True

    tokenizer: Tokenizer = "ptb"

    def check(self) -> None:
        check_tokenizer(self.tokenizer, "CIDEr")

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        captions = captions_of(samples, "CIDEr", self.tokenizer)
        frequencies = document_frequencies(references for _, references in captions)
        rows = [cider(text, references, frequencies) for text, references in captions]
        return {"lexical/cider": mean_of(rows)}
