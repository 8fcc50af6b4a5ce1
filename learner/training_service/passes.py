"""Run texts through a policy: log-probabilities of their targets, and gradients of a loss."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from learner.models.packing import nothing_packed
from learner.models.policy import Policy
from learner.optimization.precision import Precision
from learner.training_service.data import TARGETS, Datum, micro_batches
from learner.training_service.losses import LOSSES, Config

Result = tuple[list[np.ndarray], float]


def run_loss(
    policy: Policy,
    data: Sequence[Datum],
    loss: str,
    config: Config,
    *,
    backward: bool,
    precision: Precision,
    token_budget: int,
) -> Result:
    """Compute a loss; if asked, add its gradients to the parameters'.

    Returns:
        log-probabilities of each datum's targets, in the targets' shape, float32; and the summed loss.
    """
    logprobs: list[np.ndarray] = []
    total = 0.0
    with torch.set_grad_enabled(backward):
        for batch in micro_batches(data, token_budget):
            with precision.autocast():
                logprobs_M = target_logprobs(policy, batch)
            loss_M = LOSSES[loss].of_tokens(logprobs_M, _flat_inputs(batch, logprobs_M), config)
            if backward:
                precision.backward(loss_M.sum())
            total += float(loss_M.detach().double().sum())
            logprobs += _split(logprobs_M.detach().float().cpu().numpy(), batch)
    return logprobs, total


def target_logprobs(policy: Policy, batch: Sequence[Datum]) -> Tensor:
    """Return the log-probabilities (M,) of all targets of some data, one after another.

    Texts are padded on the right, which the other places of a causal model never see.
    """
    device = next(policy.parameters()).device
    longest = max(len(datum.tokens) for datum in batch)
    tokens_SL = np.zeros((len(batch), longest), np.int64)
    places: list[np.ndarray] = []
    for row, datum in enumerate(batch):
        tokens_SL[row, : len(datum.tokens)] = datum.tokens
        places.append(np.repeat(row * longest + np.arange(len(datum.tokens)), datum.width))
    with nothing_packed():
        hidden_SLH = policy.trunk(
            input_ids=torch.from_numpy(tokens_SL).to(device), use_cache=False
        ).last_hidden_state
    places_M = torch.from_numpy(np.concatenate(places)).to(device)
    targets_M = torch.from_numpy(np.concatenate([datum.targets.reshape(-1) for datum in batch]))
    hidden_MH = hidden_SLH.flatten(0, 1).index_select(0, places_M)
    return policy.logprobs_of(hidden_MH, targets_M.long().to(device))[0]


def _flat_inputs(batch: Sequence[Datum], like_M: Tensor) -> dict[str, Tensor]:
    """Return the loss's inputs (M,) without the targets; all data of a call have the same inputs."""
    return {
        name: torch.from_numpy(
            np.concatenate([np.asarray(datum.inputs[name], np.float32).reshape(-1) for datum in batch])
        ).to(like_M)
        for name in sorted(batch[0].inputs)
        if name != TARGETS
    }


def _split(logprobs_M: np.ndarray, batch: Sequence[Datum]) -> list[np.ndarray]:
    ends = np.cumsum([datum.targets.size for datum in batch])[:-1]
    return [
        part.reshape(datum.targets.shape)
        for part, datum in zip(np.split(logprobs_M, ends), batch, strict=True)
    ]
