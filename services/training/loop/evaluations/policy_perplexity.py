"""Perplexity of held-out texts under the policy. It shows how far the policy drifts from the domain."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from contracts.clients import RolloutClient
from contracts.errors import InputError
from contracts.rollout import Prompt
from reward_servers.models.perplexity import JOINT, perplexity, windows

PERPLEXITY = "fluency_metrics/perplexity"


@dataclass(frozen=True, slots=True)
class PolicyPerplexity:
    """Measure of perplexity: exp of the mean negative log-likelihood over the tokens of all reference texts.

    As in RL4LMs' `causal_perplexity`, the references are joined into one text. Windows of the model's length,
    `stride` tokens apart, score each token once. The rollout workers score with their current weights.
    """

    tokenizer: Any
    window: int
    stride: int
    meta_key: str | None = None  # key of the texts in prompts' meta data; None: the references

    def __call__(self, prompts: Sequence[Prompt], workers: RolloutClient) -> float:
        """Return the perplexity.

        Raises:
            InputError: the texts have fewer than two tokens, or the stride leaves tokens without context.
        """
        texts = texts_of(prompts, self.meta_key)
        tokens = tuple(self.tokenizer(JOINT.join(texts), add_special_tokens=False)["input_ids"])
        cuts = list(windows(len(tokens), self.window, self.stride))
        if not cuts:
            raise InputError(
                f"evaluation.perplexity_stride: {len(texts)} texts make {len(tokens)} tokens, but a "
                f"perplexity needs two; choose a task with references, or leave perplexity_stride out"
            )
        scored = workers.logprobs([tokens[cut.begin : cut.end] for cut in cuts])
        # A window's first log-probability belongs to its second token.
        new = (logprobs[cut.first - cut.begin - 1 :] for cut, logprobs in zip(cuts, scored, strict=True))
        return perplexity([[-logprob for logprob in chain.from_iterable(new)]]).corpus


def texts_of(prompts: Sequence[Prompt], meta_key: str | None) -> list[str]:
    """Return the texts whose perplexity is measured: reference texts, or texts in the meta data.

    Raises:
        InputError: a prompt's meta data have no text under `meta_key`.
    """
    if meta_key is None:
        return [text for prompt in prompts for text in prompt.references]
    for prompt in prompts:
        if not isinstance(prompt.meta.get(meta_key), str):
            there = ", ".join(map(str, prompt.meta)) or "nothing"
            raise InputError(
                f"evaluation.perplexity_meta={meta_key}: prompt {prompt.id} has no text of that name in its "
                f"meta data; there is: {there}"
            )
    return [prompt.meta[meta_key] for prompt in prompts]
