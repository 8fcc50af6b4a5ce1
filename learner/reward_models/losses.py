"""Losses of reward models, as pure functions. _B examples, _K labels.

Each loss divides by the given divisor, not by its batch's size. So a split batch has the same loss.
"""

import torch
from torch import Tensor
from torch.nn import functional


def cross_entropy(
    logits_BK: Tensor, labels_B: Tensor, *, divisor: float, weights_K: Tensor | None = None
) -> Tensor:
    """Sum -log softmax(logits)[label], weighted by label, and divide by `divisor`.

    The divisor is the sum of the whole batch's weights. Without weights it is the number of its examples.

    >>> round(float(cross_entropy(torch.tensor([[0.0, 0.0]]), torch.tensor([1]), divisor=1)), 4)
    0.6931
    """
    return functional.cross_entropy(logits_BK.float(), labels_B, weights_K, reduction="sum") / divisor


def bradley_terry(
    chosen_B: Tensor,
    rejected_B: Tensor,
    *,
    divisor: float,
    margins_B: Tensor | None = None,
    centering: float = 0.0,
) -> Tensor:
    """Sum the pairs' losses and divide by `divisor`.

    The loss of a pair is

        -log sigmoid(r_chosen - r_rejected - margin) + centering · (r_chosen + r_rejected)²

    Ouyang et al. 2022, equation 1, after Bradley & Terry 1952; margins: Touvron et al. 2023 (Llama 2),
    equation 2; centring: Eisenstein et al. 2023. Without centring, rewards are determined only up to a
    constant.

    >>> round(float(bradley_terry(torch.tensor([1.0]), torch.tensor([-1.0]), divisor=1)), 4)
    0.1269
    """
    chosen_B, rejected_B = chosen_B.float(), rejected_B.float()
    apart_B = chosen_B - rejected_B
    if margins_B is not None:
        apart_B = apart_B - margins_B
    loss_B = functional.softplus(-apart_B)
    if centering:
        loss_B = loss_B + centering * (chosen_B + rejected_B).square()
    return loss_B.sum() / divisor


def balanced_weights(labels_B: Tensor, num_labels: int) -> Tensor:
    """Return N / (K · n_k): all labels have the same total weight, and the mean example has weight 1.

    King & Zeng 2001; a label without examples gets 0.

    >>> balanced_weights(torch.tensor([0, 0, 0, 1]), 2)
    tensor([0.6667, 2.0000])
    """
    counts_K = torch.bincount(labels_B, minlength=num_labels).float()
    weights_K = len(labels_B) / (num_labels * counts_K.clamp(min=1))
    return weights_K * (counts_K > 0)
