"""GAE, PPO and A2C against Stable-Baselines3: its own code trains its own policy on the same transitions."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from learner.algorithms.a2c import A2C
from learner.algorithms.actor_critic import ActorCriticAlgorithm
from learner.algorithms.base import Credit, LossOutput, OptimizerSettings
from learner.algorithms.ppo import PPO
from tests.learner.inputs import credit_inputs, loss_inputs

pytest.importorskip("stable_baselines3")

STATES = 7
LENGTHS = (3, 1, 5, 2)  # rollouts that follow one another in a single stream
NUM_TOKENS = sum(LENGTHS)
THEIRS = OptimizerSettings(name="rmsprop", eps=1e-5)  # A2C's there
ROWS = [row for row, length in enumerate(LENGTHS) for _ in range(length)]

OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [  # theirs, ours
    ({}, {}),
    ({"clip_range_vf": 0.1, "ent_coef": 0.02}, {"value_clip_range": 0.1, "entropy_coef": 0.02}),
    (
        {"normalize_advantage": False, "clip_range": 0.1, "vf_coef": 0.9},
        {"advantage_whitening": "none", "clip_range": 0.1, "value_coef": 0.9},
    ),
]


def split(values: Any) -> list[list[float]]:
    """One list a rollout."""
    return [part.tolist() for part in np.split(np.asarray(values).flatten(), np.cumsum(LENGTHS)[:-1])]


def filled(kind: str, **options: Any) -> Any:
    """Their algorithm with a buffer of random transitions, rated by its policy; which then moves away."""
    import stable_baselines3
    from stable_baselines3.common.envs import IdentityEnv
    from stable_baselines3.common.logger import configure

    theirs = getattr(stable_baselines3, kind)(
        "MlpPolicy",
        IdentityEnv(STATES),
        n_steps=NUM_TOKENS,
        max_grad_norm=1e9,
        policy_kwargs=options.pop("policy_kwargs", {}) | {"net_arch": [8]},
        seed=0,
        device="cpu",
        **options,
    )
    theirs.set_logger(configure(None, []))
    rng, starts = np.random.default_rng(0), {0, *np.cumsum(LENGTHS)}
    for t in range(NUM_TOKENS):
        state, action = rng.integers(0, STATES, (2, 1))
        with torch.no_grad():
            value, logprob, _ = theirs.policy.evaluate_actions(torch.tensor(state), torch.tensor(action))
        theirs.rollout_buffer.add(state, action, rng.normal(size=1), np.array([t in starts]), value, logprob)
    theirs.rollout_buffer.compute_returns_and_advantage(torch.zeros(1), dones=np.array([True]))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in theirs.policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return theirs


def credit_of(ours: ActorCriticAlgorithm, buffer: Any) -> Credit:
    return ours.credit(credit_inputs(split(buffer.rewards), values=split(buffer.values)))


def loss_of(ours: ActorCriticAlgorithm, policy: Any, buffer: Any) -> LossOutput:
    """Our loss of their policy, on all transitions in their order."""
    mask_BT = credit_inputs(split(buffer.rewards)).mask_BT
    credit = credit_of(ours, buffer)
    states_N, actions_N = (torch.tensor(array).flatten() for array in (buffer.observations, buffer.actions))
    values_N1, logprobs_N, entropies_N = policy.evaluate_actions(states_N, actions_N)
    return ours.loss(
        loss_inputs(
            ROWS,
            logprobs_N=logprobs_N,
            old_logprobs_N=torch.tensor(buffer.log_probs).flatten(),
            advantages_N=ours.prepare_minibatch(credit.advantages_BT[mask_BT]),
            returns_N=credit.returns_BT[mask_BT],
            values_N=values_N1.flatten(),
            old_values_N=torch.tensor(buffer.values).flatten(),
            entropies_N=entropies_N if ours.needs_entropy else None,
        )
    )


def step(ours: ActorCriticAlgorithm, policy: Any, buffer: Any) -> Mapping[str, float]:
    """One step of their policy, by its own optimiser, along our gradient; returns our metrics."""
    output = loss_of(ours, policy, buffer)
    policy.optimizer.zero_grad()
    output.loss.backward()
    policy.optimizer.step()
    return {name: float(value) for name, value in output.metrics.items()}


def assert_same_weights(policy: Any, expected: Any, start: Any) -> None:
    for got, wanted, before in zip(*(model.parameters() for model in (policy, expected, start)), strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-4)
        assert not torch.allclose(wanted, before, atol=1e-5)


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(0.99, 0.95), (1.0, 1.0), (0.7, 0.0), (0.9, 0.5)])
def test_advantages_and_returns(gamma: float, gae_lambda: float) -> None:
    buffer = filled("PPO", gamma=gamma, gae_lambda=gae_lambda, batch_size=NUM_TOKENS).rollout_buffer
    credit = credit_of(PPO(gamma=gamma, gae_lambda=gae_lambda), buffer)
    mask_BT = credit_inputs(split(buffer.rewards)).mask_BT
    for got, expected in (
        (credit.advantages_BT, buffer.advantages),
        (credit.returns_BT, buffer.returns),
    ):
        torch.testing.assert_close(got[mask_BT], torch.tensor(expected).flatten(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("theirs", "ours"), OPTIONS)
def test_ppo_ends_at_their_weights(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Three epochs of Adam; the permutation of a minibatch that is everything changes nothing."""
    algorithm = filled("PPO", batch_size=NUM_TOKENS, n_epochs=3, **theirs)
    start, policy = copy.deepcopy(algorithm.policy), copy.deepcopy(algorithm.policy)
    metrics = [step(PPO(gamma=0.99, **ours), policy, algorithm.rollout_buffer) for _ in range(3)]
    algorithm.train()
    assert_same_weights(policy, algorithm.policy, start)
    logged = algorithm.logger.name_to_value
    for name, key in {
        "loss/policy": "train/policy_gradient_loss",
        "loss/value": "train/value_loss",
        "clip_fraction": "train/clip_fraction",
    }.items():
        assert np.mean([row[name] for row in metrics]) == pytest.approx(logged[key], rel=1e-4)
    assert metrics[-1]["approx_kl"] == pytest.approx(logged["train/approx_kl"], rel=1e-3)  # theirs: the last
    assert metrics[0]["clip_fraction"] > 0.2


