"""DPO, IPO, SimPO, ORPO, KTO and PRO: numbers worked by hand, trl's own trainers on the same responses, and
what splitting leaves alone.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contracts.errors import LearnerError
from learner.algorithms.kto import KTO
from learner.batches.batching import collate
from learner.functional.preferences import (
    by_prompt,
    dpo,
    implicit_rewards,
    ipo,
    kto,
    orpo,
    pro,
    require_ranked,
    simpo,
)
from learner.passes.scoring import score_by
from tests.learner.tiny import make_learner, perturb, rollout

LN2 = math.log(2)

logprobs = st.floats(-20, 0)
pairs = st.lists(st.tuples(logprobs, logprobs, logprobs, logprobs), min_size=1, max_size=5).map(
    lambda rows: torch.tensor(rows, dtype=torch.float64).reshape(-1, 2, 2).unbind(1)
)  # (policy's, reference's), (B, 2) each
betas = st.floats(0.01, 2)


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


# By hand


def test_the_layout_of_responses() -> None:
    logprobs_N, rows_N = torch.tensor([-1.0, -2.0, -4.0, -6.0, -8.0, -9.0]), torch.tensor([0, 0, 1, 2, 2, 3])
    assert by_prompt(logprobs_N, rows_N, 2).tolist() == [[-3, -4], [-14, -9]]
    assert by_prompt(logprobs_N, rows_N, 2, mean=True).tolist() == [[-1.5, -4], [-7, -9]]
    assert by_prompt(logprobs_N, rows_N, 4).tolist() == [[-3, -4, -14, -9]]


def test_dpo_by_hand() -> None:
    # log-ratios 2 and -1, so z = .5 · 3: ln(1 + e^-1.5), its gradient -.5 σ(-1.5)
    policy_B2 = row(-3, -6).requires_grad_()
    loss_B = dpo(policy_B2, row(-5, -5), beta=0.5)
    assert loss_B.tolist() == pytest.approx([math.log(1 + math.exp(-1.5))])
    (got,) = torch.autograd.grad(loss_B.sum(), policy_B2)
    pull = 0.5 / (1 + math.exp(1.5))
    assert got.tolist() == [pytest.approx([-pull, pull])]


def test_the_published_beta_is_the_default() -> None:
    """z = .1 · 3; and (3 - 5)²."""
    assert dpo(row(-3, -6), row(-5, -5)).tolist() == pytest.approx([math.log(1 + math.exp(-0.3))])
    assert ipo(row(-3, -6), row(-5, -5)).tolist() == pytest.approx([4.0])


def test_label_smoothing_by_hand() -> None:
    expected = 0.9 * math.log(1 + math.exp(-1.5)) + 0.1 * math.log(1 + math.exp(1.5))
    assert float(dpo(row(-3, -6), row(-5, -5), beta=0.5, label_smoothing=0.1)) == pytest.approx(expected)


def test_reference_free_dpo_is_one_whose_reference_has_no_preference() -> None:
    free = dpo(row(-3, -6), None, beta=0.5)
    assert free.tolist() == pytest.approx([math.log(1 + math.exp(-1.5))])
    torch.testing.assert_close(free, dpo(row(-3, -6), row(-7, -7), beta=0.5))


def test_ipo_by_hand() -> None:
    # (3 - 1 / (2 · .5))² = 4, its gradient 2 · 2
    policy_B2 = row(-3, -6).requires_grad_()
    loss_B = ipo(policy_B2, row(-5, -5), beta=0.5)
    assert loss_B.tolist() == [4.0]
    (got,) = torch.autograd.grad(loss_B.sum(), policy_B2)
    assert got.tolist() == [[4.0, -4.0]]
    assert ipo(row(-3, -6), None, beta=1 / 6).tolist() == pytest.approx([0.0])  # 3 is margin enough


def test_simpo_by_hand() -> None:
    # β = 2, γ = .5: z = 2 · (-1 + 2) - .5 = 1.5: ln(1 + e^-1.5), its gradient -2 σ(-1.5)
    means_B2 = row(-1, -2).requires_grad_()
    loss_B = simpo(means_B2)
    assert loss_B.tolist() == pytest.approx([math.log(1 + math.exp(-1.5))])
    (got,) = torch.autograd.grad(loss_B.sum(), means_B2)
    pull = 2 / (1 + math.exp(1.5))
    assert got.tolist() == [pytest.approx([-pull, pull])]
    assert simpo(row(-1, -2), beta=0.5, gamma=0.5).tolist() == pytest.approx([LN2])  # the margin is just met


def test_orpo_by_hand() -> None:
    # probabilities ½ and ¼: odds 1 and ⅓, so -ln σ(ln 3) = ln(4/3); and the chosen one's ln 2
    loss_B = orpo(row(-LN2, -2 * LN2))
    assert loss_B.tolist() == pytest.approx([LN2 + 0.1 * math.log(4 / 3)])
    assert orpo(row(-LN2, -2 * LN2), weight=0.0).tolist() == pytest.approx([LN2])
    certain = orpo(row(0, -LN2).requires_grad_())
    assert certain.isfinite().all() and torch.autograd.grad(certain.sum(), certain)


def test_kto_by_hand() -> None:
    # β = 1, z = 1: a good response at r = 1 + ln 3 loses σ(-ln 3) = ¼, a bad one there σ(ln 3) = ¾
    ratios_B = torch.tensor([1 + math.log(3)] * 2 + [1.0], dtype=torch.float64, requires_grad=True)
    good_B, point_B = torch.tensor([True, False, True]), torch.ones(3, dtype=torch.float64)
    losses_B = kto(ratios_B, good_B, point_B, beta=1.0)
    assert losses_B.tolist() == pytest.approx([1 / 4, 3 / 4, 1 / 2])
    (got,) = torch.autograd.grad(losses_B.sum(), ratios_B)
    assert got.tolist() == pytest.approx([-3 / 16, 3 / 16, -1 / 4])
    weighed_B = kto(ratios_B, good_B, point_B, beta=1.0, desirable_weight=2.0, undesirable_weight=0.0)
    assert weighed_B.tolist() == pytest.approx([1 / 2, 0, 1])


def test_simpo_and_orpo_against_trls_numbers() -> None:
    """trl 1.16.0: CPOTrainer.cpo_loss of simpo, ORPOTrainer.odds_ratio_loss, and their gradients.

    Its ORPO loss is the chosen response's mean negative log-likelihood less those numbers.
    """
    means_B2 = torch.tensor([[-0.5, -1.25], [-2.0, -0.75], [-0.1, -3.0]], requires_grad=True)
    losses_B = simpo(means_B2, beta=2.0, gamma=0.5)
    assert losses_B.tolist() == pytest.approx([0.3132616878, 3.0485873222, 0.0049791760], rel=1e-5)
    (got,) = torch.autograd.grad(losses_B.sum(), means_B2)
    pulls = [0.5378828645, 1.9051482677, 0.0099336002]
    assert got.flatten().tolist() == pytest.approx([pull for p in pulls for pull in (-p, p)], rel=1e-5)

    losses_B = orpo(means_B2, weight=0.1) + means_B2[:, 0]
    assert losses_B.tolist() == pytest.approx([0.0231504329, 0.1905063689, 0.0005495375], rel=1e-5)
    (got,) = torch.autograd.grad(losses_B.sum(), means_B2)
    theirs = [0.0525227040, -0.0289645605, 0.0984412581, -0.1613216102, 0.0057588853, -0.0005767448]
    assert got.flatten().tolist() == pytest.approx([-number for number in theirs], rel=1e-5)


def test_implicit_rewards_by_hand() -> None:
    policy_B2 = row(-3, -6).requires_grad_()
    rewards_B2 = implicit_rewards(policy_B2, row(-5, -5), beta=0.5)
    assert rewards_B2.tolist() == [[1.0, -0.5]] and not rewards_B2.requires_grad
    assert implicit_rewards(policy_B2, None, beta=0.5).tolist() == [[-1.5, -3.0]]


def test_pro_of_a_pair_by_hand() -> None:
    # means -1 and -3, τ = 2 for both: ln(e^-2 + e^-6) + 2 = ln(1 + e^-4); and .05 · 1² · 4
    loss_B = pro(row(-4, -9), row(4, 3), row(1.5, -0.5))
    assert loss_B.tolist() == pytest.approx([math.log(1 + math.exp(-4)) + 0.2])


def test_pro_of_three_by_hand() -> None:
    # s = (-1, -2, -1), r = (3, 2, 0).
    # k = 1: τ = (3, 1, 3), s τ = (-3, -2, -3): ln(2 e^-3 + e^-2) + 3
    # k = 2: τ = (2, 2), s τ = (-4, -2): ln(e^-4 + e^-2) + 4
    # SFT: .1 · 2² · 2 (its sum, not its mean)
    loss_B = pro(row(-2, -2, -3), row(2, 1, 3), row(3, 2, 0), sft_weight=0.1)
    first = math.log(2 * math.exp(-3) + math.exp(-2)) + 3
    second = math.log(math.exp(-4) + math.exp(-2)) + 4
    assert loss_B.tolist() == pytest.approx([first + second + 0.8])


def test_pros_epsilon_matters_where_all_is_unlikely() -> None:
    """s τ = (-40, -60): the source's loss stops falling at ln(1e-10) + 40, and its gradient with it."""
    options = {"lengths_BK": row(1, 1), "rewards_BK": row(2, 0), "sft_weight": 0.0}
    policy_BK = row(-20, -30).requires_grad_()
    source_B, ours_B = pro(policy_BK, eps=1e-10, **options), pro(policy_BK, **options)  # type: ignore[arg-type]
    assert source_B.tolist() == pytest.approx([math.log(1e-10 + math.exp(-40)) + 40])
    assert ours_B.tolist() == pytest.approx([math.log(1 + math.exp(-20))])
    near = {**options, "rewards_BK": row(0.1, 0)}
    torch.testing.assert_close(
        pro(policy_BK, eps=1e-10, **near),  # type: ignore[arg-type]
        pro(policy_BK, **near),  # type: ignore[arg-type]
        atol=1e-8,
        rtol=0,
    )


