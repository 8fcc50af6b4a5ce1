"""TRPO against sb3-contrib's: its own `train`, on the same language model, tokens and credit."""

import copy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from contracts.rollout import Rollout
from learner.algorithms.base import Credit
from learner.algorithms.trpo import TRPO
from learner.updates.context import UpdateContext
from learner.updates.trust_region import TrustRegionUpdate
from tests.learner.contexts import make_context, random_credit
from tests.learner.tiny import make_pair, plain_logits, random_rollouts

OURS = TRPO(num_epochs=3, minibatch_size=None, target_kl=0.02, cg_max_steps=6)


class TokenPolicy(nn.Module):
    """A language model as sb3 sees a policy: each token's state is an observation, one action follows it.

    Parameters with "value" in their name are the critic's: sb3-contrib tells them by that.
    """

    def __init__(self, lm: Any, head: nn.Linear, rollouts: list[Rollout], learning_rate: float) -> None:
        super().__init__()
        self.lm, self.value_head, self.rollouts = lm, head, rollouts
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=learning_rate, weight_decay=0.0)

    def set_training_mode(self, mode: bool) -> None:
        pass  # dropouts stay off

    def get_distribution(self, observations: object) -> Any:
        from stable_baselines3.common.distributions import CategoricalDistribution

        logits_NV = torch.cat([plain_logits(self.lm, one) for one in self.rollouts])
        return CategoricalDistribution(logits_NV.shape[-1]).proba_distribution(logits_NV)

    def predict_values(self, observations: object) -> Tensor:
        values = []
        for one in self.rollouts:
            states_LH = self.lm.base_model(input_ids=torch.tensor([one.tokens])).last_hidden_state[0]
            values.append(self.value_head(states_LH[:-1][torch.tensor(one.loss_mask[1:]).bool()]))
        return torch.cat(values)


def train_theirs(policy: TokenPolicy, context: UpdateContext, credit: Credit) -> dict[str, float]:
    from gymnasium import spaces
    from sb3_contrib import TRPO as Theirs

    mask_BT, logged = context.batch.mask_BT, {}
    tokens = SimpleNamespace(
        observations=None,
        actions=torch.tensor(
            [token for one in policy.rollouts for turn in one.turns for token in turn.tokens]
        ),
        old_log_prob=context.scored.old_logprobs_BT[mask_BT],
        advantages=credit.advantages_BT[mask_BT],
        returns=credit.returns_BT[mask_BT],
    )

    def get(batch_size: int | None) -> Iterator[SimpleNamespace]:
        yield tokens

    theirs = Theirs.__new__(Theirs)  # its constructor would want an environment
    theirs.__dict__ |= {
        "policy": policy,
        "action_space": spaces.Discrete(policy.lm.config.vocab_size),
        "rollout_buffer": SimpleNamespace(
            get=get, values=context.scored.values_BT[mask_BT].numpy(), returns=tokens.returns.numpy()
        ),
        "_logger": SimpleNamespace(record=lambda name, value, **_: logged.update({name: float(value)})),
        "lr_schedule": lambda progress: OURS.learning_rate,
        "_current_progress_remaining": 1.0,
        "_n_updates": 0,
        "normalize_advantage": True,
        "sub_sampling_factor": 1,
        "batch_size": None,
        "n_critic_updates": OURS.num_epochs,
        "target_kl": OURS.target_kl,
        "cg_max_steps": OURS.cg_max_steps,
        "cg_damping": OURS.cg_damping,
        "line_search_max_iter": OURS.line_search_max_iter,
        "line_search_shrinking_factor": OURS.line_search_shrinking_factor,
    }
    with sdpa_kernel(SDPBackend.MATH):  # theirs takes the gradient of a gradient
        theirs.train()
    return logged


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_an_update_ends_at_sb3_contribs_weights(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pytest.importorskip("sb3_contrib")
    # Their conjugate gradients begin at noise of 1e-4, ours at 0
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    pair, rollouts = make_pair(models[name]), random_rollouts(8)
    algorithm = OURS.model_copy(update={"optimizer": OURS.optimizer.model_copy(update={"weight_decay": 0.0})})
    context = make_context(pair, rollouts, algorithm, token_budget=40)
    credit = random_credit(context)
    before = copy.deepcopy(pair.lm)
    lm, head = copy.deepcopy(pair.lm), copy.deepcopy(pair.critic.head)
    logged = train_theirs(TokenPolicy(lm, head, rollouts, OURS.learning_rate), context, credit)
    metrics = TrustRegionUpdate(context).run(credit)
    assert logged["train/is_line_search_success"] == 1.0 - metrics["trust_region/failed"] == 1.0
    assert logged["train/kl_divergence_loss"] == pytest.approx(metrics["approx_kl"], rel=1e-3)
    assert logged["train/policy_objective"] == pytest.approx(-metrics["loss/policy"], rel=1e-3)
    assert logged["train/value_loss"] == pytest.approx(metrics["loss/value"], rel=1e-4)
    step, theirs = (
        torch.cat(
            [
                (p - old).detach().flatten()
                for p, old in zip(model.parameters(), before.parameters(), strict=True)
            ]
        )
        for model in (pair.lm, lm)
    )
    assert float(step.norm()) > 1e-3 and float((step - theirs).norm() / theirs.norm()) < 1e-3
    torch.testing.assert_close(pair.critic.head.state_dict(), head.state_dict(), rtol=1e-3, atol=1e-6)
