"""Finished rollouts that wait for the others of their prompt, for rewards that must see whole groups."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from contracts.rollout import Lease, Rollout


class WholeGroups:
    """The rollouts of some leases, given out a group at a time, once all of the group are finished.

    A rollout that its environment failed completes its group, too. Within a group they have the order of
    their leases, however they were finished.

    >>> from contracts.rollout import FinishReason, Prompt, Sampling
    >>> leases = [Lease(id, Prompt("p", "?"), (1,), id // 2, 0, Sampling(max_tokens=1)) for id in range(4)]
    >>> waiting = WholeGroups(leases)
    >>> [waiting.take([Rollout(id, id // 2, leases[id].prompt, (), FinishReason.STOP)]) for id in (3, 1)]
    [[], []]
    >>> first = Rollout(0, 0, leases[0].prompt, (), FinishReason.STOP)
    >>> [rollout.lease_id for rollout in waiting.take([first])]
    [0, 1]
    """

    def __init__(self, leases: Iterable[Lease]) -> None:
        self._missing = Counter(lease.group for lease in leases)
        self._finished: defaultdict[int, list[Rollout]] = defaultdict(list)

    def take(self, finished: Sequence[Rollout]) -> list[Rollout]:
        """Take finished rollouts; return those of the groups that they complete."""
        for rollout in finished:
            self._finished[rollout.group].append(rollout)
            self._missing[rollout.group] -= 1
        whole = [
            group for group in dict.fromkeys(each.group for each in finished) if not self._missing[group]
        ]
        return [
            rollout
            for group in whole
            for rollout in sorted(self._finished.pop(group), key=lambda rollout: rollout.lease_id)
        ]
