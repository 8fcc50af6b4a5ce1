"""Send published weights to all workers through a group, which is made again when its members change.

    all answer ─▶ a group of just them ─▶ learner sends, workers receive ─▶ learner frees memory ─▶ probes
                       │                      │
                       └──────── broken off ──┴─▶ whoever is left loads arrays (`Fleet.load_weights`)

A worker that dies or hangs breaks a broadcast off, and is lost as in any other call. A learner that hangs is
lost. Workers that start later load arrays, which the learner keeps.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from contracts.clients import Broadcast, PublishedWeights
from contracts.weights import WeightGroup
from rollout_workers.fleet.worker_pool import Note, WorkerPool
from rollout_workers.worker import RolloutWorker


class AwaitAnswers(Protocol):
    def __call__(self, method: Callable[..., Any], worker_ids: Iterable[int], what: str) -> dict[int, Any]:
        """Return the answers to a call; workers that fail or are silent for too long are lost."""
        ...


class Broadcasts:
    """Broadcasts to the workers of one pool.

    Args:
        ranks_each: processes of a worker's engine that receive.
    """

    def __init__(self, pool: WorkerPool, wait: AwaitAnswers, ranks_each: int, note: Note) -> None:
        self._pool, self._wait, self._ranks_each, self._note = pool, wait, ranks_each, note
        self._group: WeightGroup | None = None
        self._members: list[int] = []

    def send(self, weights: PublishedWeights, learner: Broadcast) -> bool:
        """Send weights to all live workers. False: it broke off, and they must load arrays.

        Raises:
            LearnerLost: the learner died or hangs.
        """
        live = self._pool.live
        for worker_id in live:
            self._pool.send(worker_id, RolloutWorker.is_between_steps)
        members = sorted(self._wait(RolloutWorker.is_between_steps, live, "an answer before new weights"))
        if (broken := self._meet(members, learner)) is not None:
            learner.keep()
        else:
            broken = self._transfer(weights, learner)
        if broken is not None:
            self._group = None
            version = weights.manifest.version
            self._note(f"the broadcast of version {version} broke off, so arrays are sent instead: {broken}")
            return False
        self._pool.hold(weights)
        return True

    def _meet(self, members: list[int], learner: Broadcast) -> str | None:
        """Make a group of these workers, unless there is one; return why that failed, or None."""
        if self._group is not None and self._group == learner.group and members == self._members:
            return None
        self._group = None  # until all have joined
        group = learner.open(len(members) * self._ranks_each)
        for place, worker_id in enumerate(members):
            first_rank = 1 + place * self._ranks_each
            self._pool.send(worker_id, RolloutWorker.join_group, group=group, first_rank=first_rank)
        broken = self._both(learner.has_joined, RolloutWorker.join_group, members, "its place in the group")
        self._group, self._members = group, members
        return broken

    def _transfer(self, weights: PublishedWeights, learner: Broadcast) -> str | None:
        """Send and receive in the group; return why that broke off, or None."""
        manifest, group, self._group = weights.manifest, self._group, None  # until all have received
        handles = learner.send()
        for worker_id in self._members:
            self._pool.send(worker_id, RolloutWorker.receive_weights, manifest=manifest, handles=handles)
        broken = self._both(learner.has_sent, RolloutWorker.receive_weights, self._members, "sent weights")
        learner.release()
        if broken is not None:
            return broken
        for worker_id in self._members:
            self._pool.send(
                worker_id, RolloutWorker.settle_weights, manifest=manifest, mask_arrays=weights.mask_arrays
            )
        self._wait(RolloutWorker.settle_weights, self._members, "its weights to be checked")
        self._group = group
        return None

    def _both(
        self,
        of_learner: Callable[[], str | None],
        method: Callable[..., Any],
        members: list[int],
        what: str,
    ) -> str | None:
        """Wait for the learner, then for the workers, even if the learner is lost: no answer may come later.

        Returns:
            why one of them failed, or None.
        """
        try:
            broken = of_learner()
        finally:
            answers = self._wait(method, members, what)
        if broken is None and len(answers) < len(members):
            return f"{len(members) - len(answers)} of {len(members)} workers were lost"
        return broken or next((why for why in answers.values() if why is not None), None)
