"""Pick numbers of single tokens from an update, for people who watch the run."""

import numpy as np
import torch

from contracts.clients import TokenNumbers
from learner.algorithms.base import Credit
from learner.batches.batching import Batch
from learner.off_policy import Correction
from learner.passes.scoring import ScoredBatch

__all__ = ["TokenNumbers", "token_numbers"]

EACH = 16  # rollouts of an update
MOST_TOKENS = 2048  # first tokens of a rollout


def token_numbers(
    batch: Batch, scored: ScoredBatch, credit: Credit, correction: Correction | None
) -> list[TokenNumbers]:
    """Return the numbers of the first rollouts that the policy drew; [] if it scored none.

    A token is in the loss unless its rollout or a bound on π_old/μ excludes it.
    """
    rows = batch.own_rows()[:EACH]
    if scored.entropies_BT is None or not len(rows):
        return []
    places = rows_N, _ = batch.places(rows)
    counts = batch.counts_B.numpy()[rows]
    in_loss_N = torch.ones_like(rows_N, dtype=torch.bool)
    if credit.trains_B is not None:
        in_loss_N &= credit.trains_B.to(rows_N.device)[rows_N]
    old_N = scored.old_logprobs_BT[places]
    if correction is not None:
        responses_N = torch.from_numpy(np.repeat(np.arange(len(rows)), counts)).to(rows_N.device)
        log_ratio_N = old_N - batch.behavior_logprobs_BT[places]
        in_loss_N &= correction.kept(log_ratio_N, responses_N, len(rows))[0]
    numbers = torch.stack([old_N.float(), credit.advantages_BT[places].float(), in_loss_N.float()])
    by_row = np.split(numbers.cpu().numpy(), np.cumsum(counts)[:-1], axis=1)
    chosen = []
    for row, numbers_3T in zip(rows, by_row, strict=True):
        logprobs, advantages, in_loss = numbers_3T[:, :MOST_TOKENS]
        lease, role = batch.leases[row]
        chosen.append(TokenNumbers(lease, role, numbers_3T.shape[1], logprobs, advantages, in_loss))
    return chosen
