"""Updates turn credit into new weights: epochs of minibatches, or one step in a trust region."""

from typing import Protocol

import torch

from learner.algorithms.base import Algorithm, Credit
from learner.models.policy import Policy
from learner.updates.context import UpdateContext
from learner.updates.fisher import check_forward_mode
from learner.updates.minibatches import MinibatchUpdate
from learner.updates.trust_region import TrustRegionUpdate


class Update(Protocol):
    """Update of one iteration; each iteration makes a new one."""

    def run(self, credit: Credit) -> dict[str, float]:
        """Change the weights; return metrics, including `update/steps` and `update/epochs`."""
        ...


def check_model(algorithm: Algorithm, policy: Policy, device: torch.device) -> None:
    """Refuse a model with which the algorithm's update can't work.

    Raises:
        InputError: the algorithm is TRPO and the model has no forward-mode derivatives.
    """
    if algorithm.traits.update == "trust_region":
        check_forward_mode(policy, device)


def update_for(algorithm: Algorithm, context: UpdateContext) -> Update:
    kind = TrustRegionUpdate if algorithm.traits.update == "trust_region" else MinibatchUpdate
    return kind(context)
