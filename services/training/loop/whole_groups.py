"""Finished rollouts that wait for the rest of their group, for rewards that grade whole groups."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from contracts.rollout import Lease, Rollout


class WholeGroups:
    """Queue of finished rollouts that returns a group once all its rollouts are finished.

    A rollout whose environment failed completes its group, too. A group's rollouts are in the order of their
    leases.

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
        """Take finished rollouts; return the groups that they complete."""
        for rollout in finished:
            self._finished[rollout.group].append(rollout)
            self._missing[rollout.group] -= 1
        whole = [
            group
            for group in dict.fromkeys(rollout.group for rollout in finished)
            if not self._missing[group]
        ]
        return [
            rollout
            for group in whole
            for rollout in sorted(self._finished.pop(group), key=lambda rollout: rollout.lease_id)
        ]
