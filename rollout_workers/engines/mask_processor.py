"""NLPO's mask as one of vLLM's logits processors: only requests that ask for it are masked."""

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from contracts.rollout import MaskRule
from rollout_workers.engines.sampling import allowed

if TYPE_CHECKING:
    from rollout_workers.engines.masked_twin import MaskedTwin

MASKED = {"masked": True}  # the `extra_args` of a masked request's parameters


class MaskProcessor:
    """vLLM's `LogitsProcessor` in all but name: to inherit from it, vLLM would have to be imported here.

    Row i of the logits belongs to the request at index i of the batch; vLLM says which requests came,
    went and moved. Behind it follow temperature, top-k and top-p, over the tokens that are left, and the
    log-probabilities that vLLM returns are those of what it sampled from: renormalised.
    """

    def __init__(self, twin: "MaskedTwin", rule: MaskRule) -> None:
        self._twin = twin
        self._rule = rule
        self._masked: dict[int, Literal[True]] = {}  # by index in the batch

    def is_argmax_invariant(self) -> bool:
        return False  # the most likely token may be masked

    def update_state(self, batch_update: Any) -> None:
        from vllm.v1.sample.logits_processor import process_dict_updates

        process_dict_updates(self._masked, batch_update, _asks_for_mask)

    def apply(self, logits_BV: Tensor) -> Tensor:
        """Masked rows keep the tokens that the mask model allows.

        A token that the policy can't draw any more (an end token before the minimum length) is taken out
        of the mask model's distribution first: the set then always holds a token that can be drawn.
        """
        if not self._masked:
            return logits_BV
        rows_M = torch.tensor(sorted(self._masked), device=logits_BV.device)
        policy_MV = logits_BV[rows_M]
        mask_MV = self._twin.mask_logits(rows_M).float().masked_fill(policy_MV.isneginf(), -torch.inf)
        logits_BV[rows_M] = policy_MV.masked_fill(~allowed(mask_MV, self._rule), -torch.inf)
        return logits_BV


def _asks_for_mask(parameters: Any, *_: Any) -> Literal[True] | None:
    return True if parameters.extra_args == MASKED else None
