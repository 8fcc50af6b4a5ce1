"""Each KL where the settings put it: what credit and loss are handed, against plain torch on the softmax."""

from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor

from learner.algorithms.base import Credit, CreditInputs, LossInputs, LossOutput
from learner.algorithms.ppo import PPO
from learner.learner import Learner
from learner.optimization.kl_control import KLSettings
from tests.learner.tiny import make_learner, perturb, plain_logits, random_rollouts

Estimator = Literal["k1", "k2", "k3", "k3_exact", "full", "forward", "forward_full"]

# Micro-batches hold the longest rollouts first.
ROLLOUTS = sorted(random_rollouts(5), key=lambda one: -len(one.tokens))


class Watched(PPO):
    """Notes what it is handed; each loss beside the logits that the model has at that time."""

    num_epochs: int = 2
    minibatch_size: int | None = None
    learning_rate: float = 1e-2
    learners: ClassVar[list[Learner]] = []
    credits: ClassVar[list[CreditInputs]] = []
    losses: ClassVar[list[tuple[LossInputs, Tensor]]] = []

    def credit(self, inputs: CreditInputs) -> Credit:
        self.credits.append(inputs)
        return super().credit(inputs)

    def loss(self, inputs: LossInputs) -> LossOutput:
        self.losses.append((inputs, logprobs_of(self.learners[0].pair.lm)))
        return super().loss(inputs)


@torch.no_grad()
def logprobs_of(lm: Any) -> Tensor:
    """(N, V), the model's own forward of each rollout alone."""
    return torch.cat([plain_logits(lm, one).log_softmax(-1) for one in ROLLOUTS])


def chosen(logprobs_NV: Tensor) -> Tensor:
    tokens = [token for one in ROLLOUTS for turn in one.turns for token in turn.tokens]
    return logprobs_NV.gather(-1, torch.tensor(tokens)[:, None]).squeeze(-1)


def watch(path: Path, kl: KLSettings) -> tuple[Tensor, Tensor]:
    """One update away from the reference; returns (log π_old, log π_ref), both (N, V)."""
    learner = make_learner(path, Watched(kl=kl), logits_budget=200)
    assert learner.reference is not None
    for noted in (Watched.learners, Watched.credits, Watched.losses):
        noted.clear()
    Watched.learners.append(learner)
    perturb(learner.pair.lm)
    old_NV, ref_NV = logprobs_of(learner.pair.lm), logprobs_of(learner.reference.lm)
    learner.update(ROLLOUTS)
    return old_NV, ref_NV


def estimate(name: Estimator, now_NV: Tensor, old_NV: Tensor, ref_NV: Tensor) -> Tensor:
    """By the textbook, a token."""
    now_N, old_N, ref_N = chosen(now_NV), chosen(old_NV), chosen(ref_NV)
    return {
        "k1": (now_N - old_N).exp() * (now_N - ref_N),
        "k2": (now_N - ref_N) ** 2 / 2,
        "k3": (ref_N - now_N).exp() - 1 - (ref_N - now_N),
        "k3_exact": (now_N - old_N).exp() * ((ref_N - now_N).exp() - 1 - (ref_N - now_N)),
        "full": (now_NV.exp() * (now_NV - ref_NV)).sum(-1),
        "forward": (ref_N - old_N).exp() * (ref_N - now_N),
        "forward_full": (ref_NV.exp() * (ref_NV - now_NV)).sum(-1),
    }[name]


@pytest.mark.parametrize("name", ["k1", "k2", "k3", "full"])
def test_in_the_reward(models: dict[str, Path], name: Estimator) -> None:
    old_NV, ref_NV = watch(models["llama"], KLSettings(estimator=name, coefficient=0.3))
    (credit,) = Watched.credits
    order = sorted(range(len(ROLLOUTS)), key=lambda row: ROLLOUTS[row].lease_id)  # as the batch has them
    got = {
        ROLLOUTS[row].lease_id: kl_T[mask_T]
        for row, kl_T, mask_T in zip(order, credit.kl_BT, credit.mask_BT, strict=True)
    }
    got_N = torch.cat([got[one.lease_id] for one in ROLLOUTS])
    torch.testing.assert_close(got_N, estimate(name, old_NV, old_NV, ref_NV), atol=1e-5, rtol=1e-4)
    assert got_N.abs().max() > 0.01
    assert not credit.kl_BT[~credit.mask_BT].any()
    assert all(inputs.kl_N is None for inputs, _ in Watched.losses)


@pytest.mark.parametrize("name", ["k1", "k2", "k3", "k3_exact", "full", "forward", "forward_full"])
def test_in_the_loss(models: dict[str, Path], name: Estimator) -> None:
    old_NV, ref_NV = watch(models["llama"], KLSettings(placement="loss", estimator=name, coefficient=0.3))
    (credit,) = Watched.credits
    assert not credit.kl_BT.any()
    first, second = Watched.losses
    assert not torch.allclose(first[1], second[1], atol=1e-3)  # the policy has moved between the epochs
    for inputs, now_NV in (first, second):
        assert inputs.kl_N is not None and inputs.kl_N.requires_grad and inputs.kl_coefficient == 0.3
        torch.testing.assert_close(
            inputs.kl_N.detach(), estimate(name, now_NV, old_NV, ref_NV), atol=1e-5, rtol=1e-4
        )


def test_a_sampled_kl_in_the_loss_is_weighted_where_another_policy_drew(models: dict[str, Path]) -> None:
    """The worker's log-probabilities are all -1: weights of π_old/μ, cut at the cap."""
    seen = {}
    for behavior in ("importance", "exact"):
        algorithm = Watched(num_epochs=1, kl=KLSettings(placement="loss"))
        learner = make_learner(models["llama"], algorithm, behavior=behavior, importance_cap=3.0)
        Watched.losses.clear()
        Watched.learners[:] = [learner]
        perturb(learner.pair.lm)
        learner.update(ROLLOUTS)
        seen[behavior] = Watched.losses[0][0]
    plain, weighted = seen["exact"], seen["importance"]
    assert plain.kl_N is not None and weighted.kl_N is not None and plain.importance_N is None
    log_ratio_N = plain.old_logprobs_N + 1
    torch.testing.assert_close(weighted.importance_N, log_ratio_N.exp().clamp(max=3))
    torch.testing.assert_close(weighted.kl_N, plain.kl_N * log_ratio_N.exp().clamp(max=3))
    log_ratio_B = torch.stack([log_ratio_N[plain.rows_N == row].sum() for row in range(len(ROLLOUTS))])
    torch.testing.assert_close(weighted.importance_B, log_ratio_B.exp().clamp(max=3))
