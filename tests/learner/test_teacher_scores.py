"""Distillation from a remote teacher's scores: equal to the loaded teacher's, and by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from contracts.rollout import Rollout, TeacherScores
from learner.algorithms.distillation import Distillation, RemoteTeacher
from learner.batches.batching import collate
from learner.learner import Learner
from learner.passes.teacher_scores import BatchTeacherScores
from tests.learner.tiny import SMOOTH, VOCAB, make_learner, make_model, random_rollouts, rollout

STILL: dict[str, Any] = {"max_grad_norm": None, "optimizer": SMOOTH, "learning_rate": 1e-3}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("teacher"), "llama", hidden_size=24, initializer_range=0.2)


def remote(top_k: int, divergence: Literal["reverse", "forward"] = "reverse") -> Distillation:
    server = RemoteTeacher(url="http://127.0.0.1:9/v1", top_k=top_k)
    return Distillation(teacher=server, divergence=divergence, **STILL)


@torch.no_grad()
def scored_by(lm: Any, rollouts: list[Rollout], top_k: int) -> list[Rollout]:
    """The rollouts with a model's scores of their tokens, as a server answers."""
    made = []
    for one in rollouts:
        logprobs_LV = lm(input_ids=torch.tensor([one.tokens])).logits[0].log_softmax(-1)
        places = [place for place, drew in enumerate(one.loss_mask) if drew]
        rows_NV = logprobs_LV[[place - 1 for place in places]]
        drawn = tuple(float(row[one.tokens[place]]) for row, place in zip(rows_NV, places, strict=True))
        values, tokens = rows_NV.topk(top_k) if top_k else (torch.empty(0, 0), torch.empty(0, 0))
        top = tuple(map(tuple, tokens.tolist())), tuple(map(tuple, values.tolist()))
        made.append(replace(one, teacher=TeacherScores(drawn, (True,) * len(drawn), *top)))
    return made


def gradients(learner: Learner, rollouts: list[Rollout]) -> tuple[float, Tensor]:
    seen: list[Tensor] = []
    learner.optimizer.register_step_pre_hook(
        lambda *_: seen.extend(one.grad.flatten().clone() for one in learner.pair.lm.parameters())
    )
    return learner.update(rollouts)["loss/policy"], torch.cat(seen)


@pytest.mark.parametrize("which", ["reverse", "forward"])
def test_scores_of_the_whole_vocabulary_are_the_loaded_teachers(
    models: dict[str, Path], teacher: Path, which: Literal["reverse", "forward"]
) -> None:
    local = make_learner(models["llama"], Distillation(divergence=which, **STILL), reference=teacher)
    assert local.reference is not None
    rollouts = random_rollouts(5)
    remotely = make_learner(models["llama"], remote(VOCAB, which))
    assert remotely.reference is None
    (loss, gradient), (expected, by_local) = (
        gradients(remotely, scored_by(local.reference.lm, rollouts, VOCAB)), gradients(local, rollouts)
    )  # fmt: skip
    assert loss == pytest.approx(expected, rel=1e-4) and loss > 0.1
    torch.testing.assert_close(gradient, by_local, atol=2e-6, rtol=5e-3)


def test_fewer_scored_tokens_are_a_smaller_divergence(models: dict[str, Path], teacher: Path) -> None:
    local = make_learner(models["llama"], Distillation(**STILL), reference=teacher)
    assert local.reference is not None
    rollouts = random_rollouts(5)
    losses = [
        make_learner(models["llama"], remote(count)).update(scored_by(local.reference.lm, rollouts, count))[
            "loss/policy"
        ]
        for count in (1, 4, 16, VOCAB)
    ]
    assert losses == sorted(losses) and losses[0] < losses[-1]


