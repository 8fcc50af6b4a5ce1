"""Run the learner as one Ray actor or as several ranks, and replace lost ones.

A long call says nothing about a process's health. So the group watches whether each process answers from a
second thread while it computes. Ranks wait for each other in every pass, so a lost rank stops the others.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import ray

from contracts.clients import PublishedWeights, TokenNumbers
from contracts.errors import DiskFull, InputError, LearnerError, LearnerFailed, LearnerLost
from contracts.processes import timeline
from contracts.processes.waiting import STARTS_S, Waiting
from contracts.rollout import Rollout
from contracts.weights import WeightManifest
from learner.actors.broadcast import LearnerBroadcast
from learner.actors.handle import LearnerHandle
from learner.actors.watch import Watched, watch
from learner.distributed.place import Place, said_of
from learner.distributed.rendezvous import MeetingPoint, Rendezvous
from learner.settings import LearnerSettings

LOOK_S = 0.25  # time between two checks of the progress

OnProgress = Callable[[str, int, int], None]
Note = Callable[[str], None]


def _nobody(*_: Any) -> None: ...


class LearnerGroup:
    """`contracts.clients.LearnerClient` over one Ray actor, or over `learner.num_processes` of them.

    All processes get the same calls; the first process's result is returned.

    Args:
        make_actor: starts a `learner.actors.process.LearnerProcess`. It gets the place where ranks meet, or
            None if there is one process. After a loss it is called again for each process.
        note: called with a message when something fails or makes no progress.
        tell: called with messages about the start; by default `note`.
        say: called with messages about a long call that makes progress; by default `note`.
    """

    def __init__(
        self,
        make_actor: Callable[[Rendezvous | None], Any],
        engine_dtype: str,
        settings: LearnerSettings,
        note: Note = _nobody,
        tell: Note | None = None,
        say: Note | None = None,
    ) -> None:
        self._make_actor, self._engine_dtype = make_actor, engine_dtype
        self._settings, self._note, self._tell, self._say = settings, note, tell or note, say or note
        self._iterations: int | None = None  # as a later call of `plan` sets them
        self._start()

    def _start(self) -> None:
        count = self._settings.num_processes
        self._meeting = MeetingPoint(ray.util.get_node_ip_address(), count) if count > 1 else None
        self._processes = [
            LearnerHandle(self._make_actor(self._meeting.for_rank(rank) if self._meeting else None))
            for rank in range(count)
        ]
        self._starting = [process.start() for process in self._processes]
        self._watched = watch(self._processes, self._settings)
        self._early: list[Any] = []  # call that scores a part of the next batch
        self._may_score_early = True
        transport = self._settings.transport
        self._broadcast = (
            None
            if transport in ("auto", "objects")
            else LearnerBroadcast(self._processes, transport, self._settings.stall_timeout_s, self._results)
        )
        # NLPO's mask model changes rarely, so its arrays are kept until it does.
        self._mask_version: int | None = None
        self._mask_arrays: Any = None

    def wait_until_ready(self, on_progress: OnProgress = _nobody) -> None:
        """Wait until the models are loaded.

        Raises:
            InputError: the model can't be used.
            LearnerLost: a process died or did not start.
        """
        self._await(self._starting, "the learner to load its models", on_progress, starts=True)
        for member in self._watched:
            member.is_up()
        if words := self._get(self._starting[0], "the learner's start"):
            self._tell(words)
        if len(self._processes) > 1:
            self._tell(f"the learner's ranks: {said_of(self.places())}")

    def restart(self, on_progress: OnProgress = _nobody) -> None:
        """Replace all processes by new ones with the models of the run's start."""
        self.stop()
        self._start()
        self.wait_until_ready(on_progress)
        if self._iterations is not None:
            self.plan(self._iterations)

    def pids(self) -> list[int]:
        """Return the ids of the learner's processes, once they answer."""
        calls, what = [process.pid() for process in self._processes], "the learner's process id"
        return [int(self._get(call, what, self._settings.start_timeout_s)) for call in calls]

    def places(self) -> list[Place]:
        """Return where each rank runs, once the processes answer."""
        calls, what = [process.place() for process in self._processes], "the places of the learner's ranks"
        return [self._get(call, what, self._settings.start_timeout_s) for call in calls]

    def score_early(self, rollouts: Sequence[Rollout], num_rollouts: int) -> bool:
        if self._early and not ray.wait(self._early, timeout=0)[0]:
            return False
        self._end_early()
        if self._may_score_early:
            self._early = [self._processes[0].score_early(ray.put(list(rollouts)), num_rollouts)]
        return True

    def _end_early(self, on_progress: OnProgress = _nobody) -> None:
        """Wait for early scores. If they fail, this and all later updates score themselves."""
        calls, self._early = self._early, []
        try:
            self._await(calls, "the first scores of an update", on_progress)
        except LearnerError as error:
            if isinstance(error, LearnerLost) and not isinstance(error, LearnerFailed):
                raise
            self._may_score_early = False
            self._note(f"rollouts are no longer scored while others are written: {error}")

    def update(self, rollouts: Sequence[Rollout], on_progress: OnProgress) -> dict[str, float]:
        self._end_early(on_progress)
        shared, what = ray.put(list(rollouts)), f"an update on {len(rollouts)} rollouts"
        calls = [process.update(shared) for process in self._processes]
        self._await(calls, what, on_progress)
        metrics: dict[str, float] = self._get(calls[0], what)
        return metrics

    def measure(self, rollouts: Sequence[Rollout], on_progress: OnProgress = _nobody) -> dict[str, float]:
        shared, what = ray.put(list(rollouts)), f"measures of {len(rollouts)} held-out responses"
        measures = self._results([process.measure(shared) for process in self._processes], what, on_progress)
        return dict(measures[0])

    def logprobs(self, rollouts: Sequence[Rollout], on_progress: OnProgress = _nobody) -> list[list[float]]:
        shared, what = ray.put(list(rollouts)), f"log-probabilities of {len(rollouts)} responses"
        logprobs = self._results([process.logprobs(shared) for process in self._processes], what, on_progress)
        return list(logprobs[0])

    def token_numbers(self) -> Sequence[TokenNumbers]:
        numbers: Sequence[TokenNumbers]
        (numbers,) = self._results([self._processes[0].token_numbers()], "numbers of single tokens")
        return numbers

    def plan(self, iterations: int) -> None:
        self._iterations = iterations
        self._await([process.plan(iterations) for process in self._processes], "the schedule's new length")

    def publish(self) -> PublishedWeights:
        what = "weights to be published"
        if self._broadcast is not None:
            manifest = self._results(
                [process.announce(self._engine_dtype) for process in self._processes], what
            )[0]
            masks = self._masks(manifest)
            whole = cache(partial(self._whole, self._processes[0].sent_whole, masks))
            return PublishedWeights(manifest, None, masks, whole, self._broadcast)
        both = [process.publish(self._engine_dtype) for process in self._processes]
        self._await([call for call, _ in both], what)
        manifest = self._get(both[0][0], what)
        masks = self._masks(manifest)
        whole = cache(partial(self._whole, self._processes[0].published_whole, masks))
        return PublishedWeights(manifest, both[0][1], masks, whole if manifest.base else None)

    def _masks(self, manifest: WeightManifest) -> Any:
        """Return a reference to the mask model's arrays, newly published if they changed; or None."""
        if manifest.mask_version is not None and manifest.mask_version != self._mask_version:
            # Wait here, so that a learner's death does not look like a worker's.
            masks = [process.publish_mask(self._engine_dtype) for process in self._processes]
            self._await([call for call, _ in masks], "the mask's weights to be published")
            self._mask_version, self._mask_arrays = manifest.mask_version, masks[0][1]
        return self._mask_arrays

    def _whole(self, fetch: Callable[[], tuple[Any, Any]], mask_arrays: Any) -> PublishedWeights:
        """Fetch all of the last published weights.

        They are for workers that missed a broadcast, or that lack the version to which published changes
        apply.
        """
        manifest, arrays = fetch()
        what = "all of the published weights"
        self._await([manifest], what)
        return PublishedWeights(self._get(manifest, what), arrays, mask_arrays)

    def save(self, folder: str) -> None:
        self._await([process.save(folder) for process in self._processes], "the learner's checkpoint")

    def load(self, folder: str) -> None:
        calls = [process.load(folder) for process in self._processes]
        self._await(calls, "the learner to load its checkpoint")

    def export(self, folder: str) -> None:
        self._await([process.export(folder) for process in self._processes], "the model to be exported")

    def stop(self) -> None:
        for process in self._processes:
            process.kill()

    def _results(self, calls: Sequence[Any], what: str, on_progress: OnProgress = _nobody) -> list[Any]:
        """Wait for all calls; return their results."""
        self._await(calls, what, on_progress)
        return [self._get(call, what) for call in calls]

    def _await(
        self,
        calls: Sequence[Any],
        what: str,
        on_progress: OnProgress = _nobody,
        starts: bool = False,
    ) -> None:
        """Wait until all calls have ended; call `on_progress` with the latest progress meanwhile.

        Raises:
            LearnerLost: a process died, did not answer for `learner.stall_timeout_s`, or made no progress for
                `learner.progress_timeout_s`.
            LearnerError, InputError, DiskFull: a call failed; other ranks may be waiting for it.
        """
        pending, watched = list(calls), self._watched
        for member in watched:
            member.begin()
        waiting = Waiting(self._tell, STARTS_S) if starts else Waiting(self._note, say=self._say)
        while pending:
            ended, pending = ray.wait(pending, num_returns=len(pending), timeout=LOOK_S)
            for call in ended:
                self._get(call, what)
            if not pending:
                self._take_spans()
                return
            for member in watched:
                self._look_at(member, what)
            on_progress(*(watched[0].progress or ("start", 0, 1)))
            waiting.progress(max(member.changed_at for member in watched))
            if waiting.is_due:
                gets_on = all(member.gets_on for member in watched)
                waiting.tell(what, [str(member) for member in watched], gets_on=gets_on)

    def _take_spans(self) -> None:
        """Take the timelines of all processes, if the run writes one."""
        for member in self._watched if timeline.is_on() else ():
            spans = self._get(member.process.take_spans(), "the timeline", self._settings.stall_timeout_s)
            timeline.receive(member.name, spans)

    def _look_at(self, member: Watched, what: str) -> None:
        try:
            member.look(what)
        except ray.exceptions.RayError as error:
            raise _lost(error, what) from None

    def _get(self, call: Any, what: str, timeout_s: float | None = None) -> Any:
        """Return the result of a call, which has usually ended."""
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
        """Check that every process answers, because a lost rank makes the calls of the others fail.

        Raises:
            LearnerLost: a process does not answer.
        """
        for member in self._watched if len(self._watched) > 1 else ():
            member.begin()
            try:
                ray.get(member.reply, timeout=self._settings.stall_timeout_s)
            except ray.exceptions.RayError as error:
                raise LearnerLost(
                    f"{member.name} was lost while Whetstone waited for {what}: {error}"
                ) from None


def _lost(error: Exception, what: str) -> LearnerLost:
    """Return the error for a process that died; Ray's message names its node, or a lack of memory."""
    verb = "died" if isinstance(error, ray.exceptions.RayActorError) else "was lost"
    return LearnerLost(f"the learner {verb} while Whetstone waited for {what}: {error}")
