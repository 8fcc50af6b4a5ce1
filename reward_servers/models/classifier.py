"""A sequence classifier over texts or pairs of texts: logits, whatever they are batched and padded with."""

from collections.abc import Sequence
from functools import cache

import torch

from reward_servers.models.transformer import Transformer

TOKENS_PER_BATCH = 16_384  # some 32 texts of 512 tokens


class Classifier:
    """Example: `Classifier("folder").probabilities(["a good film"])`, of shape (1, number of labels)."""

    def __init__(
        self,
        model: str,
        *,
        max_length: int | None = None,
        keep: str = "end",
        tokens_per_batch: int = TOKENS_PER_BATCH,
    ) -> None:
        self._transformer = Transformer(
            model,
            "AutoModelForSequenceClassification",
            max_length=max_length,
            keep=keep,
            tokens_per_batch=tokens_per_batch,
        )

    @property
    def num_labels(self) -> int:
        return int(self._transformer.lm.config.num_labels)

    def logits(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> torch.Tensor:
        """Shape (texts, labels), float32, on the CPU, in order."""
        rows = [self._with_one_end(row) for row in self._transformer.encode(texts, seconds)]
        logits_NL = torch.zeros(len(rows), self.num_labels)
        with torch.inference_mode():
            for places, inputs in self._transformer.batches(rows):
                logits_NL[places] = self._transformer.lm(**inputs).logits.float().cpu()
        return logits_NL

    def probabilities(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> torch.Tensor:
        """Softmax over the labels; of a single label, which has nothing to compare with, the sigmoid."""
        logits_NL = self.logits(texts, seconds)
        return logits_NL.sigmoid() if self.num_labels == 1 else logits_NL.softmax(dim=-1)

    def _with_one_end(self, row: dict[str, list[int]]) -> dict[str, list[int]]:
        """Encoder-decoders judge at the end token, and fail over a text that spells one out."""
        config, end = self._transformer.lm.config, self._transformer.tokenizer.eos_token_id
        if not getattr(config, "is_encoder_decoder", False) or end is None:
            return row
        return {"input_ids": [*(token for token in row["input_ids"] if token != end), end]}


@cache
def classifier(
    model: str, max_length: int | None = None, keep: str = "end", tokens_per_batch: int = TOKENS_PER_BATCH
) -> Classifier:
    """Loaded once a process, however many rewards and metrics use it."""
    return Classifier(model, max_length=max_length, keep=keep, tokens_per_batch=tokens_per_batch)
