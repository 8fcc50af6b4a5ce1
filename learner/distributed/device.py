"""Choose the device on which a learner computes."""

import torch

from contracts.errors import InputError
from learner.distributed.rendezvous import Rendezvous
from learner.settings import LearnerSettings


def pick_device(settings: LearnerSettings, rendezvous: Rendezvous | None = None) -> torch.device:
    """Choose the device; each of several ranks on a machine gets a separate GPU.

    A GPU gets an index, because torch makes no GPU without one the current GPU.

    Raises:
        InputError: the settings ask for float16 on a CPU.
    """
    name = settings.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        return torch.device(name, rendezvous.rank % torch.cuda.device_count() if rendezvous else 0)
    if settings.autocast == "float16":
        raise InputError(
            "learner.autocast=float16 needs a GPU, but the learner is on a CPU; expected bfloat16 or none"
        )
    return torch.device(name)


def enter(device: torch.device) -> None:
    """Make a GPU the calling thread's current one, because CUDA keeps one for each thread.

    Switch off cuDNN's attention, because it builds a plan for each new shape, and each micro-batch has one.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.enable_cudnn_sdp(False)
