"""Partner that never learns: a causal model with weights of its own, in the environment's own process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import Field

from contracts.errors import InputError
from contracts.hub import use_cache_if_unreachable
from contracts.rollout import Sampling
from contracts.settings import Settings
from contracts.windows import window_of
from rollout_workers.engines.base import Engine, Request
from rollout_workers.settings import RolloutSettings

MODEL = "environment.partner_options.model"


class FrozenPartner(Settings):
    """Settings of a frozen partner, which reads `u1 <EOU> u2 <EOU>` as the model does, or the talk's end.

    Example: `environment.partner=frozen environment.partner_options={model: gpt2, temperature: 0}`
    """

    model: str = Field(min_length=1)  # a folder in Hugging Face format, or a hub name
    revision: str | None = None
    max_tokens: int = Field(default=20, ge=1)  # of an utterance
    temperature: float = Field(default=1.0, ge=0)  # 0: greedy
    top_k: int = Field(default=0, ge=0)  # 0: no limit

    def check_model(self, kind: str, is_encoder_decoder: bool, window: int | None) -> None:
        """Check by its files that a model can be a partner.

        Raises:
            InputError: the model is not causal, or leaves no room for a prompt.
        """
        if is_encoder_decoder:
            raise InputError(f"{MODEL}={self.model} is an encoder-decoder ({kind}); expected a causal model")
        if window is not None and self.max_tokens >= window:
            raise InputError(
                f"environment.partner_options.max_tokens={self.max_tokens} leaves no room for what was said: "
                f"the window of {self.model} is {window} tokens"
            )

    def load(self, separator: str) -> "_Speaker":
        """Load the model as a partner.

        Raises:
            InputError: the model does not load, is not causal, or leaves no room for a prompt.
        """
        from transformers import AutoConfig, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar

        from rollout_workers.engines.transformers_engine import TransformersEngine

        disable_progress_bar()  # there are as many partners as environments
        use_cache_if_unreachable()
        where = f"{MODEL}={self.model}"
        with _refusing(where):
            config = AutoConfig.from_pretrained(self.model, revision=self.revision)
            tokenizer = AutoTokenizer.from_pretrained(self.model, revision=self.revision)
        window = window_of(tokenizer, config)
        self.check_model(config.model_type, config.is_encoder_decoder, window)
        settings = RolloutSettings(engine="transformers", dtype="float32", max_concurrent=1)
        with _refusing(where):
            engine = TransformersEngine(self.model, self.model, window, settings, revision=self.revision)
        sampling = Sampling(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            stop=(separator,) if separator else (),
        )
        return _Speaker(engine, tokenizer, sampling, window - self.max_tokens, separator)


class _Speaker:
    """Implementation of `rollout_workers.environments.partners.Partner` with an engine."""

    def __init__(self, engine: Engine, tokenizer: Any, sampling: Sampling, room: int, separator: str) -> None:
        self._engine, self._tokenizer, self._sampling = engine, tokenizer, sampling
        self._room, self._separator = room, separator

    def reply(self, history: Sequence[str], seed: int) -> str:
        tokens = self._tokenizer(joined(history, self._separator))["input_ids"]
        if not tokens:  # nothing to answer
            return ""
        self._engine.abort_all()  # an utterance may have been given up halfway
        self._engine.add(Request(0, tuple(tokens[-self._room :]), self._sampling, seed))
        while True:
            for generation in self._engine.step():
                return generation.text


@contextmanager
def _refusing(where: str) -> Iterator[None]:
    """Turn errors of any kind into an InputError: transformers raises all kinds."""
    try:
        yield
    except Exception as error:
        raise InputError(f"{where} does not load: {type(error).__name__}: {error}") from error


def joined(utterances: Sequence[str], separator: str) -> str:
    """Join a talk as DailyDialog's prompts do.

    >>> joined(["How are you ?", "Fine ."], "<EOU>")
    'How are you ? <EOU> Fine . <EOU>'
    >>> joined(["How are you ?", "Fine ."], "")
    'How are you ? Fine .'
    """
    words = (word for utterance in utterances for word in (utterance, separator))
    return " ".join(word for word in words if word)
