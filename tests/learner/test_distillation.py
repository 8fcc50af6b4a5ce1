"""On-policy distillation: a student reaches a tiny teacher's distribution, and unfit teachers are refused."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor

from contracts.errors import InputError
from contracts.rollout import Rollout
from learner.algorithms.distillation import Distillation
from learner.algorithms.grpo import GRPO
from learner.functional.distribution_kl import categorical_kl
from learner.learner import Learner
from learner.optimization.kl_control import KLSettings
from tests.learner.seq2seq import Name
from tests.learner.tiny import SMOOTH, make_learner, make_model, make_pair, perturb, random_rollouts, rollout

LENGTH, STEPS = 2, 120
PROMPTS = [(3, 4), (5,), (6, 7, 8), (9, 10)]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wider model of the students' kind, with weights of its own; three rows of its head are padding."""
    return make_model(
        tmp_path_factory.mktemp("teacher"), "llama", hidden_size=24, vocab_size=40, initializer_range=0.2
    )


@pytest.fixture(scope="module")
def within_reach(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The student with other weights: a student of 16 can't become the wider one."""
    folder = make_model(tmp_path_factory.mktemp("reachable"), "llama")
    pair = make_pair(folder)
    perturb(pair.lm, 0.05)
    pair.lm.save_pretrained(folder)
    return folder


@torch.no_grad()
def logits_of(lm: torch.nn.Module, tokens_BL: Tensor) -> Tensor:
    return lm(input_ids=tokens_BL).logits


@torch.no_grad()
def written(learner: Learner, num: int) -> list[Rollout]:
    """Texts that the student draws itself, whole groups of one prompt side by side."""
    made = []
    for i, prompt in enumerate(PROMPTS):
        tokens_BL = torch.tensor([prompt] * num)
        logprobs = []
        for _ in range(LENGTH):
            logprobs_BV = logits_of(learner.pair.lm, tokens_BL)[:, -1].log_softmax(-1)
            drawn_B1 = logprobs_BV.exp().multinomial(1)
            logprobs.append(logprobs_BV.gather(-1, drawn_B1))
            tokens_BL = torch.cat([tokens_BL, drawn_B1], dim=-1)
        values = torch.cat(logprobs, dim=-1).tolist()
        for k, row in enumerate(tokens_BL.tolist()):
            one = rollout(
                i * num + k, prompt, row[len(prompt) :], logprobs=values[k], version=learner.version
            )
            made.append(replace(one, group=i))
    return made


@torch.no_grad()
def divergence(learner: Learner, rollouts: list[Rollout], which: Literal["reverse", "forward"]) -> float:
    """The mean KL of a token, by whole logits of both models: not by the learner's own code."""
    assert learner.reference is not None
    divergences = []
    for one in rollouts:
        tokens_1L = torch.tensor([one.tokens])
        student_NV, teacher_NV = (
            logits_of(lm, tokens_1L)[0, len(one.turns[0].observation) - 1 : -1, :37].log_softmax(-1)
            for lm in (learner.pair.lm, learner.reference.lm)
        )
        pair = (student_NV, teacher_NV) if which == "reverse" else (teacher_NV, student_NV)
        divergences.append(categorical_kl(*pair))
    return float(torch.cat(divergences).mean())


@pytest.mark.long
@pytest.mark.parametrize("which", ["reverse", "forward"])
def test_the_kl_to_a_tiny_teacher_falls_to_under_a_hundredth_a_token(
    models: dict[str, Path], within_reach: Path, which: Literal["reverse", "forward"]
) -> None:
    torch.manual_seed(0)
    algorithm = Distillation(learning_rate=1e-2, divergence=which)
    settings = {"lr_schedule": "cosine", "lr_end": 0.02}
    learner = make_learner(models["llama"], algorithm, reference=within_reach, iterations=STEPS, **settings)
    rollouts = written(learner, 4)
    before = divergence(learner, rollouts, which)
    assert learner.update(rollouts)["loss/policy"] == pytest.approx(before, rel=1e-4)
    assert before > 0.2
    for _ in range(STEPS - 1):
        learner.update(written(learner, 32))
    assert divergence(learner, written(learner, 64), which) < 0.01


def test_the_gradient_is_that_of_the_whole_softmaxes_however_micro_batches_are_cut(
    models: dict[str, Path], teacher: Path
) -> None:
    updates = []
    for settings in ({}, {"token_budget": 1, "logits_budget": 100}):
        algorithm = Distillation(learning_rate=1e-3, max_grad_norm=None, optimizer=SMOOTH)
        learner = make_learner(models["llama"], algorithm, reference=teacher, **settings)
        rollouts = random_rollouts(6)
        loss = learner.update(rollouts)["loss/policy"]
        updates.append((loss, [parameter.detach().clone() for parameter in learner.pair.lm.parameters()]))
    assert updates[0][0] == pytest.approx(updates[1][0], rel=1e-5)
    for one, other in zip(updates[0][1], updates[1][1], strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-3)


def test_the_teacher_does_not_move_and_is_not_saved(
    models: dict[str, Path], teacher: Path, tmp_path: Path
) -> None:
    """A resumed learner loads it from its own path, and goes on to the bit."""
    first = make_learner(models["llama"], Distillation(learning_rate=1e-3), reference=teacher)
    assert first.reference is not None
    before = [parameter.clone() for parameter in first.reference.lm.parameters()]
    rollouts = random_rollouts(6)
    first.update(rollouts)
    assert all(torch.equal(*pair) for pair in zip(before, first.reference.lm.parameters(), strict=True))
    first.save(str(tmp_path))
    again = make_learner(models["llama"], Distillation(learning_rate=1e-3), reference=teacher)
    again.load(str(tmp_path))
    metrics, resumed = (learner.update(rollouts) for learner in (first, again))
    names = [name for name in metrics if not name.startswith("time/")]
    assert [metrics[name] for name in names] == [resumed[name] for name in names]


def test_any_online_algorithm_may_stay_near_a_teacher(models: dict[str, Path], teacher: Path) -> None:
    kl = KLSettings(placement="loss", estimator="full", coefficient=1.0)
    rollouts = [replace(one, group=0) for one in random_rollouts(4)]
    near, far = (
        make_learner(models["llama"], GRPO(kl=kl), reference=path).update(rollouts)
        for path in (None, teacher)
    )
    assert near["loss/kl"] == pytest.approx(0, abs=1e-6) and near["kl/mean"] == pytest.approx(0, abs=1e-6)
    assert far["loss/kl"] > 0.1


def test_a_teacher_of_another_kind_is_refused(models: dict[str, Path], seq2seq: dict[Name, Path]) -> None:
    with pytest.raises(InputError, match=r"got an encoder-decoder; expected a causal model, as model.path="):
        make_learner(models["llama"], Distillation(), reference=seq2seq["t5"])
