"""Plan micro-batches on the host: upload every index that their passes need at once.

If a pass asks a GPU for a number, or for the places of a mask, it waits until the GPU has done all earlier
work. So NumPy computes the indices from the host's copies of tokens and masks. All passes over a micro-batch
read the same upload: old policy, reference, and each epoch of the update.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

Layout = TypeVar("Layout")
ALIGNED = 8  # alignment in bytes, the size of a plan's largest number


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Some sequences of a batch, cut to the longest: _S sequences, _L tokens, _N generated tokens, flat.

    Example: the second sequence of the example in `Batch`, whose rollout has three generated tokens.

        tokens_SL [[12, 9, 2]]   loss_mask_SL [[0, 0, 1]]   rows_N [0]   columns_N [2]
        targets_N [2]   responses_N [0]   lengths_N [3]   places_N [1]   rows_R [0]
    """

    tokens_SL: Tensor
    loss_mask_SL: Tensor
    rows_N: Tensor  # rollout of each generated token
    columns_N: Tensor  # place of the token among the rollout's generated tokens
    targets_N: Tensor  # the generated tokens
    responses_N: Tensor  # the rollout of each token, numbered within this micro-batch: 0, 0, 1 …
    lengths_N: Tensor  # number of generated tokens of each token's rollout
    places_N: Tensor  # flat place in (S, L) of the token before, whose state predicts it
    rows_R: Tensor  # rollout of each response
    on_host: "Rows" = field(repr=False)
    weight: float = 1.0  # 0: the pass adds nothing and only keeps this rank in step with the others
    sequences: tuple[int, ...] = ()  # the batch's sequences, in the order of the rows

    @property
    def num_sequences(self) -> int:
        return self.tokens_SL.shape[0]

    @property
    def num_responses(self) -> int:
        return self.rows_R.shape[0]

    def pick(self, values_BT: Tensor) -> Tensor:
        """Select this micro-batch's entries of per-token numbers; return (N,) or (N, …)."""
        return values_BT[self.rows_N, self.columns_N]

    def place(self, target_BT: Tensor, values_N: Tensor) -> None:
        """Write this micro-batch's per-token numbers into the batch's tensor."""
        target_BT[self.rows_N, self.columns_N] = values_N

    def predicting(self, hidden_SLH: Tensor) -> Tensor:
        """Select the hidden states (N, H) before each generated token."""
        return hidden_SLH.flatten(0, 1).index_select(0, self.places_N)

    def again(self) -> "MicroBatch":
        """Return the same plan for a further pass, with a new tensor of tokens.

        A shared trunk keeps its output as long as its input tensor lives. A pass with other dropout must not
        read it.
        """
        return replace(self, tokens_SL=self.tokens_SL.view_as(self.tokens_SL))


@dataclass(frozen=True, slots=True)
class Rows:
    """Sequences of a micro-batch on the host, and layouts made from them."""

    tokens_SL: np.ndarray
    mask_SL: np.ndarray
    device: torch.device
    _layouts: dict[object, Any] = field(default_factory=dict, compare=False, repr=False)

    def laid_out(self, make: Callable[["Rows"], Layout]) -> Layout:
        """Return `make` of these rows; call it once, however many passes ask for the result."""
        if make not in self._layouts:
            self._layouts[make] = make(self)
        return cast(Layout, self._layouts[make])

    @property
    def num_words(self) -> int:
        """Return the highest token plus 1."""
        return int(self.tokens_SL.max()) + 1


def plan(
    tokens_SL: np.ndarray,
    mask_SL: np.ndarray,
    rows_S: np.ndarray,
    columns_S: np.ndarray,
    counts_B: np.ndarray,
    device: torch.device,
) -> MicroBatch:
    """Plan the passes over these sequences.

    Args:
        rows_S: each sequence's rollout; sequences of one rollout are neighbours.
        columns_S: the place of the sequence's first generated token among the rollout's.
        counts_B: the number of generated tokens of each rollout of the batch.
    """
    sequences_N, places_N = mask_SL.nonzero()
    rows_N = rows_S[sequences_N]
    first_of_row_S = np.flatnonzero(np.diff(rows_S, prepend=-1))
    responses_S = np.cumsum(np.diff(rows_S, prepend=-1) != 0) - 1
    within_SL = mask_SL.cumsum(-1)
    arrays = {
        "tokens_SL": tokens_SL,
        "loss_mask_SL": mask_SL,
        "rows_N": rows_N,
        "columns_N": columns_S[sequences_N] + within_SL[sequences_N, places_N] - 1,
        "targets_N": tokens_SL[sequences_N, places_N],
        "responses_N": responses_S[sequences_N],
        "lengths_N": counts_B[rows_N],
        "places_N": sequences_N * tokens_SL.shape[1] + places_N - 1,
        "rows_R": rows_S[first_of_row_S],
    }
    uploaded: dict[str, Any] = {**upload(arrays, device)}
    return MicroBatch(**uploaded, on_host=Rows(tokens_SL, mask_SL, device))


def upload(arrays: Mapping[str, np.ndarray], device: torch.device) -> dict[str, Tensor]:
    """Return the arrays as tensors on the device, of the same types and shapes.

    All lie in one buffer, so a GPU copies once, and no pass waits for the copy.
    """
    starts, end = list[int](), 0
    for array in arrays.values():
        starts.append(end)
        end += -(-array.nbytes // ALIGNED) * ALIGNED
    buffer = torch.empty(end, dtype=torch.uint8, pin_memory=device.type == "cuda")
    on_host = buffer.numpy()
    for start, array in zip(starts, arrays.values(), strict=True):
        on_host[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    uploaded = buffer.to(device, non_blocking=True)
    return {
        name: uploaded[start : start + array.nbytes]
        .view(torch.from_numpy(np.empty(0, array.dtype)).dtype)
        .view(array.shape)
        for start, (name, array) in zip(starts, arrays.items(), strict=True)
    }
