"""The evaluated model, as the argument of a user's metric: `compute(samples, model)`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from contracts.clients import RolloutClient
from contracts.errors import InputError
from contracts.rollout import PART, Prompt, Sampling
from services.training.sources.leasing import evaluation_leases

ToTokens = Callable[[Prompt], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    """The rollout workers' engines with their current weights, and the model's tokenizer.

    Example: a metric whose value is the texts' mean log-probability.

        class Confidence:
            def compute(self, samples, model):
                scored = model.logprobs([sample.prompt + sample.text for sample in samples])
                rows = tuple(sum(row) / max(len(row), 1) for row in scored)
                return {"mine/confidence": MetricValue(sum(rows) / len(rows), rows)}
    """

    tokenizer: Any
    workers: RolloutClient
    to_tokens: ToTokens  # tokens of a prompt, with the model's chat template if it has one
    sampling: Sampling  # sampling in evaluations
    seed: int
    window: int | None  # most tokens of a text that the workers score; None: an encoder-decoder
    plays: bool = False  # whether the model plays an environment
    part: str = ""  # part of a mixture whose chat template generate() uses

    def logprobs(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """Return the log-probability of each text's tokens after the first, without special tokens.

        Raises:
            InputError: a text has fewer than two tokens or more than the window, or the model is an
                encoder-decoder.
        """
        if self.window is None:
            raise InputError(
                "model.logprobs(): an encoder-decoder can't score a text alone; expected a causal "
                "language model"
            )
        tokens = [tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
        for text, row in zip(texts, tokens, strict=True):
            if not 2 <= len(row) <= self.window:
                raise InputError(
                    f"model.logprobs(): {text!r:.80} has {len(row)} tokens; expected 2 to {self.window}"
                )
        return self.workers.logprobs(tokens) if tokens else []

    def generate(
        self, prompts: Sequence[str], *, max_tokens: int | None = None, temperature: float | None = None
    ) -> list[str]:
        """Return the model's text for each prompt, sampled as in evaluations; equal calls give equal texts.

        Args:
            max_tokens: most tokens of each text; None: as in evaluations.
            temperature: 0 for the most likely tokens; None: as in evaluations.

        Raises:
            InputError: the model plays an environment's episodes.
        """
        if self.plays:
            raise InputError("model.generate(): this model plays an environment; expected a run without one")
        meta = {PART: self.part} if self.part else {}
        sampling = replace(
            self.sampling,
            max_tokens=self.sampling.max_tokens if max_tokens is None else max_tokens,
            temperature=self.sampling.temperature if temperature is None else temperature,
        )
        leases = evaluation_leases(
            [Prompt(f"metric/{place}", text, meta=meta) for place, text in enumerate(prompts)],
            self.to_tokens,
            sampling,
            samples=1,
            seed=self.seed,
        )
        rollouts = [rollout for finished in self.workers.generate(leases) for rollout in finished]
        texts = {rollout.group: rollout.text for rollout in rollouts}
        return [texts[place] for place in range(len(prompts))]
