"""Texts of one prompt in a stream of groups: being written, being scored, finished."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from contracts.rollout import Rollout
from services.training.loop.collecting import Collected, Collector
from services.training.loop.group_schedule import InFlight
from services.training.loop.pending import PendingParts
from services.training.loop.whole_groups import WholeGroups


@dataclass(slots=True)
class StreamedGroup:
    """A group in flight: leased, but not trained on yet."""

    number: int  # place in the order of leases
    due: int  # the last update that may train on it
    whole: WholeGroups | None  # finished rollouts that wait for the rest of their group
    missing: set[int] = field(default_factory=set)  # leases that are still being written
    collected: Collected = field(default_factory=Collected)
    scoring: PendingParts = field(default_factory=PendingParts)
    place: int | None = None  # place in the order of finishing
    teaching: list[Rollout] = field(default_factory=list)  # rollouts that an update trains on

    @property
    def is_finished(self) -> bool:
        """Tell whether all texts are written, and either scored or lost."""
        return not self.missing and not self.scoring

    @property
    def rollouts(self) -> list[Rollout]:
        """Return the scored rollouts in the order of their leases."""
        return sorted(self.collected.rollouts, key=lambda rollout: rollout.lease_id)

    @property
    def in_flight(self) -> InFlight:
        return InFlight(self.number, self.due, self.place)

    def take_texts(self, rollouts: Sequence[Rollout], collector: Collector) -> None:
        """Take finished texts, and submit them for scoring."""
        self.missing -= {rollout.lease_id for rollout in rollouts}
        if ready := self.whole.take(rollouts) if self.whole else rollouts:
            self.scoring.add(collector.begin(ready, self.collected))

    def take_scores(self, collector: Collector) -> bool:
        """Take scores; return whether any came."""
        done = self.scoring.take_done() if self.scoring else []
        for part in done:
            collector.take(part, self.collected)
        return bool(done)
