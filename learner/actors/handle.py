"""Remote calls to a learner's process, named as the methods of `LearnerProcess`."""

from dataclasses import dataclass
from typing import Any

import ray

from contracts.clients import TokenNumbers
from contracts.processes.timeline import Span
from contracts.weights import WeightGroup
from learner.distributed.place import Place


@dataclass(frozen=True, slots=True)
class LearnerHandle:
    """Handle of one learner process; each call returns a reference to its result at once."""

    actor: Any  # Ray's handle of a `learner.actors.process.LearnerProcess`

    def start(self) -> "ray.ObjectRef[str | None]":
        return self.actor.start.remote()

    def progress(self) -> "ray.ObjectRef[tuple[str, int, int]]":
        return self.actor.progress.remote()

    def pid(self) -> "ray.ObjectRef[int]":
        return self.actor.pid.remote()

    def place(self) -> "ray.ObjectRef[Place]":
        return self.actor.place.remote()

    def take_spans(self) -> "ray.ObjectRef[tuple[Span, ...]]":
        return self.actor.take_spans.remote()

    def update(self, rollouts: "ray.ObjectRef") -> "ray.ObjectRef[dict[str, float]]":
        return self.actor.update.remote(rollouts)

    def measure(self, rollouts: "ray.ObjectRef") -> "ray.ObjectRef[dict[str, float]]":
        return self.actor.measure.remote(rollouts)

    def logprobs(self, rollouts: "ray.ObjectRef") -> "ray.ObjectRef[list[list[float]]]":
        return self.actor.logprobs.remote(rollouts)

    def plan(self, iterations: int) -> "ray.ObjectRef[None]":
        return self.actor.plan.remote(iterations)

    def token_numbers(self) -> "ray.ObjectRef[list[TokenNumbers]]":
        return self.actor.token_numbers.remote()

    def score_early(self, rollouts: "ray.ObjectRef", num_rollouts: int) -> "ray.ObjectRef[None]":
        return self.actor.score_early.remote(rollouts, num_rollouts)

    def publish(self, engine_dtype: str) -> "tuple[ray.ObjectRef, ray.ObjectRef]":
        """Publish the weights; return references to the manifest and to the arrays, which can be large."""
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

    def announce(self, engine_dtype: str) -> "ray.ObjectRef":
        """Return a reference to the manifest of the weights that `send_weights` will send."""
        return self.actor.announce.remote(engine_dtype)

    def new_address(self, transport: str) -> "ray.ObjectRef[str]":
        return self.actor.new_address.remote(transport)

    def join_group(self, group: WeightGroup) -> "ray.ObjectRef[str | None]":
        return self.actor.join_group.remote(group)

    def send_weights(self) -> "ray.ObjectRef":
        return self.actor.send_weights.remote()

    def keep_weights(self) -> "ray.ObjectRef[None]":
        return self.actor.keep_weights.remote()

    def release_weights(self) -> "ray.ObjectRef[None]":
        return self.actor.release_weights.remote()

    def sent_whole(self) -> "tuple[ray.ObjectRef, ray.ObjectRef]":
        """Return references to the manifest and to all arrays of the last broadcast."""
        manifest, arrays = self.actor.sent_whole.options(num_returns=2).remote()
        return manifest, arrays

    def save(self, folder: str) -> "ray.ObjectRef[None]":
        return self.actor.save.remote(folder)

    def load(self, folder: str) -> "ray.ObjectRef[None]":
        return self.actor.load.remote(folder)

    def export(self, folder: str) -> "ray.ObjectRef[None]":
        return self.actor.export.remote(folder)

    def kill(self) -> None:
        ray.kill(self.actor)
