"""Share of a GPU's peak operations that an update reached: model FLOPs utilisation (MFU)."""

from typing import Any

import torch

from learner.batches.batching import Batch
from learner.distributed.cards import card_of
from learner.passes.operations import Passes, products_of, squares_of


def utilisation(
    lm: Any, device: torch.device, batch: Batch, passes: Passes, seconds: float, num_ranks: int
) -> dict[str, float]:
    """Return `throughput/mfu` and `throughput/mfu_all_passes`.

    They count each text whole, even if a prompt is read once for several responses. {}: on a CPU, on an
    unknown GPU, or if passes cost otherwise (encoders, frozen weights).

    Args:
        seconds: duration of scoring and update together.
        num_ranks: GPUs that share the work.
    """
    card = card_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    if card is None or lm.config.is_encoder_decoder or not all(p.requires_grad for p in lm.parameters()):
        return {}
    lengths = batch.lengths_S.tolist()
    forward = products_of(lm).forward(sum(lengths), batch.num_tokens, squares_of(lengths))
    whole = card.flops * num_ranks * seconds
    return {
        "throughput/mfu": passes.trained(forward) / whole,
        "throughput/mfu_all_passes": passes.operations(forward) / whole,
    }
