"""The learner as a Ray actor, or several that are its ranks: calls with deadlines, progress meanwhile, others
where one is lost.

A call that takes long is no sign of anything: what is watched is whether each process answers at all, from a
thread of its own, while it computes. Ranks wait for each other in every pass, so one that is lost takes the
others with it.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import ray

from contracts.clients import PublishedWeights
from contracts.errors import DiskFull, InputError, LearnerError, LearnerFailed, LearnerLost
from contracts.rollout import Rollout
from contracts.waiting import STARTS_S, Waiting
from learner.ranks import MeetingPoint, Rendezvous
from learner.settings import LearnerSettings
from learner.watch import Watched, watch

LOOK_S = 0.1  # how often progress is looked at

OnProgress = Callable[[str, int, int], None]
Note = Callable[[str], None]


def _nobody(*_: Any) -> None: ...


class LearnerGroup:
    """`contracts.clients.LearnerClient` over one Ray actor, or `learner.num_processes` of them.

    All get the same calls; the first one's answer counts.

    Args:
        make_actor: starts one, a `learner.process.LearnerProcess`, given where it meets the others (None:
            there are none); called again for each where one is lost.
        note: is told of whatever takes long.
        tell: is told how the start gets on; by default `note`.
    """

    def __init__(
        self,
        make_actor: Callable[[Rendezvous | None], Any],
        engine_dtype: str,
        settings: LearnerSettings,
        note: Note = _nobody,
        tell: Note | None = None,
    ) -> None:
        self._make_actor, self._engine_dtype = make_actor, engine_dtype
        self._settings, self._note, self._tell = settings, note, tell or note
        self._start()

    def _start(self) -> None:
        count = self._settings.num_processes
        self._meeting = MeetingPoint(ray.util.get_node_ip_address(), count) if count > 1 else None
        self._actors = [
            self._make_actor(self._meeting.for_rank(rank) if self._meeting else None) for rank in range(count)
        ]
        self._starting = [actor.start.remote() for actor in self._actors]
        self._watched = watch(self._actors, self._settings)
        # NLPO's mask model changes rarely: its arrays stay where they are until it does.
        self._mask_version: int | None = None
        self._mask_arrays: Any = None

    def wait_until_ready(self, on_progress: OnProgress = _nobody) -> None:
        """Wait until the models are loaded.

        Raises:
            InputError: the model can't be used; LearnerLost: a process died, or does not start.
        """
        self._await(self._starting, "the learner to load its models", on_progress, starts=True)

    def restart(self, on_progress: OnProgress = _nobody) -> None:
        """Other processes in the place of these, with the models that a run begins with."""
        self.stop()
        self._start()
        self.wait_until_ready(on_progress)

    def pids(self) -> list[int]:
        """Of the learner's processes, once they answer."""
        asked, what = [actor.pid.remote() for actor in self._actors], "the learner's process id"
        return [int(self._get(call, what, self._settings.start_timeout_s)) for call in asked]

    def update(self, rollouts: Sequence[Rollout], on_progress: OnProgress) -> dict[str, float]:
        metrics: dict[str, float] = self._all(
            f"an update on {len(rollouts)} rollouts", on_progress, "update", ray.put(list(rollouts))
        )
        return metrics

    def publish(self) -> PublishedWeights:
        both = [
            actor.call.options(num_returns=2).remote("publish", self._engine_dtype) for actor in self._actors
        ]
        what = "weights to be published"
        self._await([call for call, _ in both], what)
        manifest = self._get(both[0][0], what)
        if manifest.mask_version is not None and manifest.mask_version != self._mask_version:
            # Waited for here: that the learner dies in it is not to look like a worker's loss.
            masks = [
                actor.call_apart.options(num_returns=2).remote("publish_mask", self._engine_dtype)
                for actor in self._actors
            ]
            self._await([call for call, _ in masks], "the mask's weights to be published")
            self._mask_version, self._mask_arrays = manifest.mask_version, masks[0][1]
        whole = cache(partial(self._published_whole, self._actors[0], self._mask_arrays))
        return PublishedWeights(manifest, both[0][1], self._mask_arrays, whole if manifest.base else None)

    def _published_whole(self, actor: Any, mask_arrays: Any) -> PublishedWeights:
        """All of what this one published last, for whoever lacks what it is based on."""
        manifest, arrays = actor.call.options(num_returns=2).remote("published_whole")
        what = "all of the published weights"
        self._await([manifest], what)
        return PublishedWeights(self._get(manifest, what), arrays, mask_arrays)

    def save(self, folder: str) -> None:
        self._all("the learner's checkpoint", _nobody, "save", folder)

    def load(self, folder: str) -> None:
        self._all("the learner to load its checkpoint", _nobody, "load", folder)

    def export(self, folder: str) -> None:
        self._all("the model to be exported", _nobody, "export", folder)

    def stop(self) -> None:
        for actor in self._actors:
            ray.kill(actor)

    def _all(self, what: str, on_progress: OnProgress, method: str, *arguments: Any) -> Any:
        """Have each process do it; returns what the first one answers."""
        calls = [actor.call.remote(method, *arguments) for actor in self._actors]
        self._await(calls, what, on_progress)
        return self._get(calls[0], what)

    def _await(
        self,
        calls: Sequence[Any],
        what: str,
        on_progress: OnProgress = _nobody,
        starts: bool = False,
    ) -> None:
        """Until all calls have ended; `on_progress` is called meanwhile, with what was last said.

        Raises:
            LearnerLost: a process died, or did not say anything for `learner.stall_timeout_s`, or nothing new
                for `learner.progress_timeout_s`.
            LearnerError, InputError, DiskFull: a call failed; the others may be waiting for it.
        """
        pending, watched = list(calls), self._watched
        for each in watched:
            each.begin()
        waiting = Waiting(self._tell, STARTS_S) if starts else Waiting(self._note)
        while pending:
            ended, pending = ray.wait(pending, num_returns=len(pending), timeout=LOOK_S)
            for call in ended:
                self._get(call, what)
            if not pending:
                return
            for each in watched:
                self._look_at(each, what)
            on_progress(*(watched[0].said or ("start", 0, 1)))
            waiting.progress(max(each.changed_at for each in watched))
            if waiting.is_due:
                waiting.tell(what, [str(each) for each in watched])

    def _look_at(self, each: Watched, what: str) -> None:
        try:
            each.look(what)
        except ray.exceptions.RayError as error:
            raise _lost(error, what) from None

    def _get(self, call: Any, what: str, timeout_s: float | None = None) -> Any:
        """The result of a call, which mostly has ended."""
        try:
            return ray.get(call, timeout=timeout_s or self._settings.stall_timeout_s)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, InputError | DiskFull):
                raise cause from None
            if isinstance(cause, LearnerError):
                raise LearnerError(f"{what}: {cause}") from error
            self._require_all(what)
            raise LearnerFailed(f"{what}: {type(cause).__name__}: {cause}") from error
        except ray.exceptions.RayError as error:
            raise _lost(error, what) from None

    def _require_all(self, what: str) -> None:
        """That a call failed may be the loss of another process, which is told of later, or never.

        Raises:
            LearnerLost: one does not answer.
        """
        for each in self._watched if len(self._watched) > 1 else ():
            each.begin()
            try:
                ray.get(each.asked, timeout=self._settings.stall_timeout_s)
            except ray.exceptions.RayError as error:
                raise LearnerLost(f"{each.name} was lost while it was waited for {what}: {error}") from None


def _lost(error: Exception, what: str) -> LearnerLost:
    """Its process died; or its node, or its memory was full."""
    verb = "died" if isinstance(error, ray.exceptions.RayActorError) else "was lost"
    return LearnerLost(f"the learner {verb} while it was waited for {what}: {error}")
