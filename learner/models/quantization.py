"""Load a 4-bit base under an adapter, let it compute in float32, and measure its size."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from learner.models.adapter_settings import AdapterSettings
from learner.models.merged_weights import matrices_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def quantized_loading(settings: AdapterSettings, device: torch.device) -> dict[str, Any]:
    """Return options of `from_pretrained` that load linear layers in 4 bits one by one; {} unless kind=qlora.

    The format is NF4 with quantised scales, as published (Dettmers et al. 2023, arXiv 2305.14314). Layers
    compute in float32, as in the whole learner.
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


def compute_in_float32(lm: "PreTrainedModel") -> None:
    """Switch off the faster evaluation mode that bitsandbytes has on some CPUs.

    That mode would repack the weights for bfloat16 products. They have no gradient, and their results differ
    from the update's and the workers'.
    """
    for module in lm.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


@dataclass(frozen=True, slots=True)
class Size:
    """Size of some weights.

    Example: 4 bits with their scales, `Size(num_bytes=43_850_000, num_parameters=84_934_656)`
    """

    num_bytes: int
    num_parameters: int


def base_sizes(lm: Any) -> tuple[Size, Size]:
    """Return two sizes, without the adapter: linear layers with their scales, and all other weights."""
    ends = (lm.get_output_embeddings(), lm.get_input_embeddings())
    adapter = matrices_of(lm)
    totals = {True: [0, 0], False: [0, 0]}
    for name, parameter in lm.named_parameters():
        if id(parameter) in adapter:
            continue
        owner, _, kind = name.rpartition(".")
        layer, state = lm.get_submodule(owner), getattr(parameter, "quant_state", None)
        is_linear = kind == "weight" and isinstance(layer, nn.Linear) and layer not in ends
        totals[is_linear][0] += parameter.nbytes + sum(tensor.nbytes for tensor in _scales(state))
        totals[is_linear][1] += parameter.numel() if state is None else state.shape.numel()
    return Size(*totals[True]), Size(*totals[False])


def _scales(state: Any) -> list[Tensor]:
    """Return the tensors that decode 4-bit weights: scales, code, and decoders of 8-bit scales."""
    if state is None:
        return []
    nested = [state.offset, state.state2.absmax, state.state2.code] if state.nested else []
    return [state.absmax, state.code, *nested]
