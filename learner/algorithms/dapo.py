"""DAPO: GRPO by tokens with a wider upper range, on full batches of prompts that teach something.

Yu et al. 2025 (arXiv 2503.14476): clip-higher, dynamic sampling, token-level loss, a soft penalty on overlong
responses, no KL. The authors' best run has the penalty (§3.4, 4,096 of 20,480 tokens) and does not filter
truncated responses. Their alternative is `filter_truncated=true overlong_share=0`. Ranges, group size,
penalty, number of batches, rate and weight decay are those of the authors' run (verl,
run_dapo_qwen2.5_32b.sh). They make 16 updates of a batch, so set `minibatch_size` to a sixteenth of it. Needs
`rollout.group_size` of 2 or more; the default is 16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from learner.algorithms.base import CreditInputs, KLSettings, OptimizerSettings, Traits
from learner.algorithms.critic_free import CriticFree
from learner.functional.rewards import overlong_penalty

if TYPE_CHECKING:
    from torch import Tensor


class DAPO(CriticFree):
    traits: ClassVar[Traits] = Traits(
        learns_from="rollouts", online=True, mixes_data="weighted", default_group_size=16
    )

    clip_range_high: float | None = Field(default=0.28, gt=0)
    drop_constant_groups: bool = True
    max_refills: int = Field(default=9, ge=0)  # the authors' code generates ten batches at most
    # Last share of the most tokens, in which a response loses reward, down to -1; 0: no penalty
    overlong_share: float = Field(default=0.2, ge=0, le=1)
    optimizer: OptimizerSettings = OptimizerSettings(weight_decay=0.1)
    kl: KLSettings = KLSettings(placement="loss", estimator="k3_exact", coefficient=0.0, measure_every=8)

    def advantages(self, inputs: CreditInputs) -> Tensor:
        return self.compared(inputs, scale=True)

    def scores(self, inputs: CreditInputs) -> Tensor:
        """Return each rollout's score with the penalty on its length, (B,)."""
        scores_B = super().scores(inputs)
        if not self.overlong_share or inputs.max_tokens is None:
            return scores_B
        return scores_B + overlong_penalty(inputs.mask_BT.sum(-1), inputs.max_tokens, self.overlong_share)