def test_pro_survives_large_exponents() -> None:
    assert pro(row(-1, -900), row(1, 1), row(9.0, 0.0), sft_weight=0.0).tolist() == pytest.approx([0.0])


# What always holds


@given(pairs, betas)
def test_at_the_reference_dpo_is_log_two_and_ipo_its_square(both: tuple[Tensor, Tensor], beta: float) -> None:
    policy_B2, _ = both
    for smoothing in (0.0, 0.3):
        loss_B = dpo(policy_B2, policy_B2.clone(), beta=beta, label_smoothing=smoothing)
        torch.testing.assert_close(loss_B, torch.full_like(loss_B, LN2))
    loss_B = ipo(policy_B2, policy_B2.clone(), beta=beta)
    torch.testing.assert_close(loss_B, torch.full_like(loss_B, 1 / (4 * beta**2)))


@given(pairs, betas)
def test_dpo_of_both_orders_differ_by_the_margin(both: tuple[Tensor, Tensor], beta: float) -> None:
    """-log σ(z) and -log σ(-z) are z apart; smoothed by a half, the order does not matter."""
    policy_B2, ref_B2 = both
    turned = policy_B2.flip(-1), ref_B2.flip(-1)
    rewards_B2 = implicit_rewards(policy_B2, ref_B2, beta=beta)
    torch.testing.assert_close(
        dpo(*turned, beta=beta) - dpo(policy_B2, ref_B2, beta=beta), rewards_B2[:, 0] - rewards_B2[:, 1]
    )
    torch.testing.assert_close(
        dpo(*turned, beta=beta, label_smoothing=0.5), dpo(policy_B2, ref_B2, beta=beta, label_smoothing=0.5)
    )


