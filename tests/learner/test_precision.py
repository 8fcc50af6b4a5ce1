"""Loss scale of float16, on a CPU: small gradients survive, a step that overflows changes nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from contracts.errors import InputError, LearnerError
from contracts.settings import build
from learner.algorithms.classes import algorithm_class
from learner.distributed.device import pick_device
from learner.optimization.precision import Precision
from learner.settings import LearnerSettings
from learner.updates.minibatches import MinibatchUpdate
from services.training.preflight.checks.process_checks import check_float16
from tests.learner.contexts import make_context, random_credit
from tests.learner.tiny import make_pair, random_rollouts, snapshot

CPU = torch.device("cpu")


def precision(autocast: str) -> Precision:
    return Precision(LearnerSettings(autocast=autocast), CPU)  # type: ignore[arg-type]


def norm_of(weight: nn.Parameter) -> float:
    assert weight.grad is not None
    return float(weight.grad.norm())


def stepped(made: Precision, slope: float, weight: nn.Parameter) -> float | None:
    """Make a step of plain descent with a gradient that passes through float16."""
    weight.grad = None
    optimizer = torch.optim.SGD([weight], lr=1.0)
    passed = weight.half().float() if made.is_scaled else weight  # the slope goes through float16
    made.backward(passed.sum() * slope)
    return made.step(optimizer, lambda: norm_of(weight))


@pytest.mark.parametrize("slope", [1e-9, 1e-3, 0.5])
def test_a_gradient_below_float16s_least_number_survives(slope: float) -> None:
    """1e-9 is 0 in float16, whose least number is 6e-8; times 65,536 it is 7e-5."""
    assert float(torch.tensor(1e-9).half()) == 0.0
    weight = nn.Parameter(torch.ones(1))
    assert stepped(precision("float16"), slope, weight) == pytest.approx(slope, rel=1e-3)


def test_a_step_that_overflows_changes_nothing_and_halves_the_scale() -> None:
    made, weight = precision("float16"), nn.Parameter(torch.ones(1))
    scale = made.metrics(0)["update/loss_scale"]
    assert stepped(made, 10.0, weight) is None  # 10 times 65,536 is infinite in float16
    assert weight.item() == 1.0
    assert made.metrics(1) == {"update/loss_scale": scale / 2, "update/repeated_minibatches": 1.0}
    while (norm := stepped(made, 10.0, weight)) is None:
        pass
    assert norm == pytest.approx(10.0, rel=1e-3)
    assert made.metrics(0)["update/loss_scale"] == 4096.0  # 10 times 8,192 is above float16's 65,504


def test_a_gradient_that_no_scale_makes_finite_is_an_error() -> None:
    made, weight = precision("float16"), nn.Parameter(torch.ones(1))

    def clip() -> float:
        raise LearnerError("the gradient is not finite (norm nan)")

    optimizer = torch.optim.SGD([weight], lr=1.0)
    with pytest.raises(LearnerError, match="norm nan"):
        for _ in range(40):
            made.backward(weight.sum() * torch.nan)
            made.step(optimizer, clip)
    assert weight.item() == 1.0


def test_others_have_no_scale() -> None:
    for name in ("none", "bfloat16", "auto"):
        made, weight = precision(name), nn.Parameter(torch.ones(1))
        assert (made.rounds, made.is_scaled, made.metrics(3)) == (name == "bfloat16", False, {})
        assert stepped(made, 0.25, weight) == 0.25
        assert weight.item() == 0.75


def test_a_saved_scale_goes_on() -> None:
    made, weight = precision("float16"), nn.Parameter(torch.ones(1))
    stepped(made, 10.0, weight)
    again = precision("float16")
    again.restore(made.state())
    assert again.metrics(0) == made.metrics(0)
    again.restore({})  # of a checkpoint without one
    precision("none").restore(made.state())
    assert again.state() == made.state()


@pytest.mark.parametrize("name", ["ppo", "grpo", "rloo"])
def test_an_update_in_float16_is_that_in_float32_to_its_rounding(models: dict[str, Path], name: str) -> None:
    changed = {}
    for autocast in ("none", "float16"):
        pair = make_pair(models["llama"])
        options = {"learning_rate": 1e-3, "optimizer": {"name": "rmsprop", "eps": 1.0}}
        algorithm = build(algorithm_class(name), options, where="")
        before = snapshot(pair)
        context = make_context(pair, random_rollouts(4), algorithm, autocast=autocast)
        metrics = MinibatchUpdate(context).run(random_credit(context))
        changed[autocast] = {key: value - before[key] for key, value in snapshot(pair).items()}
        assert ("update/loss_scale" in metrics) == (autocast == "float16")
        if name == "rloo" and autocast == "float16":
            assert metrics["update/repeated_minibatches"] > 0  # with the first scale its gradient overflows
    flat = {
        key: torch.cat([change.flatten() for change in changes.values()]) for key, changes in changed.items()
    }
    assert float(flat["none"].norm()) > 0
    assert float((flat["float16"] - flat["none"]).norm()) < 0.05 * float(flat["none"].norm())


@pytest.mark.parametrize(
    ("name", "options", "on_gpu", "message"),
    [
        (
            "ppo",
            {},
            False,
            "there is no GPU, and float16 makes no CPU faster; expected learner.autocast=bfloat16",
        ),
        ("ppo", {"num_processes": 2}, True, "learner.num_processes=2; expected learner.num_processes=1"),
        ("trpo", {}, True, "algorithm=trpo has no minibatches; expected learner.autocast=bfloat16 or none"),
    ],
)
def test_where_nothing_scales_float16_is_refused(
    name: str, options: dict[str, Any], on_gpu: bool, message: str
) -> None:
    algorithm = algorithm_class(name)()
    with pytest.raises(InputError, match=message):
        check_float16(LearnerSettings(autocast="float16", **options), algorithm, name, on_gpu=on_gpu)
    check_float16(LearnerSettings(**options), algorithm, name, on_gpu=on_gpu)
    check_float16(LearnerSettings(autocast="float16"), algorithm_class("ppo")(), "ppo", on_gpu=True)


def test_a_learner_on_a_cpu_refuses_float16() -> None:
    with pytest.raises(InputError, match=r"float16 needs a GPU, but the learner is on a CPU; expected"):
        pick_device(LearnerSettings(autocast="float16", device="cpu"))
