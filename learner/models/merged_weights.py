"""Merge an adapter into a model's weights, for programs that can't read adapters.

A weight with an adapter becomes W + (lora_alpha / r)·BA; a weight in 4 bits is unpacked. Each merged weight
is computed only when read, so the base does not change, and memory holds no second model. Each rank computes
its own rows.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from learner.distributed.sharding import own_rows, spread_like, whole

ADAPTER = "default"  # peft's name of a model's only adapter
BASE = ".base_layer"  # peft's name of a layer that has an adapter
FILE_BYTES = 2 * 2**30


def is_adapted(lm: nn.Module) -> bool:
    return any(hasattr(module, "lora_A") for module in lm.modules())


def matrices_of(lm: nn.Module) -> set[int]:
    """Return the `id()`s of the adapter's parameters."""
    layers: list[Any] = [module for module in lm.modules() if hasattr(module, "lora_A")]
    return {
        id(p) for layer in layers for matrices in (layer.lora_A, layer.lora_B) for p in matrices.parameters()
    }


def merged_parameters(lm: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield names and parameters of the base with the adapter's change merged in; tied ones once."""
    layers = {name: module for name, module in lm.named_modules() if hasattr(module, "lora_A")}
    matrices = matrices_of(lm)
    for name, parameter in lm.named_parameters():
        if id(parameter) in matrices:
            continue
        owner, _, kind = name.rpartition(".")
        layer = layers.get(owner.removesuffix(BASE))
        tensor = parameter.detach()
        if kind == "weight" and (layer is not None or hasattr(parameter, "quant_state")):
            tensor = _merged_weight(lm.get_submodule(owner), layer)
        yield name.replace(f"{BASE}.", "."), tensor


def changed_parameters(lm: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield names and tensors of the parameters that differ from the model's files, in the model's shapes.

    Engines join some layers of a block in one matrix (queries, keys and values), and replace it whole.
    """
    blocks = {
        name.removesuffix(BASE).rpartition(".")[0]
        for name, module in lm.named_modules()
        if hasattr(module, "lora_A") or hasattr(getattr(module, "weight", None), "quant_state")
    }
    for name, tensor in merged_parameters(lm):
        if any(not block or name.startswith(f"{block}.") for block in blocks):
            yield name, tensor


@torch.no_grad()
def _merged_weight(base: Any, layer: Any | None) -> Tensor:
    weight = base.weight.detach()
    if hasattr(base.weight, "quant_state"):
        from bitsandbytes.functional import dequantize_4bit

        weight = dequantize_4bit(base.weight.data, base.weight.quant_state)
    if layer is not None and not layer.disable_adapters:
        rows, first = own_rows(weight)
        for name in set(layer.active_adapters) & set(layer.lora_A):  # one or none
            rows = rows + _change(layer, name, first, len(rows))
        weight = spread_like(rows, weight)
    # GPT-2's layers keep their weights transposed; 4-bit layers do not.
    turned = getattr(base, "source_cls", nn.Linear).__name__ == "Conv1D"
    return weight.T.contiguous() if turned else weight


def _change(layer: Any, name: str, first: int, count: int) -> Tensor:
    """Return `count` rows of what an adapter adds to a weight, from row `first` on; all ranks take part."""
    inner, outer = whole(layer.lora_A[name].weight), whole(layer.lora_B[name].weight)
    chosen = slice(first, first + count)
    # GPT-2's layers keep their weights transposed.
    product = (outer @ inner[:, chosen]).T if layer.fan_in_fan_out else outer[chosen] @ inner
    return product * layer.scaling[name]


def save_merged(lm: Any, folder: Path, *, writes: bool = True) -> None:
    """Save the merged weights in Hugging Face format, with one file's weights in memory at a time.

    Args:
        writes: whether this rank writes; others only take part.
    """
    parameters = dict(lm.named_parameters())
    stored = lm.state_dict().keys()  # not all buffers are stored
    buffers = ((name, b) for name, b in lm.named_buffers() if name in stored and name not in parameters)

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in merged_parameters(lm):
            all_rows = whole(tensor)
            if writes:
                yield name, all_rows
        yield from buffers

    if writes:
        _save_parts(tensors(), folder)
    else:
        for _ in tensors():
            pass


def _save_parts(tensors: Iterable[tuple[str, Tensor]], folder: Path) -> None:
    """Write model.safetensors, or several files with an index if one would be too large."""
    part: dict[str, Tensor] = {}
    files: list[list[str]] = []
    size = total = 0

    def write() -> None:
        files.append(list(part))
        save_file(part, folder / f"part{len(files)}", metadata={"format": "pt"})
        part.clear()

    for name, tensor in tensors:
        if part and size + tensor.nbytes > FILE_BYTES:
            write()
            size = 0
        part[name] = tensor.cpu().contiguous()
        size, total = size + tensor.nbytes, total + tensor.nbytes
    write()
    if len(files) == 1:
        (folder / "part1").rename(folder / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for number, names in enumerate(files, start=1):
        file = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        (folder / f"part{number}").rename(folder / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