@given(pairs, betas)
def test_kto_at_the_reference_point_is_a_half_and_good_and_bad_add_up_to_one(
    both: tuple[Tensor, Tensor], beta: float
) -> None:
    ratios_B = (both[0] - both[1]).flatten()
    good_B = torch.ones_like(ratios_B, dtype=torch.bool)
    at_the_point = kto(ratios_B, good_B, ratios_B, beta=beta)
    torch.testing.assert_close(at_the_point, torch.full_like(ratios_B, 0.5))
    point_B = ratios_B.flip(0)
    good, bad = (kto(ratios_B, each_B, point_B, beta=beta) for each_B in (good_B, ~good_B))
    torch.testing.assert_close(good + bad, torch.ones_like(ratios_B))


@given(pairs, betas)
def test_simpo_without_a_margin_is_reference_free_dpo_of_means(
    both: tuple[Tensor, Tensor], beta: float
) -> None:
    torch.testing.assert_close(simpo(both[0], beta=beta, gamma=0.0), dpo(both[0], None, beta=beta))


@given(logprobs, logprobs, st.floats(-3, 3), st.floats(0.1, 3))
def test_pro_of_a_pair_is_a_logistic_loss(chosen: float, rejected: float, reward: float, gap: float) -> None:
    """-log σ(gap · (s_1 - s_2)): DPO without a reference, with the rewards' distance for β."""
    ranking = pro(row(chosen, rejected), row(1, 1), row(reward + gap, reward), sft_weight=0.0)
    torch.testing.assert_close(ranking, dpo(row(chosen, rejected), None, beta=gap))


