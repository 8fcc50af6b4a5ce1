"""The losses of reward models, as pure functions. _B examples, _K labels.

Each divides by what it is given, never by a count of its own: splitting a batch changes nothing.
"""

import torch
from torch import Tensor
from torch.nn import functional


def cross_entropy(
    logits_BK: Tensor, labels_B: Tensor, *, divisor: float, weights_K: Tensor | None = None
) -> Tensor:
    """-log softmax(logits)[label], each weighted by its label, summed and divided by `divisor`.

    The divisor is the sum of the weights of the whole batch; without weights the number of its examples.

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
    """-log sigmoid(r_chosen - r_rejected - margin) + centering · (r_chosen + r_rejected)², over `divisor`.

    Ouyang et al. 2022, equation 1, after Bradley & Terry 1952; margins: Touvron et al. 2023 (Llama 2),
    equation 2; centring: Eisenstein et al. 2023, as rewards are otherwise known up to a constant only.

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
    """N / (K · n_k): every label weighs the same as a whole, and a mean example weighs 1.

    King & Zeng 2001; a label that no example has gets 0.

    >>> balanced_weights(torch.tensor([0, 0, 0, 1]), 2)
    tensor([0.6667, 2.0000])
    """
    counts_K = torch.bincount(labels_B, minlength=num_labels).float()
    weights_K = len(labels_B) / (num_labels * counts_K.clamp(min=1))
    return weights_K * (counts_K > 0)
