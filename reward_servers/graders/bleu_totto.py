"""BLEU as ToTTo's official evaluation computes it (0 to 1): overall, and on each marked subset."""

from collections.abc import Sequence
from typing import Any, ClassVar

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.text.totto import lowered, padded_references, subsets, text_of


class BleuTotto(Settings):
    """Corpus BLEU of lower-cased texts by sacrebleu, against all references at once."""

    needs_references: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("sacrebleu",)

    null_references: bool = True  # fill up to three references with "<null>", as the official figures do

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        return {
            f"table_to_text/bleu_{name}": MetricValue(corpus=self._bleu([samples[place] for place in places]))
            for name, places in subsets(samples).items()
        }

    def _bleu(self, samples: Sequence[Sample]) -> float:
        from sacrebleu import corpus_bleu

        texts = [lowered(text_of(sample)) for sample in samples]
        references = [
            [lowered(text) for text in padded_references(sample, self.null_references)] for sample in samples
        ]
        # sacrebleu accepts None for a missing reference; its types don't say so.
        most = max(map(len, references))
        streams: Any = [[row[n] if n < len(row) else None for row in references] for n in range(most)]
        return float(corpus_bleu(texts, streams).score) / 100.0
