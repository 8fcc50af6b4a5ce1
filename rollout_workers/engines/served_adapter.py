"""Serve a LoRA adapter by vLLM: matrices beside the base's weights, replaced between two steps."""

import json
import tempfile
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from contracts.weights import WeightManifest
from rollout_workers.engines.base import Arrays

NAME, ID = "policy", 1
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # ranks for which vLLM makes room


def adapter_arguments(rank: int) -> dict[str, Any]:
    """Return arguments of vLLM's engine that make room for one adapter.

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
    room = next(each for each in RANKS if each >= rank)
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": room}


def replace_adapter(engine: Any, manifest: WeightManifest, arrays: Arrays) -> Any:
    """Give vLLM's engine the published adapter; return the mark for each request.

    To vLLM it is the same adapter in every version: requests in progress go on with the new matrices, as they
    do with new weights.
    """
    from safetensors.numpy import save_file
    from vllm.lora.request import LoRARequest

    with tempfile.TemporaryDirectory(prefix="whetstone-adapter-") as folder:
        save_file(dict(arrays), Path(folder) / "adapter_model.safetensors")
        (Path(folder) / "adapter_config.json").write_text(json.dumps(dict(manifest.adapter or {})))
        engine.add_lora(LoRARequest(NAME, ID, folder, load_inplace=True))
        return LoRARequest(NAME, ID, folder)
