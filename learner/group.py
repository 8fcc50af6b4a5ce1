"""The learner as a Ray actor, behind calls with deadlines that report progress while they wait."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import ray

from contracts.clients import PublishedWeights
from contracts.errors import DeadlineExceeded, InputError, LearnerError
from contracts.rollout import Rollout

LOOK_S = 0.1  # how often progress is looked at


class LearnerGroup:
    """`contracts.clients.LearnerClient` over one Ray actor."""

    def __init__(self, actor: Any, engine_dtype: str, timeout_s: float) -> None:
        self._actor, self._engine_dtype, self._timeout_s = actor, engine_dtype, timeout_s
        # NLPO's mask model changes rarely: its arrays stay where they are until it does.
        self._mask_version: int | None = None
        self._mask_arrays: Any = None

    def wait_until_ready(self) -> None:
        """Wait until the models are loaded.

        Raises:
            InputError: the model can't be used; LearnerError: its process died.
        """
        self._get(self._actor.progress.remote(), "the learner to load its models")

    def update(
        self, rollouts: Sequence[Rollout], on_progress: Callable[[str, int, int], None]
    ) -> dict[str, float]:
        call = self._actor.update.remote(list(rollouts))
        deadline = time.monotonic() + self._timeout_s
        while not ray.wait([call], timeout=LOOK_S)[0]:
            if time.monotonic() > deadline:
                raise DeadlineExceeded(
                    f"waited {self._timeout_s:.0f} s for an update on {len(rollouts)} rollouts; "
                    "learner.update_timeout_s= allows for more"
                )
            on_progress(*self._get(self._actor.progress.remote(), "the learner's progress"))
        metrics: dict[str, float] = self._get(call, "an update")
        return metrics

    def publish(self) -> PublishedWeights:
        call, arrays = self._actor.publish.options(num_returns=2).remote(self._engine_dtype)
        manifest = self._get(call, "weights to be published")
        if manifest.mask_version is not None and manifest.mask_version != self._mask_version:
            self._mask_version, self._mask_arrays = manifest.mask_version, self._actor.publish_mask.remote()
        return PublishedWeights(manifest, arrays, self._mask_arrays)

    def save(self, folder: str) -> None:
        self._get(self._actor.save.remote(folder), "the learner's checkpoint")

    def load(self, folder: str) -> None:
        self._get(self._actor.load.remote(folder), "the learner to load its checkpoint")

    def export(self, folder: str) -> None:
        self._get(self._actor.export.remote(folder), "the model to be exported")

    def stop(self) -> None:
        ray.kill(self._actor)

    def _get(self, call: Any, what: str) -> Any:
        try:
            return ray.get(call, timeout=self._timeout_s)
        except ray.exceptions.GetTimeoutError:
            raise DeadlineExceeded(f"waited {self._timeout_s:.0f} s for {what}") from None
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise error.cause from None
            raise LearnerError(f"{what}: {error.cause}\n{error}") from None
        except ray.exceptions.RayActorError as error:
            # Of what a constructor raised Ray keeps the text alone, at the end of its traceback.
            _, mistake, message = str(error).rpartition(f"{InputError.__module__}.{InputError.__name__}: ")
            if mistake:
                raise InputError(message.rstrip()) from None
            raise LearnerError(f"the learner died while it was waited for {what}: {error}") from None
