"""Let an idle learner score finished rollouts while workers write the others."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from contracts.clients import LearnerClient
from contracts.rollout import Rollout


@dataclass(slots=True)
class EarlyScoring:
    """Rollouts of one batch that wait for the learner."""

    learner: LearnerClient | None  # None: score nothing early
    num_rollouts: int  # rollouts of the whole batch
    _waiting: list[Rollout] = field(default_factory=list)

    def offer(self, finished: Sequence[Rollout] = ()) -> None:
        """Hand over waiting rollouts if the learner is idle. Never wait for it."""
        if self.learner is None:
            return
        self._waiting += finished
        if self._waiting and self.learner.score_early(self._waiting, self.num_rollouts):
            self._waiting = []
