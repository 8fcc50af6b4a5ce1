"""Learn the reference policy's value: a head on its hidden states predicts its reward on a prompt.

    prompts ─▶ frozen reference ─▶ hidden states ─┐
                     └─▶ its responses ─▶ rewards ┴─▶ train_value ─▶ head ─▶ A = reward - value of the data

The hidden states are computed once. Keep the head of the epoch with the lowest error on held-out prompts.
Without held-out prompts, as published, the training error decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from contracts.errors import LearnerError
from learner.models.value_heads import VALUE_HEADS, ValueHead
from learner.models.value_settings import ValueSettings

EPS = 1e-6  # AdamW's ε, as in LoL-RL


@dataclass(frozen=True, slots=True)
class EpochError:
    """Mean squared errors after an epoch; the training error is a running mean, with dropout.

    Example: `EpochError(epoch=3, train=0.041, held_out=0.048)`
    """

    epoch: int
    train: float
    held_out: float | None  # None: no prompts are held out

    @property
    def decisive(self) -> float:
        """Return the error that chooses the best epoch."""
        return self.train if self.held_out is None else self.held_out


@dataclass(frozen=True, slots=True)
class TrainedValue:
    """Head after its best epoch, in evaluation mode, and the errors of its training.

    `constant_error` is the error of always predicting the training rewards' mean. If `best.decisive` is not
    below it, the head has learned nothing about prompts.
    """

    head: ValueHead
    epochs: tuple[EpochError, ...]
    best: EpochError
    constant_error: float
    held_out: tuple[int, ...]  # indices of prompts


def train_value(states: Sequence[Tensor], rewards_P: Tensor, settings: ValueSettings) -> TrainedValue:
    """Regress rewards on hidden states; the same seed gives the same head.

    Args:
        states: each prompt's hidden states (L, H) of the last layer, after its norm and without padding.
        rewards_P: the reward of the reference's response to each prompt, or the mean over several responses.

    Raises:
        LearnerError: there are fewer than two prompts, a prompt has no tokens, rewards are NaN or out of
            range, or an error is NaN or infinite.
    """
    _check(states, rewards_P, settings)
    train, held_out = _split(len(states), settings)
    targets_P = rewards_P.float().to(device := states[0].device)
    epochs: list[EpochError] = []
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(settings.seed)  # for the head's weights and dropout
        head = make_head(states[0].shape[-1], settings).to(device)
        optimizer = torch.optim.AdamW(head.parameters(), lr=settings.learning_rate, weight_decay=0.0, eps=EPS)
        for epoch in range(1, settings.num_epochs + 1):
            order = train
            if settings.shuffle:
                order = np.random.default_rng([settings.seed, epoch]).permutation(train)
            train_error = _epoch(head, optimizer, states, targets_P, order, settings.batch_size)
            held_out_error = _error(head, states, targets_P, held_out, settings.batch_size)
            epochs.append(_finite(EpochError(epoch, train_error, held_out_error)))
            best = min(epochs, key=lambda error: error.decisive)
            if best is epochs[-1]:
                kept = {name: weight.clone() for name, weight in head.state_dict().items()}
    head.load_state_dict(kept)
    judged = held_out if len(held_out) else train
    constant_error = float((targets_P[judged] - targets_P[train].mean()).square().mean())
    places = tuple(sorted(map(int, held_out)))
    return TrainedValue(head.eval(), tuple(epochs), best, constant_error, places)


def make_head(width: int, settings: ValueSettings) -> ValueHead:
    """Make a new head for hidden states of this width."""
    return VALUE_HEADS[settings.head](width, max_value=settings.max_value, dropout=settings.dropout)


@torch.no_grad()
def predict(head: ValueHead, states: Sequence[Tensor], batch_size: int = 16) -> Tensor:
    """Return the values of prompts, (P,), without dropout."""
    was_training = head.training
    head.eval()
    parts = [head(*pad(states[at : at + batch_size])) for at in range(0, len(states), batch_size)]
    head.train(was_training)
    return torch.cat(parts)


def pad(states: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Pad the states of several prompts on the right; return (hidden_BLH, mask_BL)."""
    hidden_BLH = torch.nn.utils.rnn.pad_sequence(list(states), batch_first=True)
    lengths_B1 = torch.tensor([[len(rows)] for rows in states], device=hidden_BLH.device)
    return hidden_BLH, torch.arange(hidden_BLH.shape[1], device=hidden_BLH.device) < lengths_B1


def _split(num_prompts: int, settings: ValueSettings) -> tuple[np.ndarray, np.ndarray]:
    """Return indices of training prompts and held-out ones, at least one each; none held out at share 0."""
    if not settings.held_out_share:
        return np.arange(num_prompts), np.arange(0)
    order = np.random.default_rng([settings.seed, 0]).permutation(num_prompts)
    num_held_out = min(max(1, round(settings.held_out_share * num_prompts)), num_prompts - 1)
    return order[num_held_out:], order[:num_held_out]


def _error(
    head: ValueHead, states: Sequence[Tensor], targets_P: Tensor, places: np.ndarray, batch_size: int
) -> float | None:
    """Return the mean squared error on these prompts; None without prompts."""
    if not len(places):
        return None
    values_H = predict(head, [states[place] for place in places], batch_size)
    return float((values_H - targets_P[places]).square().mean())


def _finite(error: EpochError) -> EpochError:
    if not math.isfinite(error.train + (error.held_out or 0.0)):
        raise LearnerError(
            f"epoch {error.epoch}: the value's error is {error.train} in training and {error.held_out} held "
            "out; are the hidden states finite? If so, a lower learning_rate= helps"
        )
    return error


def _epoch(
    head: ValueHead,
    optimizer: torch.optim.Optimizer,
    states: Sequence[Tensor],
    targets_P: Tensor,
    order: np.ndarray,
    batch_size: int,
) -> float:
    """Train on the prompts once; return the running mean of the squared error."""
    head.train()
    total = 0.0
    for at in range(0, len(order), batch_size):
        places = order[at : at + batch_size]
        values_B = head(*pad([states[place] for place in places]))
        squares_B = (values_B - targets_P[places]).square()
        optimizer.zero_grad(set_to_none=True)
        squares_B.mean().backward()
        optimizer.step()
        total += float(squares_B.detach().sum())
    return total / len(order)


def _check(states: Sequence[Tensor], rewards_P: Tensor, settings: ValueSettings) -> None:
    if len(states) != len(rewards_P):
        raise LearnerError(f"got {len(states)} prompts and {len(rewards_P)} rewards; expected one for each")
    if len(states) < 2:
        raise LearnerError(
            f"got {len(states)} prompts with rewards; expected at least 2 to learn their value, "
            "because some are held out"
        )
    if empty := [place for place, rows in enumerate(states) if not len(rows)]:
        raise LearnerError(f"{len(empty)} of {len(states)} prompts have no tokens, the first is {empty[0]}")
    if num_wrong := int((~rewards_P.isfinite()).sum()):
        raise LearnerError(f"{num_wrong} of {len(rewards_P)} rewards are NaN or infinite; expected numbers")
    highest = settings.max_value
    if highest is not None and (num_out := int(((rewards_P < 0) | (rewards_P > highest)).sum())):
        raise LearnerError(
            f"{num_out} of {len(rewards_P)} rewards are outside of 0 … max_value={highest:g}: they go from "
            f"{float(rewards_P.min()):.4g} to {float(rewards_P.max()):.4g}. Give the highest possible reward "
            "(a sum of four parts in 0 … 1: max_value=4), or max_value=null for any number"
        )
