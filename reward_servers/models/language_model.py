"""Negative log-likelihoods of texts under a causal language model, token by token."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from reward_servers.models.perplexity import Window, windows
from reward_servers.models.transformer import Transformer, encodable

TOKENS_PER_BATCH = 4096  # each token has a logit for every entry of the vocabulary


class LanguageModel:
    """A causal language model, loaded from a folder or the hub.

    Example: `LanguageModel("gpt2").token_nlls(["It rains."], stride=512)` gives one list of floats.
    """

    def __init__(self, model: str, tokens_per_batch: int) -> None:
        self._transformer = Transformer(
            model, "AutoModelForCausalLM", max_length=None, keep="end", tokens_per_batch=tokens_per_batch
        )

    def token_nlls(self, texts: Sequence[str], stride: int, *, starts: bool = True) -> list[list[float]]:
        """Return the negative log-likelihoods, in nats, of each text's tokens, over sliding windows.

        Args:
            starts: put the tokenizer's start token, if any, before texts without it, to score the first word,
                too.
        """
        rows = [self._tokens(text, starts) for text in texts]
        places = [
            (row, window)
            for row, tokens in enumerate(rows)
            for window in windows(len(tokens), self._transformer.window, stride)
        ]
        scored = self._score([rows[row][window.begin : window.end] for row, window in places], places)
        by_text: list[list[float]] = [[] for _ in texts]
        for (row, _), nlls in zip(places, scored, strict=True):
            by_text[row] += nlls
        return by_text

    def _tokens(self, text: str, starts: bool) -> list[int]:
        tokenizer: Any = self._transformer.tokenizer
        tokens = list(
            tokenizer(encodable(text), verbose=False)["input_ids"]
        )  # `verbose=False`: texts longer than the window are expected
        start = tokenizer.bos_token_id
        return [start, *tokens] if starts and start is not None and tokens[:1] != [start] else tokens

    def _score(self, spans: Sequence[list[int]], places: Sequence[tuple[int, Window]]) -> list[list[float]]:
        by_span: list[list[float]] = [[] for _ in spans]
        with torch.inference_mode():
            for batch, inputs in self._transformer.batches([{"input_ids": span} for span in spans]):
                logits_BTV = self._transformer.lm(**inputs).logits
                for line, place in enumerate(batch):
                    window = places[place][1]
                    skip, length = window.first - window.begin, window.end - window.begin
                    # the logits at a position predict the next token
                    by_span[place] = torch.nn.functional.cross_entropy(
                        logits_BTV[line, skip - 1 : length - 1].float(),
                        inputs["input_ids"][line, skip:length],
                        reduction="none",
                    ).tolist()
        return by_span


@cache
def language_model(model: str, tokens_per_batch: int = TOKENS_PER_BATCH) -> LanguageModel:
    """Return the language model, loaded once for each process."""
    return LanguageModel(model, tokens_per_batch)
