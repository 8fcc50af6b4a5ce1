"""How credit becomes new weights: epochs of minibatches, or one step within a trust region."""

from typing import Protocol

from learner.algorithms.base import Algorithm, Credit
from learner.algorithms.trpo import TRPO
from learner.updates.context import UpdateContext
from learner.updates.minibatches import MinibatchUpdate
from learner.updates.trust_region import TrustRegionUpdate


class Update(Protocol):
    """One iteration's, made anew each time."""

    def run(self, credit: Credit) -> dict[str, float]:
        """Change the weights; returns metrics, `update/steps` and `update/epochs` among them."""
        ...


def update_for(algorithm: Algorithm, context: UpdateContext) -> Update:
    kind = TrustRegionUpdate if isinstance(algorithm, TRPO) else MinibatchUpdate
    return kind(context)
