"""Log the numbers of an iteration's trained leases in its line, which a run that goes back rewinds, too."""

from collections.abc import Mapping, Sequence

from contracts.rollout import Rollout


class Leases:
    """The first, the last, their number, and the sum of their squares: no other set has all four."""

    def measure(self, rollouts: Sequence[Rollout]) -> Mapping[str, float]:
        ids = [rollout.lease_id for rollout in rollouts]
        return {
            "lease/first": min(ids),
            "lease/last": max(ids),
            "lease/count": len(set(ids)),
            "lease/squares": sum(lease_id * lease_id for lease_id in ids),
        }


def expected(iteration: int, per_iteration: int) -> dict[str, float]:
    """Check that a run has lost nothing and trained on nothing twice."""
    ids = range((iteration - 1) * per_iteration, iteration * per_iteration)
    return {
        "lease/first": ids[0],
        "lease/last": ids[-1],
        "lease/count": len(ids),
        "lease/squares": sum(lease_id * lease_id for lease_id in ids),
    }
