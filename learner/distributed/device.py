"""Choice of the device on which a learner computes."""

import torch

from contracts.errors import InputError
from learner.distributed.rendezvous import Rendezvous
from learner.settings import LearnerSettings


def pick_device(settings: LearnerSettings, rendezvous: Rendezvous | None = None) -> torch.device:
    """Choose the device; each of several ranks on a machine gets a GPU of its own.

    A GPU has its index: torch makes none without it the current one.

    Raises:
        InputError: float16 is asked for on a CPU.
    """
    name = settings.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        return torch.device(name, rendezvous.rank % torch.cuda.device_count() if rendezvous else 0)
    if settings.autocast == "float16":
        raise InputError(
            "learner.autocast=float16 needs a GPU, and the learner is on a CPU; expected bfloat16 or none"
        )
    return torch.device(name)


def enter(device: torch.device) -> None:
    """Make a GPU the current one of the calling thread; CUDA keeps one for each thread.

    cuDNN's attention is off: it builds a plan for each new shape, and each micro-batch has another one.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.enable_cudnn_sdp(False)
