"""GRPO and its kin, and RLOO, against trl: its trainers generate, rate and differentiate by their own code,
and the learner does the same with the same responses and the same model.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.rollout import Rollout, Sampling
from contracts.scores import Term
from learner.algorithms.base import CreditInputs
from learner.algorithms.cispo import CISPO
from learner.algorithms.critic_free import CriticFree
from learner.algorithms.dapo import DAPO
from learner.algorithms.dr_grpo import DrGRPO
from learner.algorithms.gdpo import GDPO
from learner.algorithms.grpo import GRPO
from learner.algorithms.gspo import GSPO
from learner.algorithms.rloo import RLOO
from learner.algorithms.sapo import SAPO
from learner.functional.kl import k1
from learner.models.actor_critic import frozen_copy
from learner.optimization.entropy_control import EntropyBonus
from learner.optimization.kl_control import KLSettings
from tests.learner.contexts import make_context
from tests.learner.tiny import make_pair, perturb, rollout, whole

pytest.importorskip("trl")
pytest.importorskip("accelerate")

GROUP, MAX_TOKENS = 4, 7
PROMPTS = [{"prompt": "w3 w4"}] * GROUP + [{"prompt": "w5 w6 w7 w8"}] * GROUP


@pytest.fixture(scope="module", autouse=True)
def _lean_trl() -> Iterator[None]:
    """trl imports what it finds; of vLLM and MLflow, half a minute's worth, nothing is used here."""
    import transformers.integrations
    import trl.import_utils

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["trl.import_utils"], "is_vllm_available", lambda *_, **__: False)
        patch.setattr(transformers.integrations, "is_mlflow_available", lambda: False)
        import trl.trainer.grpo_trainer
        import trl.trainer.rloo_trainer  # noqa: F401
    yield


def reward(answer: list[int]) -> float:
    return sum(answer) % 7 / 3


def brevity(answer: list[int]) -> float:
    """Another reward, of another size, which is the same for many answers."""
    return 10.0 * (len(answer) < 5)


WEIGHTS = {reward: 1.0, brevity: 0.3}


