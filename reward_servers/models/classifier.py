"""A sequence classifier of texts or pairs, with logits independent of batches and padding."""

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
        second_texts = None if seconds is None else self._without_ends(seconds)
        encoded = self._transformer.encode(self._without_ends(texts), second_texts)
        rows = [self._with_an_end(row) for row in encoded]
        logits_NL = torch.zeros(len(rows), self.num_labels)
        with torch.inference_mode():
            for places, inputs in self._transformer.batches(rows):
                logits_NL[places] = self._transformer.lm(**inputs).logits.float().cpu()
        return logits_NL

    def probabilities(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> torch.Tensor:
        """Return probabilities (texts, labels), by a softmax over the labels.

        A single label, and each label of a multi-label classifier, has a sigmoid, as in transformers'
        pipeline.
        """
        logits_NL = self.logits(texts, seconds)
        problem = self._transformer.lm.config.problem_type
        by_label = self.num_labels == 1 or problem == "multi_label_classification"
        return logits_NL.sigmoid() if by_label else logits_NL.softmax(dim=-1)

    def _judges_at_end(self) -> bool:
        """Return whether the model is an encoder-decoder, which judges a text at its last end token.

        An encoder-decoder fails on a batch if the rows' numbers of end tokens differ.
        """
        has_end = self._transformer.tokenizer.eos_token is not None
        return has_end and bool(self._transformer.lm.config.is_encoder_decoder)

    def _without_ends(self, texts: Sequence[str]) -> list[str]:
        """Remove end marks from texts, so that a row has only its tokenizer's marks."""
        if not self._judges_at_end():
            return list(texts)
        return [text.replace(self._transformer.tokenizer.eos_token, " ") for text in texts]

    def _with_an_end(self, row: dict[str, list[int]]) -> dict[str, list[int]]:
        """Add an end token to a row without one."""
        end = self._transformer.tokenizer.eos_token_id
        if not self._judges_at_end() or end in row["input_ids"]:
            return row
        return {"input_ids": [*row["input_ids"][: self._transformer.max_length - 1], end]}


@cache
def classifier(
    model: str, max_length: int | None = None, keep: str = "end", tokens_per_batch: int = TOKENS_PER_BATCH
) -> Classifier:
    """Return the classifier, loaded once for each process and shared by rewards and metrics."""
    return Classifier(model, max_length=max_length, keep=keep, tokens_per_batch=tokens_per_batch)
