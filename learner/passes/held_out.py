"""Measure held-out responses under the current weights: nothing is generated, and nothing is trained.

- Imitated texts are measured by their tokens: mean cross-entropy, its exp (perplexity), and the share of
  tokens that the model itself would choose (greedily).
- Preferences are measured by the algorithm's loss and metrics, as in an update.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from learner.algorithms.base import CreditInputs
from learner.batches.batching import Batch
from learner.batches.fetching import fetched
from learner.batches.splitting import rank_micro_batches
from learner.distributed.ranks import ALONE, Ranks
from learner.functional.logprobs import row_chunks
from learner.models.policy import Policy
from learner.updates.context import UpdateContext

LOSS = "loss"


@torch.no_grad()
def measure_tokens(
    policy: Policy,
    batch: Batch,
    token_budget: int,
    ranks: Ranks = ALONE,
    advance: Callable[[int], None] = lambda _done: None,
) -> dict[str, float]:
    """Return `loss` (nats a token), `perplexity` and `token_accuracy` of the responses' tokens.

    Args:
        advance: called with the number of finished sequences after each micro-batch.
    """
    zero = torch.zeros((), dtype=torch.float64, device=batch.device)
    sums, done = {"nats": zero, "chosen": zero, "tokens": zero}, 0
    for micro in rank_micro_batches(batch, torch.arange(batch.num_rollouts), token_budget, ranks):
        hidden_NH, targets_N = policy.states(micro), micro.targets_N
        done += micro.num_sequences
        advance(min(batch.num_sequences, done * ranks.size))
        if not micro.weight:
            continue
        for a, b in row_chunks(len(targets_N), policy.vocab_size, policy.logits_budget):
            logits_NV = policy.logits(hidden_NH[a:b]).float()
            nats = torch.nn.functional.cross_entropy(logits_NV, targets_N[a:b], reduction="sum")
            sums["nats"] = sums["nats"] + nats.double()
            sums["chosen"] = sums["chosen"] + (logits_NV.argmax(-1) == targets_N[a:b]).sum()
        sums["tokens"] = sums["tokens"] + len(targets_N)
    totals = ranks.total(fetched(sums))
    loss = totals["nats"] / totals["tokens"]
    return {
        LOSS: loss,
        "perplexity": math.exp(min(loss, 700.0)),  # exp(710) exceeds a float
        "token_accuracy": totals["chosen"] / totals["tokens"],
    }


@torch.no_grad()
def measure_preferences(
    context: UpdateContext, advance: Callable[[int], None] = lambda _done: None
) -> dict[str, float]:
    """Return the algorithm's `loss` and its metrics over all responses of the context's batch.

    Args:
        advance: as in `measure_tokens`.
    """
    batch, algorithm = context.batch, context.algorithm
    credit = algorithm.credit(_inputs(context))
    sums: dict[str, Tensor] = {}
    done = 0
    for micro in context.micro_batches(torch.arange(batch.num_rollouts)):
        inputs = context.loss_inputs(
            micro, credit, num_tokens=batch.num_tokens, num_rollouts=batch.num_rollouts
        )
        for name, share in algorithm.loss(inputs).metrics.items():
            sums[name] = sums.get(name, 0.0) + micro.weight * share
        done += micro.num_sequences
        advance(min(batch.num_sequences, done * context.ranks.size))
    totals = context.ranks.total(fetched(sums))
    return {LOSS: totals.pop("loss/policy"), **totals}


def _inputs(context: UpdateContext) -> CreditInputs:
    batch, scored = context.batch, context.scored
    return CreditInputs(
        rewards_BT=batch.rewards_BT,
        kl_BT=torch.zeros_like(batch.rewards_BT),
        values_BT=scored.values_BT,
        mask_BT=batch.mask_BT,
        positions_BT=batch.positions_BT,
        groups_B=batch.groups_B,
        bootstrap_B=torch.zeros_like(batch.baseline_B),
        baseline_B=batch.baseline_B,
        kl_coefficient=context.kl_coefficient,
    )
