"""The weights of a sampler's checkpoint that differ from its base, as engines load them."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from contracts.errors import InputError

CONFIG, MATRICES = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # stands before the names of peft's files
DOWN, UP = ".lora_A.weight", ".lora_B.weight"


def overlay_of(folder: Path, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the changed parameters by name: a whole model's, or W + (alpha / r) BA for an adapter.

    Raises:
        InputError: the folder has no weights.
    """
    if (folder / CONFIG).is_file():
        config = json.loads((folder / CONFIG).read_text())
        scale, turned = config["lora_alpha"] / config["r"], bool(config.get("fan_in_fan_out"))
        return dict(_merged(load_file(folder / MATRICES), scale, turned, base))
    stored: dict[str, Tensor] = {}
    for file in sorted(folder.glob("model*.safetensors")):
        stored |= load_file(file)
    if not stored:
        raise InputError("the weights to sample with were deleted; expected weights that are still saved")
    return {name: tensor for name, tensor in stored.items() if name in base}


def _merged(
    matrices: Mapping[str, Tensor], scale: float, turned: bool, base: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield merged weights. `turned` weights, as in GPT-2, have the shape (inputs, outputs)."""
    for key, down in matrices.items():
        if key.endswith(DOWN):
            path = key.removesuffix(DOWN)
            name = f"{path.removeprefix(PREFIX)}.weight"
            change = scale * (matrices[path + UP] @ down)
            yield name, base[name] + (change.T if turned else change)


def same_blocks(overlay: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield the names of all parameters in the changed blocks.

    Engines join some layers of a block into one matrix (queries, keys and values), and replace it whole.
    """
    blocks = {name.rpartition(".")[0].rpartition(".")[0] for name in overlay}
    for name in base:
        if any(not block or name.startswith(f"{block}.") for block in blocks):
            yield name
