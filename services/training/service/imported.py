"""Modules that a new trainer or sampler needs. The server process that forks them imports these."""

import torch._dynamo  # the first step of an optimiser imports it, which takes seconds

import learner.training_service.trainer
import services.training.service.sampler

__all__ = ["learner", "services", "torch"]
