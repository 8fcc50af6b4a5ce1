"""Engines that receive over gloo, a learner that sends, and what may go wrong in mid-broadcast."""

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from contracts.network import gloo_group
from contracts.weights import WeightGroup, WeightManifest
from learner.learner import Learner
from learner.publishing import weight_sender
from rollout_workers.engines.transformers_engine import TransformersEngine

VICTIM = "VICTIM"  # environment variable: a file, which only the first to take it away finds
FATAL_VERSION = 1


class ReceivingEngine(TransformersEngine):
    """The control is the fleet's, the bytes are the learner's, and the probe is true: no vLLM is needed."""

    def join_group(self, group: WeightGroup, first_rank: int) -> str | None:
        self._joined: Any = None
        try:
            self._joined = gloo_group.join(group, first_rank)
        except RuntimeError as error:
            return str(error)
        return None

    def receive_weights(self, manifest: WeightManifest, handles: Mapping[str, Any]) -> str | None:
        assert manifest.shapes is not None
        arrays = {}
        try:
            for name, dtype in manifest.dtypes.items():
                tensor = torch.empty(manifest.shapes[name], dtype=getattr(torch, dtype))
                gloo_group.broadcast(self._joined, tensor)
                arrays[name] = tensor.numpy()
                self.received(manifest, len(arrays))
        except RuntimeError as error:
            self._joined = None
            return str(error)
        self.load_weights(manifest, arrays)
        return None

    def received(self, manifest: WeightManifest, number: int) -> None:
        """Called after each tensor."""


class OneDies(ReceivingEngine):
    """One of several is killed when it has received three tensors of the fatal version."""

    how = signal.SIGKILL

    def received(self, manifest: WeightManifest, number: int) -> None:
        if manifest.version == FATAL_VERSION and number == 3:
            try:
                Path(os.environ[VICTIM]).unlink()
            except FileNotFoundError:
                return
            os.kill(os.getpid(), self.how)


class OneStops(OneDies):
    how = signal.SIGSTOP


class CannotJoin(ReceivingEngine):
    def join_group(self, group: WeightGroup, first_rank: int) -> str | None:
        return "no route to the learner" if first_rank == 1 else super().join_group(group, first_rank)


def learner_that_stops(*arguments: Any, **options: Any) -> Learner:
    """A learner whose process stops when it has gathered three tensors, if there is a victim."""
    whole = weight_sender.wire_tensors

    def to_the_third(*arguments: Any) -> Iterator[tuple[str, torch.Tensor]]:
        for number, tensor in enumerate(whole(*arguments)):
            if number == 3:
                try:
                    Path(os.environ[VICTIM]).unlink()
                    os.kill(os.getpid(), signal.SIGSTOP)
                except FileNotFoundError:
                    pass
            yield tensor

    weight_sender.wire_tensors = to_the_third
    return Learner(*arguments, **options)
