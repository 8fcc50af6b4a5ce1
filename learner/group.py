"""The learner as a Ray actor: calls with deadlines, progress meanwhile, another one where it is lost.

A call that takes long is no sign of anything: what is watched is whether the process answers at all, from a
thread of its own, while it computes.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import ray

from contracts.clients import PublishedWeights
from contracts.errors import DeadlineExceeded, InputError, LearnerError, LearnerLost
from contracts.rollout import Rollout
from learner.settings import LearnerSettings

LOOK_S = 0.1  # how often progress is looked at

OnProgress = Callable[[str, int, int], None]


class LearnerGroup:
    """`contracts.clients.LearnerClient` over one Ray actor.

    Args:
        make_actor: starts one; called again where it is lost.
    """

    def __init__(self, make_actor: Callable[[], Any], engine_dtype: str, settings: LearnerSettings) -> None:
        self._make_actor, self._engine_dtype = make_actor, engine_dtype
        self._timeout_s, self._stall_timeout_s = settings.update_timeout_s, settings.stall_timeout_s
        self._start()

    def _start(self) -> None:
        self._actor = self._make_actor()
        # NLPO's mask model changes rarely: its arrays stay where they are until it does.
        self._mask_version: int | None = None
        self._mask_arrays: Any = None

    def wait_until_ready(self) -> None:
        """Wait until the models are loaded.

        Raises:
            InputError: the model can't be used; LearnerLost: its process died.
        """
        self._get(self._actor.progress.remote(), "the learner to load its models")

    def restart(self) -> None:
        """Another process in the place of this one, with the models that a run begins with."""
        self.stop()
        self._start()
        self.wait_until_ready()

    def pid(self) -> int:
        """Of the learner's process."""
        return int(self._get(self._actor.pid.remote(), "the learner's process id"))

    def update(self, rollouts: Sequence[Rollout], on_progress: OnProgress) -> dict[str, float]:
        call = self._actor.update.remote(list(rollouts))
        metrics: dict[str, float] = self._watched(call, f"an update on {len(rollouts)} rollouts", on_progress)
        return metrics

    def publish(self) -> PublishedWeights:
        call, arrays = self._actor.publish.options(num_returns=2).remote(self._engine_dtype)
        manifest = self._watched(call, "weights to be published")
        if manifest.mask_version is not None and manifest.mask_version != self._mask_version:
            # Waited for here: that the learner dies in it is not to look like a worker's loss.
            mask = self._actor.publish_mask.remote()
            self._await(mask, "the mask's weights to be published")
            self._mask_version, self._mask_arrays = manifest.mask_version, mask
        return PublishedWeights(manifest, arrays, self._mask_arrays)

    def save(self, folder: str) -> None:
        self._watched(self._actor.save.remote(folder), "the learner's checkpoint")

    def load(self, folder: str) -> None:
        self._watched(self._actor.load.remote(folder), "the learner to load its checkpoint")

    def export(self, folder: str) -> None:
        self._watched(self._actor.export.remote(folder), "the model to be exported")

    def stop(self) -> None:
        ray.kill(self._actor)

    def _watched(self, call: Any, what: str, on_progress: OnProgress = lambda *_: None) -> Any:
        """The call's result."""
        self._await(call, what, on_progress)
        return self._get(call, what)

    def _await(self, call: Any, what: str, on_progress: OnProgress = lambda *_: None) -> None:
        """Until the call has ended, well or not; `on_progress` is called meanwhile, with what was last said.

        Raises:
            LearnerLost: it died, or did not say anything for `learner.stall_timeout_s`.
            DeadlineExceeded: it lives, and `learner.update_timeout_s` is over.
        """
        said, asked, heard_at = ("idle", 0, 1), self._actor.progress.remote(), time.monotonic()
        deadline = time.monotonic() + self._timeout_s
        while not ray.wait([call], timeout=LOOK_S)[0]:
            now = time.monotonic()
            if ray.wait([asked], timeout=0)[0]:
                said, asked, heard_at = self._get(asked, what), self._actor.progress.remote(), now
            elif now - heard_at > self._stall_timeout_s:
                raise LearnerLost(f"the learner gave no sign of life for {now - heard_at:.0f} s: {what}")
            if now > deadline:
                raise DeadlineExceeded(
                    f"waited {self._timeout_s:.0f} s for {what}; learner.update_timeout_s= allows for more"
                )
            on_progress(*said)

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
            raise LearnerLost(f"the learner died while it was waited for {what}: {error}") from None
        except ray.exceptions.RayError as error:  # its node went, or its memory was full
            raise LearnerLost(f"the learner was lost while it was waited for {what}: {error}") from None
