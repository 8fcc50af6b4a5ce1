"""Remote calls to a learner's process, named as the methods of `LearnerProcess`."""

from dataclasses import dataclass
from typing import Any

import ray

from contracts.timeline import Span


@dataclass(frozen=True, slots=True)
class LearnerHandle:
    """Handle of one learner process; each call returns a reference to its result at once."""

    actor: Any  # Ray's handle of a `learner.process.LearnerProcess`

    def start(self) -> "ray.ObjectRef[None]":
        return self.actor.start.remote()

    def progress(self) -> "ray.ObjectRef[tuple[str, int, int]]":
        return self.actor.progress.remote()

    def pid(self) -> "ray.ObjectRef[int]":
        return self.actor.pid.remote()

    def take_spans(self) -> "ray.ObjectRef[tuple[Span, ...]]":
        return self.actor.take_spans.remote()

    def update(self, rollouts: "ray.ObjectRef") -> "ray.ObjectRef[dict[str, float]]":
        return self.actor.update.remote(rollouts)

    def publish(self, engine_dtype: str) -> "tuple[ray.ObjectRef, ray.ObjectRef]":
        """Publish the weights; return references to the manifest and to the arrays, which may be large."""
        manifest, arrays = self.actor.publish.options(num_returns=2).remote(engine_dtype)
        return manifest, arrays

    def publish_mask(self, engine_dtype: str) -> "tuple[ray.ObjectRef, ray.ObjectRef]":
        """Publish the mask model; return references to None, which marks the end, and to the arrays."""
        ended, arrays = self.actor.publish_mask.options(num_returns=2).remote(engine_dtype)
        return ended, arrays

    def published_whole(self) -> "tuple[ray.ObjectRef, ray.ObjectRef]":
        """Return references to the manifest and to all arrays of the last publication."""
        manifest, arrays = self.actor.published_whole.options(num_returns=2).remote()
        return manifest, arrays

    def save(self, folder: str) -> "ray.ObjectRef[None]":
        return self.actor.save.remote(folder)

    def load(self, folder: str) -> "ray.ObjectRef[None]":
        return self.actor.load.remote(folder)

    def export(self, folder: str) -> "ray.ObjectRef[None]":
        return self.actor.export.remote(folder)

    def kill(self) -> None:
        ray.kill(self.actor)
