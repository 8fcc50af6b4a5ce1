"""Perplexity of held-out references under the policy: how far it has drifted from its domain's texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from contracts.clients import RolloutClient
from contracts.errors import InputError
from reward_servers.models.perplexity import JOINT, perplexity, windows

PERPLEXITY = "fluency_metrics/perplexity"


@dataclass(frozen=True, slots=True)
class PolicyPerplexity:
    """exp of the mean negative log-likelihood of a token, over the references joined into one text.

    RL4LMs' `causal_perplexity`: windows of the model's length, `stride` tokens apart, score each token once.
    The rollout workers score them, with the weights that they generate with.
    """

    tokenizer: Any
    window: int
    stride: int

    def __call__(self, references: Sequence[str], workers: RolloutClient) -> float:
        """
        Raises:
            InputError: the references hold no two tokens, or the stride leaves tokens without context.
        """
        tokens = tuple(self.tokenizer(JOINT.join(references), add_special_tokens=False)["input_ids"])
        cuts = list(windows(len(tokens), self.window, self.stride))
        if not cuts:
            raise InputError(
                f"evaluation.perplexity_stride: {len(references)} references make {len(tokens)} tokens, and "
                f"a perplexity needs two; choose a task with references, or leave it out"
            )
        scored = workers.score([tokens[cut.begin : cut.end] for cut in cuts])
        # Of a window, the first log-probability is that of its second token.
        new = (logprobs[cut.first - cut.begin - 1 :] for cut, logprobs in zip(cuts, scored, strict=True))
        return perplexity([[-logprob for logprob in chain.from_iterable(new)]]).corpus
