"""The policy as its own teacher, beside dense float64 and trl; its copies, and resumes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.errors import LearnerError
from contracts.rollout import Rollout
from learner.algorithms.grpo import GRPO
from learner.algorithms.self_distillation import SelfDistillation
from learner.functional.distribution_kl import MEASURES, categorical_kl, forward_kl, jensen_shannon
from learner.learner import Learner
from tests.learner.tiny import SMOOTH, make_learner, random_rollouts

STILL: dict[str, Any] = {"max_grad_norm": None, "optimizer": SMOOTH}
DENSE = {
    "reverse": lambda p, q: (p * (p / q).log()).sum(-1),
    "forward": lambda p, q: (q * (q / p).log()).sum(-1),
    "jsd": lambda p, q: (
        (p * (2 * p / (p + q)).log()).sum(-1) + (q * (2 * q / (p + q)).log()).sum(-1)
    ) / 2,
}  # fmt: skip


def rollouts_with_contexts(num: int = 6) -> list[Rollout]:
    """Groups of two; every response but the third and the last has a teacher's context."""
    made = []
    for place, rollout in enumerate(random_rollouts(num)):
        prompt = rollout.turns[0].observation
        context = () if place in (2, num - 1) else (*prompt, 7 + place, 3)
        made.append(replace(rollout, group=place // 2, teacher_context=context))
    return made


def dense_loss(lm: Any, teacher: Any, rollouts: list[Rollout], name: str) -> Tensor:
    """The mean over responses of the mean divergence of a token, by whole logits in float64."""
    losses = []
    for rollout in rollouts:
        drawn = [bool(mark) for mark in rollout.loss_mask]
        if not rollout.teacher_context:
            losses.append(torch.zeros((), dtype=torch.float64))
            continue
        behind = rollout.tokens[len(rollout.turns[0].observation) :]
        shift = len(rollout.teacher_context) - len(rollout.turns[0].observation)
        student_LV = lm(input_ids=torch.tensor([rollout.tokens])).logits[0].double()
        with torch.no_grad():
            read = torch.tensor([[*rollout.teacher_context, *behind]])
            teacher_LV = teacher(input_ids=read).logits[0].double()
        places = [place - 1 for place, drew in enumerate(drawn) if drew]
        p = student_LV[places].softmax(-1)
        q = teacher_LV[[place + shift for place in places]].softmax(-1)
        losses.append(DENSE[name](p, q).mean())
    return torch.stack(losses).mean()


def stepped(learner: Learner, rollouts: list[Rollout]) -> tuple[dict[str, float], list[Tensor]]:
    metrics = learner.update(rollouts)
    return metrics, [parameter.detach().clone() for parameter in learner.pair.lm.parameters()]


@pytest.mark.parametrize("name", ["reverse", "forward", "jsd"])
@pytest.mark.parametrize("teacher", ["live", "average", "first"])
def test_loss_and_gradient_are_those_of_the_dense_divergence(
    models: dict[str, Path], name: Any, teacher: Any
) -> None:
    rollouts = rollouts_with_contexts()
    algorithm = SelfDistillation(teacher=teacher, divergence=name, learning_rate=1e-3, **STILL)
    learner = make_learner(models["llama"], algorithm)
    lm = make_learner(models["llama"], algorithm).pair.lm
    expected = dense_loss(lm, lm, rollouts, name)
    expected.backward()
    gradients = {key: one.grad.clone() for key, one in lm.named_parameters() if one.grad is not None}
    seen: dict[str, Tensor] = {}
    learner.optimizer.register_step_pre_hook(
        lambda *_: seen.update(
            {key: one.grad.clone() for key, one in learner.pair.lm.named_parameters() if one.grad is not None}
        )
    )
    metrics = learner.update(rollouts)
    assert expected.item() > 0.01
    assert metrics["loss/distillation"] == pytest.approx(expected.item(), rel=1e-4)
    assert seen.keys() == gradients.keys()
    for key, gradient in gradients.items():
        torch.testing.assert_close(seen[key], gradient, atol=2e-6, rtol=2e-3)


@pytest.mark.parametrize("name", ["reverse", "forward", "jsd"])
def test_a_live_teacher_that_reads_the_same_prompt_teaches_nothing(
    models: dict[str, Path], name: Any
) -> None:
    rollouts = [replace(one, teacher_context=one.turns[0].observation, group=0) for one in random_rollouts(6)]
    algorithm = SelfDistillation(teacher="live", divergence=name, learning_rate=1e-2, **STILL)
    learner = make_learner(models["llama"], algorithm)
    metrics = learner.update(rollouts)
    assert abs(metrics["loss/distillation"]) < 1e-7
    assert metrics["gradient_norm/policy"] < 1e-6


def test_rollouts_without_a_context_have_no_distillation_term(models: dict[str, Path]) -> None:
    algorithm = SelfDistillation(learning_rate=1e-2, **STILL)
    learner = make_learner(models["llama"], algorithm)
    metrics = learner.update([replace(one, group=0) for one in random_rollouts(4)])
    assert metrics["loss/distillation"] == 0.0 and metrics["gradient_norm/policy"] == 0.0


def test_the_weight_mixes_the_two_losses(models: dict[str, Path]) -> None:
    """The gradients of both ends add up to that of a mixture, by what one step of SGD-like Adam moves."""
    rollouts, results = rollouts_with_contexts(), {}
    for key, algorithm in {
        "distilled": SelfDistillation(**STILL),
        "grpo": GRPO(kl=SelfDistillation().kl, **STILL),
        "mixed": SelfDistillation(weight=0.25, **STILL),
    }.items():
        learner, seen = make_learner(models["llama"], algorithm), list[Tensor]()
        learner.optimizer.register_step_pre_hook(
            lambda *_, seen=seen, learner=learner: seen.extend(
                one.grad.clone() for one in learner.pair.lm.parameters() if one.grad is not None
            )
        )
        metrics = learner.update(rollouts)
        results[key] = metrics["loss/policy"], torch.cat([one.flatten() for one in seen])
    loss = 0.25 * results["distilled"][0] + 0.75 * results["grpo"][0]
    assert results["mixed"][0] == pytest.approx(loss, rel=1e-4, abs=1e-6)
    expected = 0.25 * results["distilled"][1] + 0.75 * results["grpo"][1]
    torch.testing.assert_close(results["mixed"][1], expected, atol=1e-6, rtol=1e-3)


def test_micro_batches_change_nothing(models: dict[str, Path]) -> None:
    results = []
    splits: list[dict[str, Any]] = [{}, {"token_budget": 1, "logits_budget": 100}, {"token_budget": 60}]
    for settings in splits:
        algorithm = SelfDistillation(
            weight=0.5, teacher="live", divergence="jsd", learning_rate=1e-3, **STILL
        )
        results.append(
            stepped(make_learner(models["llama"], algorithm, **settings), rollouts_with_contexts())
        )
    for metrics, parameters in results[1:]:
        assert metrics["loss/distillation"] == pytest.approx(results[0][0]["loss/distillation"], rel=1e-5)
        for one, other in zip(parameters, results[0][1], strict=True):
            torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-3)


def test_the_average_follows_by_its_rate_and_the_first_stays(models: dict[str, Path]) -> None:
    algorithm = SelfDistillation(learning_rate=1e-2, teacher_rate=0.25, **STILL)
    learner = make_learner(models["llama"], algorithm)
    assert learner.average is not None
    before = [one.double().clone() for one in learner.average.lm.parameters()]
    for _ in range(2):
        learner.update(rollouts_with_contexts())
        before = [
            0.75 * old + 0.25 * new.detach().double()
            for old, new in zip(before, learner.pair.lm.parameters(), strict=True)
        ]
    for got, expected in zip(learner.average.lm.parameters(), before, strict=True):
        torch.testing.assert_close(got.double(), expected, atol=1e-6, rtol=1e-5)


def test_a_resumed_learner_goes_on_to_the_bit(models: dict[str, Path], tmp_path: Path) -> None:
    make = lambda: make_learner(models["llama"], SelfDistillation(learning_rate=1e-2, weight=0.5))  # noqa: E731
    learner, rollouts = make(), rollouts_with_contexts()
    for _ in range(2):
        learner.update(rollouts)
    learner.save(str(tmp_path))
    again = make()
    again.load(str(tmp_path))
    assert learner.average is not None and again.average is not None
    results = [stepped(one, rollouts) for one in (learner, again)]
    names = [name for name in results[0][0] if not name.startswith(("time/", "mfu"))]
    assert [results[0][0][name] for name in names] == [results[1][0][name] for name in names]
    for one, other in zip(results[0][1], results[1][1], strict=True):
        assert torch.equal(one, other)
    for one, other in zip(learner.average.parameters(), again.average.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(next(learner.average.lm.parameters()), next(learner.pair.lm.parameters()))


def test_a_checkpoint_without_the_average_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    make_learner(models["llama"], SelfDistillation(teacher="live")).save(str(tmp_path))
    with pytest.raises(LearnerError, match="it has no average model"):
        make_learner(models["llama"], SelfDistillation()).load(str(tmp_path))


@pytest.mark.parametrize(("name", "alpha"), [("reverse", 1.0), ("forward", 0.0), ("jsd", 0.5)])
def test_the_divergence_is_trls(name: str, alpha: float) -> None:
    loss_utils = pytest.importorskip("trl.experimental.sdpo.loss_utils")
    torch.manual_seed(3)
    student_NV = torch.randn(5, 11, dtype=torch.float64).mul(3).log_softmax(-1).requires_grad_()
    teacher_NV = torch.randn(5, 11, dtype=torch.float64).mul(3).log_softmax(-1)
    expected_N = loss_utils.compute_divergence(student_NV, teacher_NV, alpha)
    got_N = MEASURES[name](student_NV, teacher_NV)
    torch.testing.assert_close(got_N, expected_N)
    gradients = [torch.autograd.grad(one.sum(), student_NV)[0] for one in (got_N, expected_N)]
    torch.testing.assert_close(*gradients)


def test_divergences_by_hand() -> None:
    """π = (1/2, 1/2), ρ = (1/4, 3/4)."""
    pair = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    assert float(categorical_kl(*pair)) == pytest.approx(0.143841, abs=1e-6)
    assert float(forward_kl(*pair)) == pytest.approx(0.130812, abs=1e-6)
    assert float(jensen_shannon(*pair)) == pytest.approx(0.033822, abs=1e-6)
