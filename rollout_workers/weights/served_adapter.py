"""Serve LoRA adapters by vLLM: matrices beside the base's weights, replaced between two steps.

One adapter answers all requests, or each role's adapter answers that role's requests.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from contracts.weights import WeightManifest
from rollout_workers.engines.base import Arrays

NAME = "policy"
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # ranks for which vLLM makes room


def adapter_arguments(rank: int, count: int = 1) -> dict[str, Any]:
    """Return arguments of vLLM's engine that make room for `count` adapters.

    >>> adapter_arguments(12)
    {'enable_lora': True, 'max_loras': 1, 'max_lora_rank': 16}

    Raises:
        InputError: the rank is above vLLM's highest.
    """
    if rank > RANKS[-1]:
        raise InputError(
            f"model.adapter.r={rank}: vLLM serves adapters up to rank {RANKS[-1]}; expected less, or "
            "model.adapter.serve=merged"
        )
    room = next(rank_limit for rank_limit in RANKS if rank_limit >= rank)
    return {"enable_lora": True, "max_loras": count, "max_lora_rank": room}


def replace_adapters(engine: Any, manifest: WeightManifest, arrays: Arrays) -> dict[str, Any]:
    """Give vLLM's engine the published adapters; return the mark for each request, by its role ("": any).

    For vLLM all versions are the same adapter, so requests in progress continue with the new matrices, as
    with new weights.
    """
    if manifest.roles is None:
        return {"": _replaced(engine, 1, NAME, manifest, arrays)}
    marks = {}
    for number, (role, adapter) in enumerate(manifest.roles.items(), start=1):
        start = f"{role}/"
        matrices = {
            key.removeprefix(start): matrix for key, matrix in arrays.items() if key.startswith(start)
        }
        marks[role] = _replaced(engine, number, f"{NAME}/{role}", adapter, matrices)
    return marks


def _replaced(engine: Any, number: int, name: str, manifest: WeightManifest, arrays: Arrays) -> Any:
    from safetensors.numpy import save_file
    from vllm.lora.request import LoRARequest

    with tempfile.TemporaryDirectory(prefix="whetstone-adapter-") as folder:
        save_file(dict(arrays), Path(folder) / "adapter_model.safetensors")
        (Path(folder) / "adapter_config.json").write_text(json.dumps(dict(manifest.adapter or {})))
        engine.add_lora(LoRARequest(name, number, folder, load_inplace=True))
        return LoRARequest(name, number, folder)
