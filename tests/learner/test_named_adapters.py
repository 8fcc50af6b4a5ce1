"""Adapters by name over one frozen model: two trained together equal two trained alone, bit for bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from contracts.errors import InputError
from learner.models.adapter_settings import AdapterSettings
from learner.models.named_adapters import NamedAdapters
from tests.learner.adapted import adapter

TOKENS = {"keys": torch.tensor([[3, 5, 7, 9]]), "a.b-c": torch.tensor([[4, 4, 8, 20]])}
SETTINGS = {"keys": adapter(), "a.b-c": adapter(r=2, target_modules=("q_proj", "v_proj"))}
SEEDS = {"keys": 1, "a.b-c": 2}
State = dict[str, Tensor]


def load(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path).eval()


def logits(lm: Any, name: str = "keys") -> Tensor:
    with torch.no_grad():
        logits_of: Tensor = lm(TOKENS[name]).logits
    return logits_of


def session(lm: Any, adapters: NamedAdapters, name: str) -> Callable[[], None]:
    """Add an adapter with an optimiser of its own; return its next step."""
    adapters.add(name, SETTINGS[name], SEEDS[name])
    optimizer = torch.optim.AdamW(adapters.parameters(name), lr=1e-2)

    def step() -> None:
        with adapters.use(name):
            lm(TOKENS[name], labels=TOKENS[name]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def alone(path: Path, name: str, steps: int = 3) -> State:
    lm = load(path)
    adapters = NamedAdapters(lm)
    step = session(lm, adapters, name)
    for _ in range(steps):
        step()
    return adapters.state(name)


def equal(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(one[key].equal(other[key]) for key in one)


@pytest.mark.parametrize("order", [("keys", "a.b-c"), ("a.b-c", "keys")])
def test_two_trained_in_turns_are_each_alone_to_the_bit(
    models: dict[str, Path], order: tuple[str, str]
) -> None:
    lm = load(models["llama"])
    base = {key: value.clone() for key, value in lm.named_parameters()}
    adapters = NamedAdapters(lm)
    steps = {name: session(lm, adapters, name) for name in order}
    for _ in range(3):
        for step in steps.values():
            step()
    for name in order:
        assert equal(adapters.state(name), alone(models["llama"], name))
    kept = {key.replace(".base_layer", ""): value for key, value in lm.named_parameters()}
    assert all(kept[key].equal(value) for key, value in base.items())


def test_a_step_leaves_the_others_weights_and_gradients(models: dict[str, Path]) -> None:
    lm = load(models["llama"])
    adapters = NamedAdapters(lm)
    session(lm, adapters, "keys")
    with adapters.use("keys"):
        lm(TOKENS["keys"], labels=TOKENS["keys"]).loss.backward()
    waiting = [p.grad.clone() for p in adapters.parameters("keys") if p.grad is not None]
    before = adapters.state("keys")
    step = session(lm, adapters, "a.b-c")
    state = adapters.state("a.b-c")
    step()
    assert not equal(adapters.state("a.b-c"), state)
    assert equal(adapters.state("keys"), before)
    kept = [p.grad for p in adapters.parameters("keys")]
    assert len(waiting) == len(kept) > 0
    assert all(one is not None and one.equal(other) for one, other in zip(kept, waiting, strict=True))


def test_contexts_nest_and_the_base_is_left_outside(models: dict[str, Path]) -> None:
    lm = load(models["llama"])
    base = logits(lm)
    adapters = NamedAdapters(lm)
    for name in SEEDS:
        step = session(lm, adapters, name)
        step(), step()
    assert adapters.used is None and logits(lm).equal(base)
    with adapters.use("keys"):
        first = logits(lm)
        with adapters.use("a.b-c"):
            second = logits(lm)
            with adapters.use(None):
                assert logits(lm).equal(base)
        assert adapters.used == "keys" and logits(lm).equal(first)
    assert not any(
        torch.allclose(one, other) for one, other in ((first, base), (second, base), (first, second))
    )
    assert logits(lm).equal(base)


def test_the_seed_alone_decides_the_beginning(models: dict[str, Path]) -> None:
    def beginnings(*seeds: int) -> list[State]:
        adapters = NamedAdapters(load(models["gpt2"]))
        for number, seed in enumerate(seeds):
            adapters.add(str(number), adapter(), seed)
        return [adapters.state(str(number)) for number in range(len(seeds))]

    state = torch.get_rng_state()
    (first, second), (other, one) = beginnings(5, 6), beginnings(6, 5)
    assert torch.get_rng_state().equal(state)
    assert equal(first, one) and equal(second, other) and not equal(first, second)


def test_a_saved_state_goes_on_and_a_foreign_one_changes_nothing(models: dict[str, Path]) -> None:
    lm = load(models["llama"])
    adapters = NamedAdapters(lm)
    step = session(lm, adapters, "keys")
    step()
    kept, parameters = adapters.state("keys"), adapters.parameters("keys")
    step()
    assert not equal(adapters.state("keys"), kept)
    adapters.load("keys", kept)
    assert equal(adapters.state("keys"), kept)
    assert all(one is other for one, other in zip(adapters.parameters("keys"), parameters, strict=True))
    adapters.add("a.b-c", SETTINGS["a.b-c"], 0)
    with pytest.raises(InputError, match=r"has shape \(4, 32\); expected None, and 27 more differ"):
        adapters.load("a.b-c", kept)
    assert equal(adapters.state("keys"), kept)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_what_is_saved_is_what_peft_loads(models: dict[str, Path], tmp_path: Path, architecture: str) -> None:
    lm = load(models[architecture])
    adapters = NamedAdapters(lm)
    for number in range(11):  # names that begin with one another
        adapters.add(str(number), adapter(), number)
    with torch.no_grad():
        for parameter in adapters.parameters("1"):
            parameter.add_(0.1)
    adapters.save("1", tmp_path)
    with adapters.use("1"):
        expected = logits(lm)
    assert equal(load_file(tmp_path / "adapter_model.safetensors"), adapters.state("1"))
    loaded = PeftModel.from_pretrained(load(models[architecture]), tmp_path)
    assert logits(loaded).equal(expected)
    assert adapters.config("1")["r"] == 4


def test_the_last_one_removed_leaves_the_base(models: dict[str, Path]) -> None:
    lm = load(models["llama"])
    names, expected = [name for name, _ in lm.named_parameters()], logits(lm)
    adapters = NamedAdapters(lm)
    for name in SEEDS:
        adapters.add(name, SETTINGS[name], SEEDS[name])
    kept = adapters.state("a.b-c")
    with adapters.use("a.b-c"):
        adapters.remove("keys")
        adapters.add("third", adapter(), 3)
        adapters.remove("third")
        assert adapters.used == "a.b-c"
    assert adapters.names == ("a.b-c",) and equal(adapters.state("a.b-c"), kept)
    adapters.remove("a.b-c")
    assert [name for name, _ in lm.named_parameters()] == names
    step = session(lm, adapters, "keys")
    assert logits(lm).equal(expected)
    step(), step(), step()
    assert equal(adapters.state("keys"), alone(models["llama"], "keys"))


def test_errors_name_what_there_is_and_leave_everything(models: dict[str, Path]) -> None:
    lm = load(models["llama"])
    expected = logits(lm)
    adapters = NamedAdapters(lm)
    with pytest.raises(InputError, match="no adapter 'x'; expected one of none"), adapters.use("x"):
        pass
    with pytest.raises(InputError, match="target_modules"):
        adapters.add("head", adapter(target_modules=("lm_head",)), 0)
    with pytest.raises(InputError, match="target_modules"):
        adapters.add("odd", adapter(target_modules=("nowhere",)), 0)
    assert adapters.names == () and logits(lm).equal(expected)
    adapters.add("keys", adapter(), 0)
    with pytest.raises(InputError, match="target_modules"):
        adapters.add("odd", adapter(target_modules=("nowhere",)), 0)
    with pytest.raises(InputError, match="'keys' exists"):
        adapters.add("keys", adapter(), 0)
    with pytest.raises(InputError, match="expected kind=lora"):
        adapters.add("none", AdapterSettings(), 0)
    for call in (adapters.parameters, adapters.state, adapters.remove, adapters.config):
        with pytest.raises(InputError, match="no adapter 'x'; expected one of keys"):
            call("x")
    with adapters.use("keys"), pytest.raises(InputError, match="is in use"):
        adapters.remove("keys")
    assert adapters.names == ("keys",)


@pytest.mark.parametrize("is_first", [True, False])
def test_one_that_finds_no_memory_leaves_no_layer(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    lm = load(models["llama"])
    adapters = NamedAdapters(lm)
    if not is_first:
        adapters.add("a.b-c", SETTINGS["a.b-c"], 2)
    before = {path: type(module) for path, module in lm.named_modules()}
    calls = iter(range(99))
    draw = LoraLayer.reset_lora_parameters

    def fail_late(layer: Any, *arguments: Any) -> None:
        if next(calls) == 2:
            raise torch.OutOfMemoryError("no memory")
        draw(layer, *arguments)

    with monkeypatch.context() as patched, pytest.raises(torch.OutOfMemoryError):
        patched.setattr(LoraLayer, "reset_lora_parameters", fail_late)
        adapters.add("keys", SETTINGS["keys"], SEEDS["keys"])
    assert {path: type(module) for path, module in lm.named_modules()} == before
    assert hasattr(lm, "peft_config") is not is_first
    step = session(lm, adapters, "keys")
    step(), step(), step()
    assert equal(adapters.state("keys"), alone(models["llama"], "keys"))
