"""The entropy bonus of algorithms that compare groups: its formula, its rule, its state in checkpoints."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

from contracts.rollout import Rollout
from learner.algorithms.classes import algorithm_class
from learner.algorithms.critic_free import CriticFree
from learner.algorithms.grpo import GRPO
from learner.algorithms.ppo import PPO
from learner.learner import Learner
from learner.optimization.entropy_control import EntropyBonus, EntropyRule
from learner.optimization.kl_control import KLSettings
from tests.learner.inputs import loss_inputs
from tests.learner.tiny import SMOOTH, make_learner, random_rollouts, snapshot, without_times

FAMILY = (
    *("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp"),
    *("gdpo", "sapo", "max_rl", "pass_at_k", "dppo"),
)
NO_KL = KLSettings(placement="loss", estimator="k3", coefficient=0.0)


def of_family(name: str, **options: Any) -> CriticFree:
    made = algorithm_class(name)(**options)  # type: ignore[arg-type]
    assert isinstance(made, CriticFree)
    return made


@pytest.mark.parametrize("name", FAMILY)
def test_the_bonus_is_the_mean_entropy_of_a_token_whatever_weighs_the_others(name: str) -> None:
    """Entropies 1, 2 and 3 nats of two responses: mean 2, of which a tenth is taken off."""
    entropies_N = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    inputs = loss_inputs([0, 0, 1], advantages_N=[1.0, 1.0, -1.0], entropies_N=entropies_N)
    without = float(of_family(name).loss(replace(inputs, entropies_N=None)).loss)
    output = of_family(name, entropy_coef=0.1).loss(inputs)
    assert float(output.loss.detach()) == pytest.approx(without - 0.2)
    output.loss.backward()
    torch.testing.assert_close(entropies_N.grad, torch.full((3,), -0.1 / 3))


@pytest.mark.parametrize("name", FAMILY)
def test_without_an_option_there_is_no_bonus_and_no_entropy_is_computed(name: str) -> None:
    assert not of_family(name).needs_entropy
    assert of_family(name, entropy_coef=0.1).needs_entropy
    assert of_family(name, entropy_target=0.1).needs_entropy


def test_the_coefficient_of_now_counts_where_a_rule_moves_it() -> None:
    inputs = loss_inputs([0, 0], entropies_N=[1.0, 3.0], entropy_coefficient=0.25)
    assert float(GRPO(entropy_coef=0.1).loss(inputs).loss) == pytest.approx(-0.5)
    assert float(GRPO(entropy_target=1.0).loss(replace(inputs, entropy_coefficient=0.0)).loss) == 0


def test_ppo_has_the_bonus_by_the_same_name() -> None:
    assert {"entropy_coef"} <= GRPO.model_fields.keys() & PPO.model_fields.keys()


# The rule


def test_the_rule_by_hand() -> None:
    """Steps of 0.1 from 0.05, target 1: up while the entropy is at most 1, else down, within 0 and 0.2."""
    bonus = EntropyBonus(EntropyRule(0.05, target=1.0, step=0.1, highest=0.2))
    acted, coefficients = [], []
    for entropy in (2.0, 1.0, 0.5, 0.4, 1.5, 0.9):
        acted.append(bonus.after({"entropy": entropy})["entropy_coefficient"])
        coefficients.append(bonus.coefficient)
    assert coefficients == pytest.approx([0.0, 0.1, 0.2, 0.2, 0.1, 0.2])
    # each update is given what the one before it has measured; none acts above the target
    assert acted == pytest.approx([0.0, 0.0, 0.1, 0.2, 0.2, 0.0])
    assert bonus.now == pytest.approx(0.2)


def test_a_fixed_coefficient_stays_and_acts_at_once() -> None:
    bonus = EntropyBonus(EntropyRule(0.05))
    assert bonus.now == 0.05
    assert bonus.after({"entropy": 0.0}) == {"entropy_coefficient": 0.05} and bonus.coefficient == 0.05
    bonus.restore({"coefficient": 0.9, "entropy": 0.1})  # the settings of the resumed run hold
    assert bonus.now == 0.05


def test_an_update_that_measures_no_entropy_moves_nothing() -> None:
    bonus = EntropyBonus(EntropyRule(0.05, target=1.0))
    bonus.after({})
    assert (bonus.coefficient, bonus.entropy, bonus.now) == (0.05, None, 0.0)


# In a learner

ADAPTIVE: dict[str, Any] = dict(
    entropy_coef=0.01,
    entropy_step=0.01,
    learning_rate=3e-3,
    minibatch_size=5,
    num_epochs=2,
    optimizer=SMOOTH,
)


def groups(seed: int) -> list[Rollout]:
    return [replace(one, group=i // 4) for i, one in enumerate(random_rollouts(8, seed))]


def test_a_resumed_rule_goes_on_to_the_last_bit(models: dict[str, Path], tmp_path: Path) -> None:
    rehearsal = make_learner(models["llama"], GRPO(**ADAPTIVE))
    target = median(rehearsal.update(groups(seed))["entropy"] for seed in (1, 2, 3, 4))

    def fresh() -> Learner:
        return make_learner(models["llama"], GRPO(entropy_target=target, **ADAPTIVE))

    uninterrupted, resumed = fresh(), fresh()
    uninterrupted.update(groups(1))
    uninterrupted.save(str(tmp_path))
    assert json.loads((tmp_path / "learner.json").read_text())["entropy_bonus"]["entropy"] is not None
    expected = [without_times(uninterrupted.update(groups(seed))) for seed in (2, 3, 4)]
    resumed.load(str(tmp_path))
    assert [without_times(resumed.update(groups(seed))) for seed in (2, 3, 4)] == expected
    torch.testing.assert_close(snapshot(resumed.pair), snapshot(uninterrupted.pair), atol=0, rtol=0)
    assert resumed.entropy_bonus.state() == uninterrupted.entropy_bonus.state()
    assert len({row["entropy_coefficient"] for row in expected}) > 1  # it did move


def test_a_checkpoint_from_before_there_was_a_bonus_is_read(models: dict[str, Path], tmp_path: Path) -> None:
    learner = make_learner(models["llama"], GRPO(entropy_target=1.0, **ADAPTIVE))
    learner.save(str(tmp_path))
    state = json.loads((tmp_path / "learner.json").read_text())
    del state["entropy_bonus"]
    (tmp_path / "learner.json").write_text(json.dumps(state))
    learner.load(str(tmp_path))
    assert learner.entropy_bonus.coefficient == 0.01


@pytest.mark.parametrize("options", [{"entropy_coef": 0.3}, {"entropy_coef": 0.3, "entropy_target": 9.0}])
def test_texts_stay_more_varied_with_a_bonus_than_without(
    models: dict[str, Path], options: dict[str, Any]
) -> None:
    entropies = []
    for bonus in ({}, options):
        algorithm = GRPO(learning_rate=3e-3, kl=NO_KL, optimizer=SMOOTH, **bonus)
        learner = make_learner(models["llama"], algorithm)
        entropies.append([learner.update(groups(1))["entropy"] for _ in range(4)])
    without, with_bonus = entropies
    assert with_bonus[0] == without[0] and with_bonus[-1] > without[-1] + 0.01
