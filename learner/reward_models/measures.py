"""Measures of reward models: accuracy, F1 by label, calibration. _N examples, _K labels."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

NUM_BINS = 15


def label_measures(logits_NK: Tensor, labels_N: Tensor, names: Sequence[str]) -> dict[str, Any]:
    """Measure a classifier. Precision, recall and F1 are 0 for a label that is never predicted or never true.

    Example: `{"accuracy": 0.9, "loss": 0.31, "majority": 0.5, "macro_f1": 0.9, "calibration_error": 0.04,
    "labels": {"negative": {"precision": …, "recall": …, "f1": …, "support": 50}, …}, "confusion": [[…], …]}`.
    `majority` is the accuracy of always predicting the commonest label; `confusion` has a row for each true
    label.
    """
    probabilities_NK = logits_NK.float().softmax(-1)
    confidence_N, said_N = probabilities_NK.max(-1)
    count = len(names)
    confusion_KK = torch.bincount(labels_N * count + said_N, minlength=count * count).view(count, count)
    true_K, guessed_K, hits_K = confusion_KK.sum(1), confusion_KK.sum(0), confusion_KK.diagonal()
    by_label = {
        name: _f1(int(hits_K[place]), int(guessed_K[place]), int(true_K[place]))
        for place, name in enumerate(names)
    }
    return {
        "accuracy": int(hits_K.sum()) / len(labels_N),
        "loss": float(functional.cross_entropy(logits_NK.float(), labels_N)),
        "majority": int(true_K.max()) / len(labels_N),
        "macro_f1": sum(row["f1"] for row in by_label.values()) / count,
        "calibration_error": calibration_error(confidence_N, said_N == labels_N),
        "labels": by_label,
        "confusion": confusion_KK.tolist(),
    }


def pair_measures(rewards_N2: Tensor) -> dict[str, Any]:
    """Measure a preference model; the first column has the chosen texts' rewards. A tie counts as wrong.

    Example: `{"accuracy": 0.7, "loss": 0.6, "ties": 0, "margin": 0.4, "reward_mean": 0.1, "reward_std": 1.2,
    "calibration_error": 0.03}`. `margin` is the mean of r_chosen - r_rejected.
    """
    rewards_N2 = rewards_N2.float()
    apart_N = rewards_N2[:, 0] - rewards_N2[:, 1]
    sure_N = apart_N.abs().sigmoid()  # probability of the preferred text
    return {
        "accuracy": int((apart_N > 0).sum()) / len(apart_N),
        "loss": float(functional.softplus(-apart_N).mean()),
        "ties": int((apart_N == 0).sum()),
        "margin": float(apart_N.mean()),
        "reward_mean": float(rewards_N2.mean()),
        "reward_std": float(rewards_N2.std(correction=0)),
        "calibration_error": calibration_error(sure_N, apart_N > 0),
    }


def calibration_error(confidence_N: Tensor, correct_N: Tensor, num_bins: int = NUM_BINS) -> float:
    """Return the expected calibration error: |accuracy - confidence| of equal bins, weighted by examples.
    Guo et al. 2017, equation 3; bins are (0, 1/15], (1/15, 2/15], …

    >>> round(calibration_error(torch.tensor([0.9, 0.9, 0.6]), torch.tensor([True, False, True])), 4)
    0.4
    """
    bins_N = (confidence_N * num_bins).ceil().long().clamp(1, num_bins) - 1
    off_N = correct_N.float() - confidence_N
    off_by_bin = torch.zeros(num_bins).index_add_(0, bins_N, off_N)
    return float(off_by_bin.abs().sum() / len(confidence_N))


def _f1(hits: int, guessed: int, true: int) -> dict[str, float]:
    precision, recall = hits / max(guessed, 1), hits / max(true, 1)
    f1 = 2 * hits / max(guessed + true, 1)
    return {"precision": precision, "recall": recall, "f1": f1, "support": true}