def trainer_of(kind: str, path: Path, folder: Path, **options: Any) -> Any:
    """A trl trainer whose policy has left its reference."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.trainer import grpo_config, grpo_trainer, rloo_config, rloo_trainer

    trainers = {
        "grpo": (grpo_trainer.GRPOTrainer, grpo_config.GRPOConfig),
        "rloo": (rloo_trainer.RLOOTrainer, rloo_config.RLOOConfig),
    }
    trainer_kind, config_kind = trainers[kind]
    tokenizer = AutoTokenizer.from_pretrained(path, pad_token="w0")
    trainer = trainer_kind(
        model=AutoModelForCausalLM.from_pretrained(path, attention_dropout=0.0),
        reward_funcs=[rater(rule) for rule in WEIGHTS][: len(options.get("reward_weights", [0]))],
        args=config_kind(
            output_dir=str(folder),
            per_device_train_batch_size=len(PROMPTS),
            num_generations=GROUP,
            max_completion_length=MAX_TOKENS,
            num_iterations=2,  # so that the old log-probabilities are kept
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to=[],
            **options,
        ),
        train_dataset=Dataset.from_list(PROMPTS),
        processing_class=tokenizer,
    )
    perturb(trainer.model)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def rater(rates: Any) -> Any:
    """Return a reward as trl calls it."""
    return lambda completion_ids, **_: [rates(answer) for answer in completion_ids]


def as_rollouts(batch: dict[str, Tensor]) -> list[Rollout]:
    """Rollouts that trl generated, as a worker would have brought them."""
    made = []
    for i, (prompt_L, seen_L, answer_T, mask_T) in enumerate(
        zip(
            *(batch[f"{part}_{kind}"] for part in ("prompt", "completion") for kind in ("ids", "mask")),
            strict=True,
        )
    ):
        answer = answer_T[mask_T.bool()].tolist()
        one = rollout(i, prompt_L[seen_L.bool()].tolist(), answer, reward(answer))
        terms = {rule.__name__: Term(rule(answer), weight) for rule, weight in WEIGHTS.items()}
        made.append(replace(one, group=i // GROUP, reward_terms=terms))
    return made


def compare(path: Path, trainer: Any, algorithm: CriticFree, step: float = 0.03) -> None:
    """Advantages, then loss and gradient after a step away from the policy that sampled."""
    torch.manual_seed(0)
    batch = trainer._generate_and_score_completions(PROMPTS)
    pair = make_pair(path)
    reference = frozen_copy(pair.policy)
    perturb(pair.lm)
    context = make_context(
        pair, as_rollouts(batch), algorithm, sampling=Sampling(max_tokens=MAX_TOKENS), reference=reference
    )
    scored, laid_out = context.scored, context.batch
    in_reward = algorithm.kl.placement == "reward"
    rated = CreditInputs(
        rewards_BT=laid_out.rewards_BT,
        kl_BT=k1(scored.old_logprobs_BT, scored.ref_logprobs_BT) * in_reward,
        values_BT=scored.values_BT,
        mask_BT=laid_out.mask_BT,
        positions_BT=laid_out.positions_BT,
        groups_B=laid_out.groups_B,
        bootstrap_B=torch.zeros(laid_out.num_rollouts),
        baseline_B=torch.zeros(laid_out.num_rollouts),
        kl_coefficient=algorithm.kl.coefficient,
        terms=laid_out.reward_terms,
        entropies_BT=scored.entropies_BT,
    )
    torch.testing.assert_close(algorithm.advantages(rated), batch["advantages"], atol=1e-5, rtol=1e-5)
    credit = algorithm.credit(rated)
    assert batch["advantages"].abs().max() > 0.1 and len(laid_out.mask_BT.sum(-1).unique()) > 1

    for lm in (pair.lm, trainer.model):
        perturb(lm, step, seed=5)
        lm.zero_grad()
    theirs = trainer._compute_loss(trainer.model, batch)
    theirs.backward()
    inputs = context.loss_inputs(
        whole(laid_out), credit, num_tokens=laid_out.num_tokens, num_rollouts=laid_out.num_rollouts
    )
    ours = algorithm.loss(inputs)
    ours.loss.backward()
    assert not step or float(ours.metrics["clip_fraction"]) > 0.05
    torch.testing.assert_close(ours.loss, theirs, atol=1e-5, rtol=1e-5)
    for got, expected in zip(pair.lm.parameters(), trainer.model.parameters(), strict=True):
        torch.testing.assert_close(got.grad, expected.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (GRPO(), {"loss_type": "grpo", "beta": 0.04}),
        (  # as published: the KL without its ratio
            GRPO(kl=KLSettings(placement="loss", estimator="k3", coefficient=0.04)),
            {"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": False},
        ),
        (
            GRPO(scale_by_deviation=False, aggregation="constant"),  # Dr. GRPO
            {
                "loss_type": "dr_grpo",
                "beta": 0.04,
                "scale_rewards": "none",
            },
        ),
        (
            GRPO(aggregation="token_mean", clip_range_high=0.28, kl=KLSettings(coefficient=0.0)),  # DAPO
            {"loss_type": "dapo", "beta": 0.0, "epsilon_high": 0.28},
        ),
        (
            DAPO(overlong_share=0.0),
            {"loss_type": "dapo", "beta": 0.0, "epsilon_high": 0.28},
        ),
        (DrGRPO(), {"loss_type": "dr_grpo", "beta": 0.0, "scale_rewards": "none"}),
        (
            GSPO(),
            {
                "loss_type": "grpo",
                "importance_sampling_level": "sequence",
                "beta": 0.0,
                "epsilon": 3e-4,
                "epsilon_high": 4e-4,
            },
        ),
        (SAPO(), {"loss_type": "sapo", "beta": 0.0}),
        (
            SAPO(temperature_positive=3.0, temperature_negative=0.5),
            {
                "loss_type": "sapo",
                "beta": 0.0,
                "sapo_temperature_pos": 3.0,
                "sapo_temperature_neg": 0.5,
            },
        ),
        (
            GDPO(),
            {
                "loss_type": "grpo",
                "beta": 0.04,
                "multi_objective_aggregation": "normalize_then_sum",
                "reward_weights": list(WEIGHTS.values()),
            },
        ),
        (GRPO(entropy_coef=0.2), {"loss_type": "grpo", "beta": 0.04, "entropy_coef": 0.2}),
        (
            DrGRPO(entropy_coef=0.2),
            {"loss_type": "dr_grpo", "beta": 0.0, "scale_rewards": "none", "entropy_coef": 0.2},
        ),
        (
            CISPO(clip_range_high=0.02, entropy_coef=0.2),
            {"loss_type": "cispo", "beta": 0.0, "epsilon_high": 1.02, "entropy_coef": 0.2},
        ),
        # theirs is the bound itself; so low that some tokens reach it
        (CISPO(clip_range_high=0.02), {"loss_type": "cispo", "beta": 0.0, "epsilon_high": 1.02}),
    ],
    ids=[
        "grpo",
        "grpo_as_published",
        "dr_grpo_by_options",
        "dapo_by_options",
        "dapo",
        "dr_grpo",
        "gspo",
        "sapo",
        "sapo_of_other_temperatures",
        "gdpo",
        "bonus",
        "bonus_dr_grpo",
        "bonus_cispo",
        "cispo",
    ],
)
def test_grpo(
    models: dict[str, Path], tmp_path: Path, algorithm: CriticFree, options: dict[str, Any]
) -> None:
    compare(models["llama"], trainer_of("grpo", models["llama"], tmp_path, **options), algorithm)


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_tokens_of_high_entropy_alone(models: dict[str, Path], tmp_path: Path, share: float) -> None:
    """trl takes the entropies of each step's policy, we those of the policy that sampled: equal at first."""
    options = {"loss_type": "grpo", "beta": 0.04, "top_entropy_quantile": share}
    trainer = trainer_of("grpo", models["llama"], tmp_path, **options)
    compare(models["llama"], trainer, GRPO(top_entropy_share=share), step=0.0)


