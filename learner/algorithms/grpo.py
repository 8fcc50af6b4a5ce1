"""Group relative policy optimisation: compare a response with the others of its prompt, without a critic.

Shao et al. 2024 (arXiv 2402.03300). Two switches make Dr. GRPO of it (Liu et al. 2025, arXiv 2503.20783):
`scale_by_deviation=false aggregation=constant`; these make DAPO (Yu et al. 2025, arXiv 2503.14476):
`aggregation=token_mean clip_range_high=0.28 kl.coefficient=0 drop_constant_groups=true`. Needs
`rollout.group_size` of 2 or more; 8 unless given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from learner.algorithms.base import CreditInputs, KLSettings, Traits
from learner.algorithms.critic_free import CriticFree
from learner.functional.aggregation import Aggregation
from learner.functional.groups import group_advantages

if TYPE_CHECKING:
    from torch import Tensor

    from contracts.rollout import Rollout


class GRPO(CriticFree):
    traits: ClassVar[Traits] = Traits(
        learns_from="rollouts", online=True, mixes_data="weighted", default_group_size=8
    )

    aggregation: Aggregation = "sequence_mean"
    scale_by_deviation: bool = True
    drop_constant_groups: bool = False  # groups of equal rewards teach nothing: leave them out of the mean
    kl: KLSettings = KLSettings(placement="loss", estimator="k3", coefficient=0.04)

    @property
    def selects(self) -> bool:
        return self.drop_constant_groups

    def advantages(self, inputs: CreditInputs) -> Tensor:
        return group_advantages(self.scores(inputs), inputs.groups_B, scale=self.scale_by_deviation)

    def select(
        self, rollouts: Sequence[Rollout], elite: Sequence[Rollout]
    ) -> tuple[list[Rollout], list[Rollout]]:
        """Leave out groups of equal rewards if asked, but never all groups."""
        if not self.drop_constant_groups:
            return list(rollouts), []
        rewards: dict[int, set[float]] = {}
        for rollout in rollouts:
            rewards.setdefault(rollout.group, set()).add(self._earned(rollout))
        kept = [rollout for rollout in rollouts if len(rewards[rollout.group]) > 1]
        return kept or list(rollouts), []

    def _earned(self, rollout: Rollout) -> float:
        return sum(self.turn_gamma**k * (turn.reward or 0.0) for k, turn in enumerate(rollout.turns))
