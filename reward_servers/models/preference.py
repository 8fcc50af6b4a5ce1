"""P(good) of a text, by a model trained to answer "good" or "bad", or with one number."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from contracts.errors import InputError
from reward_servers.models.checkpoint import preference_kind
from reward_servers.models.classifier import classifier
from reward_servers.models.transformer import Transformer


class AnswersGoodOrBad:
    """A model whose answer's first token gives P(good) = sigmoid(logit of "good" - logit of "bad").

    This is the softmax over the two, without overflow. A word of several tokens counts by its first.
    """

    def __init__(self, model: str, is_seq2seq: bool, good: str, bad: str, tokens_per_batch: int) -> None:
        self._is_seq2seq = is_seq2seq
        self._transformer = Transformer(
            model,
            "AutoModelForSeq2SeqLM" if is_seq2seq else "AutoModelForCausalLM",
            max_length=None,
            keep="begin" if is_seq2seq else "end",
            tokens_per_batch=tokens_per_batch,
        )
        self._good_ix, self._bad_ix = self._first_token(good), self._first_token(bad)
        if self._good_ix == self._bad_ix:
            raise InputError(
                f"model={model}: its tokenizer begins {good!r} and {bad!r} with the same token; expected two "
                f"answers that differ from the first token on"
            )

    def score(self, texts: Sequence[str]) -> list[float]:
        rows = self._transformer.encode(texts)
        margins = torch.zeros(len(rows))
        with torch.inference_mode():
            for places, inputs in self._transformer.batches(rows):
                logits_BV = self._answer_logits(inputs).float()
                margins[places] = (logits_BV[:, self._good_ix] - logits_BV[:, self._bad_ix]).cpu()
        return [float(value) for value in margins.sigmoid()]

    def _answer_logits(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        if self._is_seq2seq:
            start = self._transformer.lm.config.decoder_start_token_id
            asked_B1 = torch.full_like(inputs["input_ids"][:, :1], start)
            logits: torch.Tensor = self._transformer.lm(**inputs, decoder_input_ids=asked_B1).logits
            return logits[:, 0]
        last_B = inputs["attention_mask"].sum(dim=1) - 1
        logits = self._transformer.lm(**inputs).logits
        return logits[torch.arange(len(last_B), device=logits.device), last_B]

    def _first_token(self, word: str) -> int:
        tokens = self._transformer.tokenizer(word, add_special_tokens=False)["input_ids"]
        if not tokens:
            raise InputError(
                f"{word!r} has no token in this model's vocabulary; expected a word of its answers"
            )
        return int(tokens[0])


class AnswersWithANumber:
    """A reward model; P(good) is the sigmoid of its single value."""

    def __init__(self, model: str, tokens_per_batch: int) -> None:
        self._classifier = classifier(model, None, "end", tokens_per_batch)

    def score(self, texts: Sequence[str]) -> list[float]:
        return [float(value) for value in self._classifier.probabilities(texts)[:, 0]]


@cache
def preference_model(model: str, good: str, bad: str, tokens_per_batch: int) -> Any:
    """Return the preference model, loaded once for each process."""
    kind = preference_kind(model)
    if kind == "classifier":
        return AnswersWithANumber(model, tokens_per_batch)
    return AnswersGoodOrBad(model, kind == "seq2seq", good, bad, tokens_per_batch)
