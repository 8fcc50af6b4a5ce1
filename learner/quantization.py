"""A base in 4 bits under an adapter: how it is loaded, what it computes in, how much it takes."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from learner.adapter_settings import AdapterSettings
from learner.merged_weights import matrices_of


def quantized_loading(settings: AdapterSettings, device: torch.device) -> dict[str, Any]:
    """Options of `from_pretrained` that load linear layers in 4 bits, one at a time; none for other kinds.

    NF4 with quantised scales, as published (Dettmers et al. 2023, arXiv 2305.14314), and float32 to compute
    in, as everywhere in the learner.
    """
    if settings.kind != "qlora":
        return {}
    settings.check_installed()
    from transformers import BitsAndBytesConfig

    return {
        "quantization_config": BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32,
        ),
        "device_map": {"": device},
    }


def compute_in_float32(lm: nn.Module) -> None:
    """Keep bitsandbytes from its faster way on some CPUs: in evaluation mode it would repack the weights for
    bfloat16 products, which have no gradient and are not what the update or a worker computes.
    """
    for module in lm.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


@dataclass(frozen=True, slots=True)
class Size:
    """Example: 4 bits with their scales, `Size(num_bytes=43_850_000, num_parameters=84_934_656)`"""

    num_bytes: int
    num_parameters: int


def base_sizes(lm: Any) -> tuple[Size, Size]:
    """Of a model without its adapter: the linear layers, with the scales of 4-bit ones; and embeddings, head,
    norms and biases.
    """
    ends = (lm.get_output_embeddings(), lm.get_input_embeddings())
    adapter = matrices_of(lm)
    found = {True: [0, 0], False: [0, 0]}
    for name, parameter in lm.named_parameters():
        if id(parameter) in adapter:
            continue
        owner, _, kind = name.rpartition(".")
        layer, state = lm.get_submodule(owner), getattr(parameter, "quant_state", None)
        is_linear = kind == "weight" and isinstance(layer, nn.Linear) and layer not in ends
        found[is_linear][0] += parameter.nbytes + sum(tensor.nbytes for tensor in _scales(state))
        found[is_linear][1] += parameter.numel() if state is None else state.shape.numel()
    return Size(*found[True]), Size(*found[False])


def _scales(state: Any) -> list[Tensor]:
    """What 4 bits are read with: scales and their code; of scales in 8 bits their own, and an offset."""
    if state is None:
        return []
    nested = [state.offset, state.state2.absmax, state.state2.code] if state.nested else []
    return [state.absmax, state.code, *nested]
