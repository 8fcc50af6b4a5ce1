"""Which number format an engine computes in."""

from rollout_workers.settings import RolloutSettings


def engine_dtype(settings: RolloutSettings) -> str:
    """`auto` is bfloat16 on a GPU, and float32 on a CPU, where nothing is gained by less."""
    import torch

    if settings.dtype != "auto":
        return settings.dtype
    return "bfloat16" if torch.cuda.is_available() else "float32"
