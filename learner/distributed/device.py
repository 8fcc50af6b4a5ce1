"""Choice of the device on which a learner computes."""

import torch

from learner.distributed.rendezvous import Rendezvous
from learner.settings import LearnerSettings


def pick_device(settings: LearnerSettings, rendezvous: Rendezvous | None = None) -> torch.device:
    """Choose the device; each of several ranks on a machine gets a GPU of its own.

    A GPU has its index: torch makes none without it the current one.
    """
    name = settings.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        return torch.device(name, rendezvous.rank % torch.cuda.device_count() if rendezvous else 0)
    return torch.device(name)


def enter(device: torch.device) -> None:
    """Make a GPU the current one of the calling thread; CUDA keeps one for each thread."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