def test_the_rule_of_the_bonus_moves_as_trls(models: dict[str, Path], tmp_path: Path) -> None:
    """With the target between the entropies of a rehearsal, so that the coefficient goes up and down."""
    options = {"use_adaptive_entropy": True, "entropy_coef": 0.01, "entropy_coef_max": 0.03}
    options |= {"entropy_coef_delta": 0.007, "beta": 0.0, "loss_type": "grpo"}
    trainer = trainer_of("grpo", models["llama"], tmp_path, **options)
    torch.manual_seed(0)
    batch = trainer._generate_and_score_completions(PROMPTS)
    seen = trainer._metrics["train"]["entropy"]
    for seed in range(12):
        perturb(trainer.model, 0.02, seed=seed)
        trainer._compute_loss(trainer.model, batch)
    target = median(seen)
    for seed in range(12):
        perturb(trainer.model, -0.02, seed=seed)
    trainer.entropy_coef, trainer._last_world_entropy = 0.01, float("inf")
    trainer.args.entropy_target = target

    rule = GRPO(entropy_coef=0.01, entropy_target=target, entropy_step=0.007, entropy_coef_max=0.03)
    bonus, coefficients = EntropyBonus(rule.entropy_rule), []
    for seed in range(12):
        perturb(trainer.model, 0.02, seed=seed)
        loss = trainer._compute_loss(trainer.model, batch)
        entropy, policy = seen[-1], trainer._metrics["train"]["policy_loss"][-1]
        assert float(loss.detach()) == pytest.approx(policy - bonus.now * entropy, abs=1e-6)
        bonus.after({"entropy": entropy})
        assert bonus.coefficient == pytest.approx(trainer.entropy_coef, abs=1e-9)
        coefficients.append(bonus.coefficient)
    assert len(set(coefficients)) > 2


def test_rloo(models: dict[str, Path], tmp_path: Path) -> None:
    """With its penalty in the reward; trl's default coefficient is ours."""
    trainer = trainer_of("rloo", models["llama"], tmp_path)
    assert trainer.beta == RLOO().kl.coefficient
    compare(models["llama"], trainer, RLOO())
