"""Cut sequences into prompts and responses, which an encoder-decoder reads and writes separately."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from contracts.errors import LearnerError
from learner.batches.micro_batch import MicroBatch, Rows, upload


@dataclass(frozen=True, slots=True)
class SplitTurns:
    """Sequences cut where their responses begin: _B turns, _S tokens of a prompt, _T of a response.

    Example: the prompts (4, 5) and (7,) with the responses (6,) and (8, 9).

        source_BS [[4, 5], [7, 0]]   seen_BS [[1, 1], [1, 0]]   response_BT [[6, 0], [8, 9]]
        places_N [0, 2, 3] (flat, in the response)
    """

    source_BS: Tensor
    seen_BS: Tensor  # 1 at a prompt's tokens
    response_BT: Tensor
    places_N: Tensor


def split_turns(micro: MicroBatch) -> SplitTurns:
    """Cut each turn where its response begins.

    Raises:
        LearnerError: a sequence has several turns, which an encoder-decoder can't read.
    """
    return micro.on_host.laid_out(_cut_turns)


def _cut_turns(rows: Rows) -> SplitTurns:
    tokens_BL, mask_BL = rows.tokens_SL, rows.mask_SL
    if (mask_BL[:, 1:] & ~mask_BL[:, :-1]).sum(-1).max() > 1:
        raise LearnerError(
            "a sequence has several turns; an encoder-decoder reads one prompt and writes one response; "
            "expected turns with a fresh context, as with environment.memory=0"
        )
    num_source_B, num_response_B = mask_BL.argmax(-1), mask_BL.sum(-1)
    seen_BS, written_BT = (
        np.arange(lengths_B.max()) < lengths_B[:, None] for lengths_B in (num_source_B, num_response_B)
    )
    response_BT = np.zeros(written_BT.shape, tokens_BL.dtype)
    response_BT[written_BT] = tokens_BL[mask_BL]
    arrays = {
        "source_BS": tokens_BL[:, : seen_BS.shape[1]] * seen_BS,
        "seen_BS": seen_BS.astype(np.int64),
        "response_BT": response_BT,
        "places_N": np.flatnonzero(written_BT),
    }
    return SplitTurns(**upload(arrays, rows.device))
