"""Makers of trainer and sampler. They import torch late, because the web server does not need it."""

from typing import Any


def make_trainer(path: str, *, trains_whole: bool) -> Any:
    """Return a `learner.training_service.trainer.Trainer`."""
    from learner.training_service.trainer import Trainer

    return Trainer(path, trains_whole=trains_whole)


def make_sampler(path: str, engine: str, window: int | None) -> Any:
    """Return a `services.training.service.sampler.Sampler`."""
    from services.training.service.sampler import Sampler

    return Sampler(path, engine, window)
