"""Apply NLPO's mask as a vLLM logits processor, to the requests that need it."""

from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from contracts.rollout import MaskRule
from contracts.token_sets import mask_set

MASKED = {"masked": True}  # the `extra_args` of a masked request's parameters


class MaskModel(Protocol):
    """Model beside the policy whose logits decide which tokens stay."""

    def mask_logits(self, rows_M: Tensor) -> Tensor:
        """Return the logits (M, V) of the batch's rows `rows_M`."""
        ...


class MaskProcessor:
    """Remove tokens that NLPO's mask forbids, through the interface of vLLM's `LogitsProcessor`.

    The class does not import vLLM's. Row i of the logits belongs to the request at index i of the batch. vLLM
    reports which requests came, left and moved. It then applies temperature, top-k and top-p to the remaining
    tokens. It returns the log-probabilities of the renormalised distribution from which it sampled.
    """

    def __init__(self, twin: MaskModel, rule: MaskRule) -> None:
        self._twin = twin
        self._rule = rule
        self._masked: dict[int, Literal[True]] = {}  # by index in the batch

    def is_argmax_invariant(self) -> bool:
        return False  # the most likely token may be masked

    def update_state(self, batch_update: Any) -> None:
        from vllm.v1.sample.logits_processor import process_dict_updates

        process_dict_updates(self._masked, batch_update, _asks_for_mask)

    def apply(self, logits_BV: Tensor) -> Tensor:
        """Keep only tokens that the mask model allows, in masked rows.

        A token that the policy can't draw (an end token before the minimum length) first leaves the mask
        model's distribution. So the set always has a token that can be drawn.
        """
        if not self._masked:
            return logits_BV
        rows_M = torch.tensor(sorted(self._masked), device=logits_BV.device)
        policy_MV = logits_BV[rows_M]
        mask_MV = self._twin.mask_logits(rows_M).float().masked_fill(policy_MV.isneginf(), -torch.inf)
        logits_BV[rows_M] = policy_MV.masked_fill(~mask_set(mask_MV, self._rule), -torch.inf)
        return logits_BV


def _asks_for_mask(parameters: Any, *_: Any) -> Literal[True] | None:
    return True if parameters.extra_args == MASKED else None