@given(pairs, st.floats(-3, 3))
def test_pro_minds_no_offset_of_rewards(both: tuple[Tensor, Tensor], offset: float) -> None:
    scores_BK = torch.cat(both, dim=-1)
    lengths_BK = torch.full_like(scores_BK, 2.0)
    rewards_BK = torch.tensor([2.0, 1.0, 0.5, -1.0]).double().expand_as(scores_BK)
    torch.testing.assert_close(
        pro(scores_BK, lengths_BK, rewards_BK + offset), pro(scores_BK, lengths_BK, rewards_BK)
    )


@given(st.lists(st.integers(1, 4), min_size=4, max_size=4), st.sampled_from([2, 4, 6]))
def test_splitting_a_minibatch_between_prompts_changes_nothing(lengths: list[int], at: int) -> None:
    """Four prompts with two responses of uneven lengths each; a prompt's responses stay together."""
    rows_N = torch.arange(8).repeat_interleave(torch.tensor(lengths * 2))
    generator = torch.Generator().manual_seed(sum(lengths))
    logprobs_N, ref_N = -torch.rand(2, len(rows_N), generator=generator, dtype=torch.float64)
    logprobs_N.requires_grad_()
    rewards_R = torch.tensor([1.0, 0.0] * 4).double()
    lengths_R = rows_N.bincount().double()

    def share(first: int, last: int) -> Tensor:
        here_N = (rows_N >= first) & (rows_N < last)
        rows = rows_N[here_N] - first

        def both(mean: bool) -> tuple[Tensor, Tensor]:
            return (
                by_prompt(logprobs_N[here_N], rows, 2, mean=mean),
                by_prompt(ref_N[here_N], rows, 2, mean=mean),
            )

        of_prompts = (rewards_R[first:last].reshape(-1, 2), lengths_R[first:last].reshape(-1, 2))
        losses_B = dpo(*both(False)) + ipo(*both(True)) + pro(both(False)[0], of_prompts[1], of_prompts[0])
        return losses_B.sum() / 4  # prompts of the whole minibatch

    whole, parts = share(0, 8), share(0, at) + share(at, 8)
    torch.testing.assert_close(parts, whole)
    got, expected = (torch.autograd.grad(of, logprobs_N, retain_graph=True)[0] for of in (parts, whole))
    torch.testing.assert_close(got, expected)


# Rankings


def test_rankings_are_required_to_fall() -> None:
    require_ranked(torch.tensor([[3.0, 2.0, -1.0], [0.2, 0.1, 0.0]]))
    with pytest.raises(LearnerError, match=r"2 of 3 prompts .* prompt 1 with \[1.0, 1.0, 0.0\]"):
        require_ranked(torch.tensor([[3.0, 2.0, 1.0], [1.0, 1.0, 0.0], [0.0, 1.0, 2.0]]))
    with pytest.raises(LearnerError, match=r"1 of 1 prompts .* \[nan, 0.0\]"):
        require_ranked(torch.tensor([[math.nan, 0.0]]))


