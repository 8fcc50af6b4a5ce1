"""Decide which finished groups an iteration trains on, so that no group gets too old. Pure functions.

    update          4         5         6         with max_staleness=2, iterations of 2 groups
    leased at 3  ■ ■          ■: trained on, because it is finished
    leased at 3  □ - - - - - - - - - ■  the last one is due at update 5: the learner waits for it
    leased at 4       ■       ■

A group that is leased while the weights have version v has no token older than v. So update v + max_staleness
is the last that may train on it. Groups in flight are leased but not trained on. At every update u and for
every j, at most j + 1 iterations' worth of the groups in flight are due by u + j. So each group can be
trained on in time, in whatever order the groups finish.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InFlight:
    """A group in flight.

    Example: group 7, due at update 5, finished as the third of the run: `InFlight(7, due=5, place=2)`
    """

    number: int  # place in the order of leases
    due: int  # last update that may train on the group
    place: int | None = None  # place in the order of finishing


@dataclass(frozen=True, slots=True)
class GroupSchedule:
    """Rules of a stream of groups.

    Args:
        size: groups of an iteration.
        max_staleness: how many versions older than the trained weights a token may be.
    """

    size: int
    max_staleness: int

    def room(self, in_flight: int, fresh: int, update: int, version: int) -> int:
        """Return how many groups may be leased now.

        Fresh groups are at most as many as with whole iterations one version ahead. So most texts are about
        one version old, and only slow ones use the rest of the bound.

        With S = `max_staleness` the bound itself allows S + 1 iterations' worth in flight, and S while the
        learner trains. If all were leased, the oldest groups would be due at every update, and the learner
        could not choose. So half of the spare S - 1 iterations' worth stays unleased.

        >>> schedule = GroupSchedule(8, max_staleness=3)
        >>> schedule.room(0, 0, update=0, version=0), schedule.room(13, 8, update=1, version=0)
        (16, 0)
        >>> schedule.room(14, 3, update=1, version=0)
        2

        Args:
            fresh: groups in flight that are finished, or still written with no later group finished.
            update: next update to choose a batch for, from 0.
            version: version of the workers' weights: `update`, or `update` - 1 while the learner trains.
        """
        allowed = (1 + self.max_staleness + version - update) * self.size
        free = self.size * (self.max_staleness - 1) // 2
        one_ahead = (2 + version - update) * self.size
        return max(0, min(allowed - free - in_flight, one_ahead - fresh))

    def must(self, groups: Iterable[InFlight], update: int) -> list[int]:
        """Return for j = 0, 1, … how many groups that are due by `update` + j the batch must contain.

        >>> GroupSchedule(2, 1).must([InFlight(0, 4), InFlight(1, 5), InFlight(2, 5), InFlight(3, 5)], 4)
        [1, 2]
        """
        counts = [0] * (self.max_staleness + 1)
        for group in groups:
            counts[max(0, group.due - update)] += 1
        needed, due = [], 0
        for later, count in enumerate(counts):
            due += count
            needed.append(max(0, due - later * self.size))
        return needed

    def choose(self, groups: Sequence[InFlight], update: int, *, short: bool = False) -> list[int] | None:
        """Return the numbers of the groups to train on now; None: the learner must wait.

        Urgent groups come first, then the groups that finished first.

        >>> waiting = InFlight(0, due=5)
        >>> GroupSchedule(1, 1).choose([waiting, InFlight(1, due=5, place=0)], 4)
        [1]
        >>> GroupSchedule(1, 1).choose([waiting, InFlight(1, due=6, place=0)], 5)

        Args:
            short: take fewer than `size` groups, if no more are finished.
        """
        finished = sorted(
            (group for group in groups if group.place is not None), key=lambda group: group.place or 0
        )
        chosen: dict[int, InFlight] = {}
        for later, number in enumerate(self.must(groups, update)):
            urgent = [group for group in finished if group.due <= update + later]
            if len(urgent) < number:
                return None
            missing = number - sum(group.due <= update + later for group in chosen.values())
            rest = [group for group in urgent if group.number not in chosen]
            chosen |= {group.number: group for group in rest[: max(0, missing)]}
        for group in finished:
            if len(chosen) < self.size:
                chosen[group.number] = group
        if not chosen or (len(chosen) < self.size and not short):
            return None
        return sorted(chosen)
