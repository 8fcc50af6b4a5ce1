"""The model of memory against what PyTorch holds: parameters on meta tensors, activations on fake ones."""

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.qwen_shapes import CONFIGS, files_of
from contracts.activations import fuse_activations
from learner.models import attention
from services.models.shape import shape_of
from services.training.preflight.capacity.memory_model import kept_a_layer

ATTENTION_ON_A_CPU = 1024  # bytes a token: of each layer's own causal mask of 256 × 256


def meta_model(name: str) -> torch.nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**CONFIGS[name])
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_and_shards_are_those_of_meta_tensors(name: str) -> None:
    """Eight ranks: a rank has an eighth of each tensor's rows, rounded up."""
    shape = shape_of(files_of(name))
    assert shape is not None
    parameters = list(meta_model(name).parameters())
    assert shape.num_parameters() == pytest.approx(sum(p.numel() for p in parameters), rel=0.01)
    a_rank = sum(p[: -(-len(p) // 8)].numel() for p in parameters)
    assert 4 * shape.num_parameters() / 8 == pytest.approx(4 * a_rank, rel=0.01)


def kept_bytes(config: Any, in_bfloat16: bool) -> float:
    """Bytes that a forward pass keeps of each token, copies of weights left out."""
    from transformers import AutoModelForCausalLM

    kept: dict[int, int] = {}
    alive = []  # a storage that ended might give its address to another

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        alive.append(tensor)
        kept[storage._cdata] = storage.nbytes()
        return tensor

    with FakeTensorMode(allow_non_fake_inputs=True):
        lm = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        fuse_activations(lm)
        weights = {p.untyped_storage()._cdata for p in lm.parameters()}
        tokens = torch.zeros((2, 256), dtype=torch.long)
        autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=in_bfloat16)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), autocast:
            lm.base_model(input_ids=tokens, use_cache=False)
        layers = lm.base_model.layers if hasattr(lm.base_model, "layers") else lm.base_model.h
        copies = sum(2 * p.numel() for p in layers.parameters() if p.ndim == 2) if in_bfloat16 else 0
    return (sum(size for key, size in kept.items() if key not in weights) - copies) / tokens.numel()


@pytest.mark.parametrize(("in_bfloat16", "on_cpu"), [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("name", [*CONFIGS, "gpt2"])
def test_a_layer_keeps_of_a_token_what_pytorch_keeps(
    name: str, in_bfloat16: bool, on_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured as the difference of models with three layers and with one."""
    from transformers import AttentionInterface, AutoConfig
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    known = AttentionInterface._global_mapping
    monkeypatch.setitem(known, "sdpa", attention.attend if on_cpu else sdpa_attention_forward)

    config = {"model_type": "gpt2", "resid_pdrop": 0, "attn_pdrop": 0, "embd_pdrop": 0}
    key = "n_layer" if name == "gpt2" else "num_hidden_layers"
    if name != "gpt2":
        config = {**CONFIGS[name], "vocab_size": 64, "layer_types": None}
    few, many = (AutoConfig.for_model(**{**config, key: count}) for count in (1, 3))
    measured = (kept_bytes(many, in_bfloat16) - kept_bytes(few, in_bfloat16)) / 2 - ATTENTION_ON_A_CPU
    shape = shape_of(files_of(name, few.to_dict()))
    assert shape is not None
    assert kept_a_layer(shape, 2 if in_bfloat16 else 4, on_cpu=on_cpu) == pytest.approx(measured, rel=0.1)
