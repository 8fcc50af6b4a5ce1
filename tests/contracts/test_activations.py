"""Fused activations: the same function, the same configuration, another kernel."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from transformers.activations import ACT2FN, GELUTanh

from contracts.activations import fuse_activations

NAMES = ("gelu_new", "gelu_fast")


def tiny(activation: str) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    shape = {"vocab_size": 50, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(activation_function=activation, **shape)).eval().double()


@pytest.mark.parametrize("activation", NAMES)
def test_logits_and_gradients_stay(activation: str) -> None:
    tokens, outcomes = torch.arange(12)[None], []
    for fused in (False, True):
        model = tiny(activation)
        if fused:
            fuse_activations(model)
            assert all(isinstance(block.mlp.act, GELUTanh) for block in model.transformer.h)
        logits = model(tokens).logits
        logits.square().sum().backward()
        outcomes.append((logits, model.transformer.h[0].mlp.c_fc.weight.grad))
    torch.testing.assert_close(outcomes[0], outcomes[1], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_other_activations_stay(activation: str) -> None:
    model = tiny(activation)
    fuse_activations(model)
    assert all(type(block.mlp.act) is type(ACT2FN[activation]) for block in model.transformer.h)


def test_a_saved_model_has_its_own_activation(tmp_path: Path) -> None:
    model = tiny("gelu_new")
    fuse_activations(model)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.config.activation_function == "gelu_new"
    assert not any(isinstance(module, GELUTanh) for module in again.modules())