@pytest.mark.parametrize(("theirs", "ours"), [({}, {}), ({"ent_coef": 0.02}, {"entropy_coef": 0.02})])
def test_a2c_ends_at_their_weights(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    algorithm = filled("A2C", **theirs)
    start, policy = copy.deepcopy(algorithm.policy), copy.deepcopy(algorithm.policy)
    metrics = step(A2C(gamma=0.99, optimizer=THEIRS, **ours), policy, algorithm.rollout_buffer)
    algorithm.train()
    assert_same_weights(policy, algorithm.policy, start)
    logged = algorithm.logger.name_to_value
    assert metrics["loss/policy"] == pytest.approx(logged["train/policy_loss"], rel=1e-4)
    assert metrics["loss/value"] == pytest.approx(logged["train/value_loss"], rel=1e-4)
    (group,) = algorithm.policy.optimizer.param_groups
    assert isinstance(algorithm.policy.optimizer, torch.optim.RMSprop)
    assert (group["alpha"], group["eps"], group["lr"]) == (THEIRS.alpha, THEIRS.eps, A2C().learning_rate)


def test_the_defaults_are_theirs_but_for_the_discount_and_the_units() -> None:
    import stable_baselines3
    from stable_baselines3.common.envs import IdentityEnv

    for kind, ours in (("PPO", PPO()), ("A2C", A2C())):
        theirs = getattr(stable_baselines3, kind)("MlpPolicy", IdentityEnv(STATES), device="cpu")
        assert (theirs.learning_rate, theirs.gae_lambda, theirs.ent_coef, theirs.vf_coef) == (
            ours.learning_rate,
            ours.gae_lambda,
            ours.entropy_coef,
            ours.value_coef,
        )
        assert theirs.max_grad_norm == ours.max_grad_norm
        assert theirs.normalize_advantage == (ours.advantage_whitening == "minibatch")
    ppo = stable_baselines3.PPO("MlpPolicy", IdentityEnv(STATES), device="cpu")
    assert (ppo.n_epochs, ppo.batch_size, ppo.clip_range(1.0)) == (10, 64, 0.2)
    assert (PPO().num_epochs, PPO().minibatch_size, PPO().clip_range) == (10, 64, 0.2)
