"""The trainer of a training service: its losses by formulas in float64, its sums, its tenants."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from contracts.errors import InputError
from learner.training_service.data import Datum
from learner.training_service.losses import Limits, check
from learner.training_service.spec import AdamParams, ModelSpec
from learner.training_service.trainer import Trainer
from tests.models import make_tiny_model

LIMITS = Limits(vocab_size=103, window=128)
ADAPTER = ModelSpec(rank=4, seed=3)


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / request.param
    return make_tiny_model(folder, architecture=request.param, sharpness=3.0)


def data(loss: str, seed: int = 0, width: int | None = None) -> list[Datum]:
    """Three texts of 4 to 6 tokens, with random inputs of a loss."""
    random = np.random.default_rng(seed)
    made = []
    for length in (4, 6, 5):
        shape = (length,) if width is None else (length, width)
        inputs = {"target_tokens": random.integers(3, 103, shape)}
        if loss == "cross_entropy":
            inputs["weights"] = random.normal(size=shape).astype(np.float32)
        else:
            inputs["logprobs"] = (-4.6 + random.normal(size=shape)).astype(np.float32)
            inputs["advantages"] = random.normal(size=shape).astype(np.float32)
        made.append(Datum(random.integers(3, 103, length), inputs))
    return made


def run(trainer: Trainer, name: str, loss: str, batch: list[Datum], **options: float) -> Any:
    config = check(loss, options, batch, LIMITS)
    return trainer.forward_backward(name, batch, loss, config, backward=True)


FORMULAS = {
    "cross_entropy": lambda lp, x: -(lp * x["weights"]).sum(),
    "importance_sampling": lambda lp, x: -((lp - x["logprobs"]).exp() * x["advantages"]).sum(),
    "ppo": lambda lp, x: (
        -torch.minimum(
            (lp - x["logprobs"]).exp() * x["advantages"],
            (lp - x["logprobs"]).exp().clamp(0.7, 1.1) * x["advantages"],
        ).sum()
    ),
    "cispo": lambda lp, x: (
        -((lp - x["logprobs"]).exp().clamp(0.7, 1.1).detach() * x["advantages"] * lp).sum()
    ),
    "dro": lambda lp, x: -(lp * x["advantages"] - 0.1 * (lp - x["logprobs"]) ** 2).sum(),
}
OPTIONS: Mapping[str, Mapping[str, float]] = {
    "ppo": {"clip_low_threshold": 0.7, "clip_high_threshold": 1.1},
    "cispo": {"clip_low_threshold": 0.7, "clip_high_threshold": 1.1},
    "dro": {"beta": 0.2},
}


@pytest.mark.parametrize("loss", FORMULAS)
def test_losses_and_gradients_are_those_of_formulas_in_float64(model: Path, loss: str) -> None:
    trainer, batch = Trainer(str(model), trains_whole=True), data(loss)
    trainer.create("m", ModelSpec(rank=None))
    logprobs, total = run(trainer, "m", loss, batch, **OPTIONS.get(loss, {}))
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64).eval()
    expected = torch.zeros((), dtype=torch.float64)
    for datum, got in zip(batch, logprobs, strict=True):
        logits_LV = reference(torch.from_numpy(datum.tokens)[None]).logits[0]
        targets_L1 = torch.from_numpy(datum.targets)[:, None]
        logprobs_L = logits_LV.log_softmax(-1).gather(-1, targets_L1)[:, 0]
        np.testing.assert_allclose(got, logprobs_L.detach().numpy(), atol=1e-5)
        inputs = {key: torch.from_numpy(values).double() for key, values in datum.inputs.items()}
        expected = expected + FORMULAS[loss](logprobs_L, inputs)
    assert total == pytest.approx(float(expected), rel=1e-5)
    expected.backward()
    theirs = {name: p.grad for name, p in reference.named_parameters()}
    for name, parameter in trainer._holding.parameters("m").items():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.double(), theirs[name], rtol=1e-3, atol=1e-5)


def test_several_targets_at_each_place_are_each_scored(model: Path) -> None:
    trainer, batch = Trainer(str(model), trains_whole=True), data("cross_entropy", width=3)
    trainer.create("m", ModelSpec(rank=None))
    rows, _ = run(trainer, "m", "cross_entropy", batch)
    for column in range(3):
        single = [
            Datum(datum.tokens, {key: values[:, column] for key, values in datum.inputs.items()})
            for datum in batch
        ]
        for row, alone in zip(rows, run(trainer, "m", "cross_entropy", single)[0], strict=True):
            np.testing.assert_allclose(row[:, column], alone, atol=1e-6)


def test_micro_batches_change_nothing_but_rounding(model: Path) -> None:
    norms = []
    for budget in (6, 1000):
        trainer = Trainer(str(model), trains_whole=False)
        trainer._budget = budget
        trainer.create("m", ADAPTER)
        run(trainer, "m", "ppo", data("ppo"))
        norms.append(trainer.optim_step("m", AdamParams()).norm)
    assert norms[0] == pytest.approx(norms[1], rel=1e-4) and norms[0] > 0


def step(trainer: Trainer, name: str, number: int) -> None:
    run(trainer, name, "cross_entropy", data("cross_entropy", number))
    trainer.optim_step(name, AdamParams(1e-2, weight_decay=0.1, grad_clip_norm=0.5))


def weights(trainer: Trainer, name: str) -> dict[str, Tensor]:
    return {key: p.detach().clone() for key, p in trainer._holding.parameters(name).items()}


def trained_alone(model: Path, spec: ModelSpec) -> dict[str, Tensor]:
    trainer = Trainer(str(model), trains_whole=spec.rank is None)
    trainer.create("m", spec)
    for number in range(4):
        step(trainer, "m", number)
    return weights(trainer, "m")


@pytest.mark.parametrize("whole", [False, True])
def test_models_in_turn_equal_each_alone_and_resume_to_the_bit(
    model: Path, tmp_path: Path, whole: bool
) -> None:
    specs = {name: ModelSpec(None if whole else rank, seed=rank) for name, rank in (("a", 2), ("b", 8))}
    trainer, later = (Trainer(str(model), trains_whole=whole) for _ in range(2))
    for name, spec in specs.items():
        trainer.create(name, spec)
        later.create(name, spec)
    for number in range(2):
        for name in specs:
            step(trainer, name, number)
    for name, spec in specs.items():
        (tmp_path / name).mkdir()
        trainer.save(name, tmp_path / name)
        later.load(name, tmp_path / name, with_optimizer=True)
        alone = trained_alone(model, spec)
        for trained in (later, trainer):
            for number in (2, 3):
                step(trained, name, number)
            got = weights(trained, name)
            assert all(got[key].equal(tensor) for key, tensor in alone.items())


def test_only_the_chosen_layers_have_an_adapter(model: Path) -> None:
    trainer = Trainer(str(model), trains_whole=False)
    trainer.create("attention", ModelSpec(4, train_mlp=False))
    trainer.create("rest", ModelSpec(4, train_attn=False))
    attention, rest = (set(trainer._holding.parameters(name)) for name in ("attention", "rest"))
    assert attention and rest and not attention & rest
    assert all("attn" in key for key in attention) and all("mlp" in key for key in rest)
    with pytest.raises(InputError, match="no layer would train"):
        trainer.create("none", ModelSpec(4, train_mlp=False, train_attn=False))


def test_a_state_of_another_rank_is_refused(model: Path, tmp_path: Path) -> None:
    trainer = Trainer(str(model), trains_whole=False)
    trainer.create("small", ModelSpec(2))
    trainer.create("large", ModelSpec(4))
    trainer.save("small", tmp_path)
    with pytest.raises(InputError, match="another rank or model"):
        trainer.load("large", tmp_path, with_optimizer=True)


@pytest.mark.parametrize(
    ("loss", "options", "change", "message"),
    [
        ("gspo", {}, {}, "'gspo': its formula is not published; .* forward_backward_custom"),
        ("pp", {}, {}, "there is no such loss here"),
        ("ppo", {"clip": 1.0}, {}, "no option 'clip'"),
        ("ppo", {"clip_low_threshold": "x"}, {}, "expected a number"),
        ("ppo", {}, {"advantages": None}, "lack advantages"),
        ("ppo", {}, {"weights": np.zeros(4)}, "is not for ppo"),
        ("ppo", {}, {"advantages": np.zeros(9)}, "expected that of the targets"),
        ("ppo", {}, {"advantages": np.array([0, np.nan, 0, 0])}, "is not finite"),
        ("ppo", {}, {"target_tokens": np.array([1, 2, 3, 103])}, "the model has 0 to 102"),
    ],
)
def test_calls_that_do_not_fit_are_refused(
    loss: str, options: dict[str, object], change: dict[str, Any], message: str
) -> None:
    first = data("ppo")[0]
    inputs = {key: values for key, values in {**first.inputs, **change}.items() if values is not None}
    with pytest.raises(InputError, match=message):
        check(loss, options, [Datum(first.tokens, inputs)], LIMITS)
