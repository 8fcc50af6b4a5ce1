"""How credit becomes new weights: epochs of minibatches, or one step within a trust region."""

from typing import Protocol

import torch

from learner.algorithms.base import Algorithm, Credit
from learner.algorithms.trpo import TRPO
from learner.policy import Policy
from learner.updates.context import UpdateContext
from learner.updates.fisher import check_forward_mode
from learner.updates.minibatches import MinibatchUpdate
from learner.updates.trust_region import TrustRegionUpdate


class Update(Protocol):
    """One iteration's, made anew each time."""

    def run(self, credit: Credit) -> dict[str, float]:
        """Change the weights; returns metrics, `update/steps` and `update/epochs` among them."""
        ...


def check_model(algorithm: Algorithm, policy: Policy, device: torch.device) -> None:
    """Refuse a model that the algorithm's update can't work with.

    Raises:
        InputError: TRPO asked of a model without forward-mode derivatives.
    """
    if isinstance(algorithm, TRPO):
        check_forward_mode(policy, device)


def takes_sharded(algorithm: Algorithm) -> bool:
    """Whether ranks may share out the models; a trust region's step needs all of the policy on each."""
    return not isinstance(algorithm, TRPO)


def update_for(algorithm: Algorithm, context: UpdateContext) -> Update:
    kind = TrustRegionUpdate if isinstance(algorithm, TRPO) else MinibatchUpdate
    return kind(context)