# trl's trainer: its own collator, model, log-probabilities and loss


@pytest.fixture(scope="module")
def _lean_trl() -> Iterator[None]:
    """trl imports what it finds; of vLLM and MLflow, half a minute's worth, nothing is used here."""
    pytest.importorskip("trl")
    pytest.importorskip("accelerate")
    import transformers.integrations
    import trl.import_utils

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["trl.import_utils"], "is_vllm_available", lambda *_, **__: False)
        patch.setattr(transformers.integrations, "is_mlflow_available", lambda: False)
        import trl.trainer.dpo_trainer
        import trl.trainer.kto_trainer  # noqa: F401
    yield


EXAMPLES = [
    {"prompt_ids": [3, 4], "chosen_ids": [5, 6, 7, 2], "rejected_ids": [9, 2]},
    {"prompt_ids": [8, 9, 10], "chosen_ids": [11, 2], "rejected_ids": [12, 13, 14, 15, 16, 2]},
    {"prompt_ids": [4], "chosen_ids": [20, 21, 2], "rejected_ids": [22, 23, 2]},
]


def trainer_of(path: Path, folder: Path, loss_type: str, **options: Any) -> Any:
    """A trl trainer whose policy has left its reference."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.dpo_trainer import DPOTrainer

    def load() -> Any:
        return AutoModelForCausalLM.from_pretrained(path, attention_dropout=0.0)

    trainer = DPOTrainer(
        model=load(),
        ref_model=load(),
        args=DPOConfig(
            output_dir=str(folder),
            loss_type=[loss_type],
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to=[],
            **options,
        ),
        train_dataset=Dataset.from_list([{"prompt": "w3", "chosen": "w4", "rejected": "w5"}]),
        processing_class=AutoTokenizer.from_pretrained(path, pad_token="w0"),
    )
    perturb(trainer.model, 0.1)
    trainer.model.train()
    return trainer


def sums_of(lm: Any, inputs: dict[str, Tensor], mean: bool) -> Tensor:
    """Our log-probabilities (B, 2) of trl's batch, which holds all the chosen ones, then the rejected."""
    logits_RLV = lm(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
    targets_RL, mask_RL = inputs["input_ids"][:, 1:], inputs["completion_mask"][:, 1:].bool()
    logprobs_RL = logits_RLV[:, :-1].log_softmax(-1).gather(-1, targets_RL[..., None]).squeeze(-1)
    together_R = torch.arange(len(mask_RL)).reshape(2, -1).T.flatten()  # chosen and rejected side by side
    logprobs_RL, mask_RL = logprobs_RL[together_R], mask_RL[together_R]
    return by_prompt(logprobs_RL[mask_RL], mask_RL.nonzero()[:, 0], 2, mean=mean)


@pytest.mark.usefixtures("_lean_trl")
@pytest.mark.parametrize(
    ("loss_type", "options", "smoothing", "num_pairs"),
    [
        ("sigmoid", {"beta": 0.3}, 0.0, 3),
        ("ipo", {"beta": 0.3}, 0.0, 3),
        # trl smooths labels where it sorts margins over a batch, which for a batch of one pair is DPO
        ("aot", {"beta": 0.3, "label_smoothing": 0.2}, 0.2, 1),
    ],
)
def test_against_trls_trainer(
    models: dict[str, Path],
    tmp_path: Path,
    loss_type: str,
    options: dict[str, Any],
    smoothing: float,
    num_pairs: int,
) -> None:
    """Loss, gradient, and the implicit rewards that it logs."""
    trainer = trainer_of(models["llama"], tmp_path, loss_type, **options)
    inputs = trainer.data_collator(EXAMPLES[-num_pairs:])
    theirs = trainer._compute_loss(trainer.model, inputs, False)
    theirs.backward()
    their_gradients = [parameter.grad.clone() for parameter in trainer.model.parameters()]
    trainer.model.zero_grad()

    is_ipo = loss_type == "ipo"
    policy_B2 = sums_of(trainer.model, inputs, mean=is_ipo)
    ref_B2 = sums_of(trainer.ref_model, inputs, mean=is_ipo).detach()
    beta = options["beta"]
    losses_B = (
        ipo(policy_B2, ref_B2, beta=beta)
        if is_ipo
        else dpo(policy_B2, ref_B2, beta=beta, label_smoothing=smoothing)
    )
    ours = losses_B.sum() / num_pairs
    ours.backward()
    assert (policy_B2 - ref_B2).abs().min() > 0.01
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
    for parameter, expected in zip(trainer.model.parameters(), their_gradients, strict=True):
        torch.testing.assert_close(parameter.grad, expected, atol=1e-5, rtol=1e-4)  # sums of float32
    rewards_B2 = implicit_rewards(
        sums_of(trainer.model, inputs, mean=False), sums_of(trainer.ref_model, inputs, mean=False), beta=beta
    )
    logged = trainer._metrics["train"]
    logged_rewards = [logged[f"rewards/{which}"][0] for which in ("chosen", "rejected")]
    assert rewards_B2.mean(0).tolist() == pytest.approx(logged_rewards, abs=1e-5)


@pytest.mark.usefixtures("_lean_trl")
def test_kto_against_trls_trainer(models: dict[str, Path], tmp_path: Path) -> None:
    """A whole update: its KL of mismatched responses, its loss, its gradient; and our learner's."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.trainer.kto_config import KTOConfig
    from trl.trainer.kto_trainer import KTOTrainer

    prompts, answers = [[3, 4], [8, 9, 10], [4]], [[5, 6, 7, 2], [11, 12, 2], [20, 2]]
    labels = [True, False, True]
    path = models["llama"]

    def load() -> Any:
        return AutoModelForCausalLM.from_pretrained(path, attention_dropout=0.0)

    rows = [
        {"prompt": "w3", "completion": "w4", "label": True},
        {"prompt": "w5", "completion": "w6", "label": False},
    ]
    trainer = KTOTrainer(
        model=load(),
        ref_model=load(),
        args=KTOConfig(
            output_dir=str(tmp_path),
            beta=0.3,
            desirable_weight=1.5,
            undesirable_weight=0.5,
            per_device_train_batch_size=2,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to=[],
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(path, pad_token="w0"),
    )
    perturb(trainer.model, 0.1)
    trainer.model.train()
    inputs = trainer.data_collator(
        [
            {"prompt_ids": p, "completion_ids": a, "KL_completion_ids": other, "label": label}
            for p, a, other, label in zip(prompts, answers, [*answers[1:], answers[0]], labels, strict=True)
        ]
    )
    theirs = trainer._compute_loss(trainer.model, inputs, False)
    theirs.backward()
    kl = trainer._metrics["train"]["kl"][0]

    algorithm = KTO(beta=0.3, desirable_weight=1.5, undesirable_weight=0.5)
    learner = make_learner(path, algorithm)
    rollouts = [
        rollout(i, p, a, float(good))
        for i, (p, a, good) in enumerate(zip(prompts, answers, labels, strict=True))
    ]
    reference = score_by(learner.reference, collate(rollouts), 1000)
    data = [
        replace(one, turns=(replace(one.turns[0], behavior_logprobs=tuple(ref[: len(answer)].tolist())),))
        for one, ref, answer in zip(rollouts, reference, answers, strict=True)
    ]
    perturb(learner.pair.lm, 0.1)
    seen: list[Tensor] = []
    learner.optimizer.register_step_pre_hook(
        lambda *_: seen.extend(parameter.grad.clone() for parameter in learner.pair.lm.parameters())
    )
    learner.algorithm = algorithm.model_copy(update={"max_grad_norm": None})
    metrics = learner.update(data)
    assert kl > 0.01
    assert metrics["rewards/reference_point"] == pytest.approx(0.3 * kl, rel=1e-4)
    assert metrics["loss/policy"] == pytest.approx(theirs.item(), rel=1e-4)
    for got, expected in zip(seen, trainer.model.parameters(), strict=True):
        torch.testing.assert_close(got, expected.grad, atol=1e-5, rtol=1e-3)
