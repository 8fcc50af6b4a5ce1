"""The learner as a Ray actor, or several that are its ranks: calls with deadlines, progress meanwhile, others
where one is lost.

A call that takes long is no sign of anything: what is watched is whether each process answers at all, from a
thread of its own, while it computes. Ranks wait for each other in every pass, so one that is lost takes the
others with it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from contracts.clients import PublishedWeights
from contracts.errors import DeadlineExceeded, InputError, LearnerError, LearnerLost
from contracts.rollout import Rollout
from learner.ranks import MeetingPoint, Rendezvous
from learner.settings import LearnerSettings

LOOK_S = 0.1  # how often progress is looked at

OnProgress = Callable[[str, int, int], None]


@dataclass(slots=True)
class _Watched:
    """What one process last said of itself."""

    name: str
    actor: Any
    asked: Any
    said: tuple[str, int, int] = ("idle", 0, 1)
    heard_at: float = field(default_factory=time.monotonic)


class LearnerGroup:
    """`contracts.clients.LearnerClient` over one Ray actor, or `learner.num_processes` of them.

    All get the same calls; the first one's answer counts.

    Args:
        make_actor: starts one, given where it meets the others (None: there are none); called again for each
            where one is lost.
    """

    def __init__(
        self, make_actor: Callable[[Rendezvous | None], Any], engine_dtype: str, settings: LearnerSettings
    ) -> None:
        self._make_actor, self._engine_dtype = make_actor, engine_dtype
        self._timeout_s, self._stall_timeout_s = settings.update_timeout_s, settings.stall_timeout_s
        self._num_processes = settings.num_processes
        self._start()

    def _start(self) -> None:
        count = self._num_processes
        self._meeting = MeetingPoint(ray.util.get_node_ip_address(), count) if count > 1 else None
        self._actors = [
            self._make_actor(self._meeting.for_rank(rank) if self._meeting else None) for rank in range(count)
        ]
        # NLPO's mask model changes rarely: its arrays stay where they are until it does.
        self._mask_version: int | None = None
        self._mask_arrays: Any = None

    def wait_until_ready(self) -> None:
        """Wait until the models are loaded.

        Raises:
            InputError: the model can't be used; LearnerLost: a process died.
        """
        what = "the learner to load its models"
        loading = [actor.progress.remote() for actor in self._actors]
        while loading:  # whoever fails is not to be waited for behind one that waits for it
            loaded, loading = ray.wait(loading, timeout=self._timeout_s)
            if not loaded:
                raise DeadlineExceeded(f"waited {self._timeout_s:.0f} s for {what}")
            self._get(loaded[0], what)

    def restart(self) -> None:
        """Other processes in the place of these, with the models that a run begins with."""
        self.stop()
        self._start()
        self.wait_until_ready()

    def pids(self) -> list[int]:
        """Of the learner's processes."""
        return [int(self._get(actor.pid.remote(), "the learner's process id")) for actor in self._actors]

    def update(self, rollouts: Sequence[Rollout], on_progress: OnProgress) -> dict[str, float]:
        shared = ray.put(list(rollouts))
        calls = [actor.update.remote(shared) for actor in self._actors]
        metrics: dict[str, float] = self._watched(
            calls, f"an update on {len(rollouts)} rollouts", on_progress
        )
        return metrics

    def publish(self) -> PublishedWeights:
        calls = [actor.publish.options(num_returns=2).remote(self._engine_dtype) for actor in self._actors]
        manifest = self._watched([call for call, _ in calls], "weights to be published")
        if manifest.mask_version is not None and manifest.mask_version != self._mask_version:
            # Waited for here: that the learner dies in it is not to look like a worker's loss.
            mask, *others = [actor.publish_mask.remote() for actor in self._actors]
            self._await(others, "the mask's weights to be published", large=[mask])
            self._mask_version, self._mask_arrays = manifest.mask_version, mask
        return PublishedWeights(manifest, calls[0][1], self._mask_arrays)

    def save(self, folder: str) -> None:
        self._watched([actor.save.remote(folder) for actor in self._actors], "the learner's checkpoint")

    def load(self, folder: str) -> None:
        calls = [actor.load.remote(folder) for actor in self._actors]
        self._watched(calls, "the learner to load its checkpoint")

    def export(self, folder: str) -> None:
        self._watched([actor.export.remote(folder) for actor in self._actors], "the model to be exported")

    def stop(self) -> None:
        for actor in self._actors:
            ray.kill(actor)

    def _watched(self, calls: Sequence[Any], what: str, on_progress: OnProgress = lambda *_: None) -> Any:
        """The result of the first process's call."""
        self._await(calls, what, on_progress)
        return self._get(calls[0], what)

    def _await(
        self,
        calls: Sequence[Any],
        what: str,
        on_progress: OnProgress = lambda *_: None,
        *,
        large: Sequence[Any] = (),
    ) -> None:
        """Until all calls have ended; `on_progress` is called meanwhile, with what was last said.

        Args:
            large: calls whose results are not fetched.

        Raises:
            LearnerLost: a process died, or did not say anything for `learner.stall_timeout_s`.
            LearnerError, InputError: a call failed; the others may be waiting for it.
            DeadlineExceeded: they live, and `learner.update_timeout_s` is over.
        """
        pending, watched = [*large, *calls], self._watch()
        deadline = time.monotonic() + self._timeout_s
        while pending:
            ended, pending = ray.wait(pending, num_returns=len(pending), timeout=LOOK_S)
            for call in ended:
                if call not in large:
                    self._get(call, what)
            if not pending:
                return
            for each in watched:
                self._look_at(each, what)
            if time.monotonic() > deadline:
                raise DeadlineExceeded(
                    f"waited {self._timeout_s:.0f} s for {what}; learner.update_timeout_s= allows for more"
                )
            on_progress(*watched[0].said)

    def _watch(self) -> list[_Watched]:
        count = len(self._actors)
        names = [f"process {i} of {count} of the learner" for i in range(1, count + 1)]
        return [
            _Watched(name if count > 1 else "the learner", actor, actor.progress.remote())
            for name, actor in zip(names, self._actors, strict=True)
        ]

    def _look_at(self, each: _Watched, what: str) -> None:
        now = time.monotonic()
        if ray.wait([each.asked], timeout=0)[0]:
            each.said, each.heard_at = self._get(each.asked, what), now
            each.asked = each.actor.progress.remote()
        elif now - each.heard_at > self._stall_timeout_s:
            raise LearnerLost(f"{each.name} gave no sign of life for {now - each.heard_at:.0f} s: {what}")

    def _get(self, call: Any, what: str) -> Any:
        try:
            return ray.get(call, timeout=self._timeout_s)
        except ray.exceptions.GetTimeoutError:
            raise DeadlineExceeded(f"waited {self._timeout_s:.0f} s for {what}") from None
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise error.cause from None
            if not isinstance(error.cause, LearnerError):
                self._require_all(what)
            raise LearnerError(f"{what}: {error.cause}\n{error}") from None
        except ray.exceptions.RayActorError as error:
            # Of what a constructor raised Ray keeps the text alone, at the end of its traceback.
            _, mistake, message = str(error).rpartition(f"{InputError.__module__}.{InputError.__name__}: ")
            if mistake:
                raise InputError(message.rstrip()) from None
            raise LearnerLost(f"the learner died while it was waited for {what}: {error}") from None
        except ray.exceptions.RayError as error:  # its node went, or its memory was full
            raise LearnerLost(f"the learner was lost while it was waited for {what}: {error}") from None

    def _require_all(self, what: str) -> None:
        """That a call failed may be the loss of another process, which is told of later, or never.

        Raises:
            LearnerLost: one does not answer.
        """
        for each in self._watch() if len(self._actors) > 1 else ():
            try:
                ray.get(each.asked, timeout=self._stall_timeout_s)
            except ray.exceptions.RayError as error:
                raise LearnerLost(f"{each.name} was lost while it was waited for {what}: {error}") from None
