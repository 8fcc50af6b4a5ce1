"""A sequence classifier over texts or pairs of texts, whose logits don't depend on batches and padding."""

from collections.abc import Sequence
from functools import cache

import torch

from reward_servers.models.transformer import Transformer

TOKENS_PER_BATCH = 16_384  # some 32 texts of 512 tokens


class Classifier:
    """A sequence classifier, loaded from a folder or the hub.

    Example: `Classifier("folder").probabilities(["a good film"])`, of shape (1, number of labels).
    """

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
        """Return logits of shape (texts, labels), float32, on the CPU, in order."""
        rows = [self._with_one_end(row) for row in self._transformer.encode(texts, seconds)]
        logits_NL = torch.zeros(len(rows), self.num_labels)
        with torch.inference_mode():
            for places, inputs in self._transformer.batches(rows):
                logits_NL[places] = self._transformer.lm(**inputs).logits.float().cpu()
        return logits_NL

    def probabilities(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> torch.Tensor:
        """Return probabilities (texts, labels): a softmax over the labels, or the sigmoid of a single one."""
        logits_NL = self.logits(texts, seconds)
        return logits_NL.sigmoid() if self.num_labels == 1 else logits_NL.softmax(dim=-1)

    def _with_one_end(self, row: dict[str, list[int]]) -> dict[str, list[int]]:
        """Leave one end token: encoder-decoders judge at it, and fail over a text that holds more."""
        config, end = self._transformer.lm.config, self._transformer.tokenizer.eos_token_id
        if not getattr(config, "is_encoder_decoder", False) or end is None:
            return row
        return {"input_ids": [*(token for token in row["input_ids"] if token != end), end]}


@cache
def classifier(
    model: str, max_length: int | None = None, keep: str = "end", tokens_per_batch: int = TOKENS_PER_BATCH
) -> Classifier:
    """Return the classifier, loaded once for each process and shared by rewards and metrics."""
    return Classifier(model, max_length=max_length, keep=keep, tokens_per_batch=tokens_per_batch)