def test_drawn_tokens_alone_have_the_gradient_of_the_score_function(
    models: dict[str, Path], teacher: Path
) -> None:
    """-(1/n) Σ (log p - log π) ∇ log π, by autograd over whole logits."""
    local = make_learner(models["llama"], Distillation(**STILL), reference=teacher)
    assert local.reference is not None
    rollouts = scored_by(local.reference.lm, random_rollouts(5), 0)
    lm, terms = local.pair.lm, []
    for one in rollouts:
        assert one.teacher is not None
        places = [place for place, drew in enumerate(one.loss_mask) if drew]
        logprobs_LV = lm(input_ids=torch.tensor([one.tokens])).logits[0].log_softmax(-1)
        own_N = torch.stack([logprobs_LV[place - 1, one.tokens[place]] for place in places])
        terms.append(-(torch.tensor(one.teacher.logprobs) - own_N.detach()) * own_N)
    torch.cat(terms).mean().backward()
    expected = torch.cat([one.grad.flatten() for one in lm.parameters()])
    loss, gradient = gradients(make_learner(models["llama"], remote(0)), rollouts)
    torch.testing.assert_close(gradient, expected, atol=2e-6, rtol=2e-3)
    assert loss == pytest.approx(float(torch.cat([-one for one in _gains(lm, rollouts)]).mean()), rel=1e-3)


@torch.no_grad()
def _gains(lm: Any, rollouts: list[Rollout]) -> list[Tensor]:
    gains = []
    for one in rollouts:
        assert one.teacher is not None
        logprobs_LV = lm(input_ids=torch.tensor([one.tokens])).logits[0].log_softmax(-1)
        student = [
            logprobs_LV[place - 1, one.tokens[place]] for place, drew in enumerate(one.loss_mask) if drew
        ]
        gains.append(torch.tensor(one.teacher.logprobs) - torch.stack(student))
    return gains


def test_tokens_of_a_span_earn_what_the_span_does() -> None:
    """Spans (a), (b c), and d after the last end: -1 - (-2) = 1; -3 - (-1 - 4) = 2; 0."""
    one = rollout(0, (3,), (4, 5, 6, 7))
    scores = TeacherScores((-1.0, 0.0, -3.0, 0.0), (True, False, True, False))
    batch = collate([replace(one, teacher=scores), rollout(1, (3,), (4, 5))])
    laid_out = BatchTeacherScores.of(batch)
    assert laid_out is not None and not laid_out.has_top
    old_BT = torch.tensor([[-2.0, -1.0, -4.0, -9.0], [-1.0, -1.0, 0.0, 0.0]])
    assert laid_out.gains(old_BT).tolist() == [[1.0, 2.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("top_k", [0, 4])
def test_micro_batches_and_unscored_rollouts(models: dict[str, Path], teacher: Path, top_k: int) -> None:
    lm = make_learner(teacher, Distillation(**STILL), reference=teacher).pair.lm
    rollouts = scored_by(lm, random_rollouts(6), top_k)
    rollouts[1] = replace(rollouts[1], teacher=None)
    splits: list[dict[str, Any]] = [{}, {"token_budget": 1, "logits_budget": 100}]
    results = [gradients(make_learner(models["llama"], remote(top_k), **split), rollouts) for split in splits]
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1], atol=2e-6, rtol=2e-3)


def test_a_divergence_is_not_weighed_by_the_age_of_its_texts(models: dict[str, Path], teacher: Path) -> None:
    """Whole softmaxes are compared, whoever drew the tokens: only an estimate by drawn tokens is weighed."""
    local = make_learner(models["llama"], Distillation(**STILL), reference=teacher)
    assert local.reference is not None
    remotely, rollouts = make_learner(models["llama"], remote(VOCAB)), random_rollouts(5)
    local.version = remotely.version = 1  # the texts are of version 0
    (loss, gradient), (expected, by_local) = (
        gradients(remotely, scored_by(local.reference.lm, rollouts, VOCAB)), gradients(local, rollouts)
    )  # fmt: skip
    assert loss == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(gradient, by_local, atol=2e-6, rtol=5e-3)
