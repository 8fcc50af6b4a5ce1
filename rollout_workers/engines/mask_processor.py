"""Apply NLPO's mask as a logits processor of vLLM, to the requests that ask for it."""

from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from contracts.rollout import MaskRule
from contracts.token_sets import mask_set

MASKED = {"masked": True}  # the `extra_args` of a masked request's parameters


class MaskModel(Protocol):
    """Model beside the policy whose logits decide what stays."""

    def mask_logits(self, rows_M: Tensor) -> Tensor:
        """Return the logits (M, V) of the batch's rows `rows_M`."""
        ...


class MaskProcessor:
    """Logits processor with the interface of vLLM's `LogitsProcessor`, whose import it avoids.

    Row i of the logits belongs to the request at index i of the batch; vLLM tells which requests came, went
    and moved. Temperature, top-k and top-p follow, on the remaining tokens. vLLM returns the
    log-probabilities of the distribution that it sampled from, renormalised.
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
        """Keep in masked rows the tokens that the mask model allows.

        A token that the policy can't draw (an end token before the minimum length) first leaves the mask
        model's distribution, so that the set always holds a token that can be drawn.
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
