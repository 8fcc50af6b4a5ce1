"""Pack a micro-batch's sequences into one row without padding, and spare other passes the search for them.

    (12, 14, 15, 2) and (12, 9, 2) ──▶ 12 14 15 12 9 ──▶ trunk ──▶ states at 1, 2 and 4

For each pass transformers compares positions to see whether a row holds several sequences. It waits for the
answer, so a GPU must first finish all work. Here the host knows: a causal policy's rows hold one sequence
each, or attention gets their starts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from learner.batches.micro_batch import MicroBatch, Rows, upload
from learner.models.attention import packs_on, product_type
from learner.models.shared_prompts import KINDS

# All known architectures except one, whose layers do not tell attention where sequences start.
PACKED_KINDS = KINDS - {"stablelm"}
_LOOKS_FOR_NONE: ContextVar[bool] = ContextVar("looks_for_none", default=False)


@contextmanager
def nothing_packed() -> Iterator[None]:
    """Let passes in this context leave out transformers' search for packed sequences."""
    from transformers import masking_utils

    looks: Any = getattr(masking_utils, "find_packed_sequence_indices", None)
    if looks is not None and not getattr(looks, "may_skip", False):

        def look_unless_known(position_ids: Tensor) -> Tensor | None:
            packed: Tensor | None = None if _LOOKS_FOR_NONE.get() else looks(position_ids)
            return packed

        look_unless_known.may_skip = True  # type: ignore[attr-defined]
        setattr(masking_utils, "find_packed_sequence_indices", look_unless_known)  # noqa: B010
    before = _LOOKS_FOR_NONE.set(True)
    try:
        yield
    finally:
        _LOOKS_FOR_NONE.reset(before)


@dataclass(frozen=True, slots=True)
class PackedRow:
    """All sequences of a micro-batch one after another: _P tokens; _E: one for each sequence, and one more.

    Each ends before the last generated token, which predicts nothing.

    Example: (12, 14, 15, 2) and (12, 9, 2), of which the model wrote (15, 2) and (2,).

        tokens_1P [[12, 14, 15, 12, 9]]   positions_1P [[0, 1, 2, 0, 1]]   starts_E [0, 3, 5]   longest 3
        places_N [1, 2, 4]
    """

    tokens_1P: Tensor
    positions_1P: Tensor
    starts_E: Tensor  # int32, as kernels need it
    places_N: Tensor  # places whose next token is generated
    longest: int


def packed_row(micro: MicroBatch) -> PackedRow:
    """Return a micro-batch's sequences as one row, planned once on the host for all passes."""
    return micro.on_host.laid_out(_pack)


def _pack(rows: Rows) -> PackedRow:
    tokens_SL, mask_SL = rows.tokens_SL, rows.mask_SL
    width = tokens_SL.shape[1]
    lengths_S = width - 1 - mask_SL[:, ::-1].argmax(-1)
    sequences_P, columns_P = (np.arange(width) < lengths_S[:, None]).nonzero()
    starts_E = np.concatenate([[0], lengths_S.cumsum()])
    sequences_N, columns_N = mask_SL.nonzero()
    arrays = {
        "tokens_1P": tokens_SL[sequences_P, columns_P][None],
        "positions_1P": columns_P[None],
        "starts_E": starts_E.astype(np.int32),
        "places_N": starts_E[sequences_N] + columns_N - 1,
    }
    return PackedRow(**upload(arrays, rows.device), longest=int(lengths_S.max()))


def packed_states(trunk: nn.Module, row: PackedRow) -> Tensor:
    """Return the hidden state (N, H) before each generated token, in the order of the micro-batch."""
    # Pass transformers' keywords, because a compiled graph can't read a context variable.
    hidden_1PH: Tensor = trunk(
        input_ids=row.tokens_1P,
        position_ids=row.positions_1P,
        use_cache=False,
        cu_seq_lens_q=row.starts_E,
        cu_seq_lens_k=row.starts_E,
        max_length_q=row.longest,
        max_length_k=row.longest,
    ).last_hidden_state
    return hidden_1PH[0].index_select(0, row.places_N)


def can_pack(lm: Any, device: torch.device) -> bool:
    """Return whether a pass of a model can read packed rows, by its type of numbers and the device.

    The model must attend only to earlier tokens, as `can_share` checks, and drop nothing out.
    """
    config = lm.config
    if config.model_type not in PACKED_KINDS:
        return False
    num_heads: int = config.num_attention_heads
    num_keys = getattr(config, "num_key_value_heads", None) or num_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    return packs_on(device, product_type(device, lm.dtype), (num_heads, num_keys), width)
