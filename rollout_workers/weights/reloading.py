"""Replace weights of vLLM's models in place, in this process or in the ranks of a tensor-parallel engine."""

import contextlib
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor, nn

from contracts.weights import WeightManifest
from rollout_workers.engines.base import Arrays

PREFIX, FILE = "whetstone-weights-", "weights.safetensors"
OLD_S = 600.0  # longer than any push, because sharers of the folder may not see each other's processes


def as_tensor(array: "np.ndarray[Any, Any]", dtype: str) -> torch.Tensor:
    """Return a tensor of the same shape over the array's memory; the store's memory must only be read.

    Args:
        dtype: name of a torch dtype; bfloat16 comes as uint16, because NumPy lacks it.
    """
    with warnings.catch_warnings():  # "not writable" is intended
        warnings.simplefilter("ignore", UserWarning)
        tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


def reload_model(config: Any, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Replace the weights of a model in this process, or of one half of a twin.

    Args:
        config: vLLM's config.
    """
    _reload(config, model, tensors.items())


def reload_in_ranks(executor: Any, manifest: WeightManifest, arrays: Arrays) -> None:
    """Replace the weights in vLLM's executor processes, which read a file and keep their shares of it."""
    from safetensors.numpy import save_file

    _remove_dead_ones()
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as folder:
        save_file(dict(arrays), Path(folder) / FILE)
        executor.collective_rpc(_reload_rank, args=(str(Path(folder) / FILE), dict(manifest.dtypes)))


def _remove_dead_ones() -> None:
    """Remove model-sized files of workers that were killed while they wrote or read them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another worker may be faster
            is_old = time.time() - folder.stat().st_mtime > OLD_S
            if is_old and not psutil.pid_exists(int(folder.name.removeprefix(PREFIX).partition("-")[0])):
                shutil.rmtree(folder, ignore_errors=True)


def _reload_rank(worker: Any, file: str, dtypes: Mapping[str, str]) -> None:
    """Reload this rank's share from a file; vLLM calls this in each of its processes."""
    from safetensors import safe_open

    runner = worker.model_runner
    with safe_open(file, framework="pt") as tensors:
        stored = ((name, tensors.get_tensor(name)) for name in tensors.keys())  # noqa: SIM118
        typed = ((n, t.view(torch.bfloat16) if dtypes[n] == "bfloat16" else t) for n, t in stored)
        _reload(runner.vllm_config, runner.get_model(), typed)


def _reload(config: Any, model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> None:
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload.inplace import reload_weights

    with set_current_vllm_config(config):  # layers may need it while they are made anew
        reload_weights(config, model, weights, weights_path=None, is_checkpoint_format=True)
        _repack_tied_head(model)


def _repack_tied_head(model: nn.Module) -> None:
    """Pack a tied head again; on a CPU it multiplies with a packed copy of the embedding.

    A reload leaves the copy stale: no checkpoint names the head, so vLLM does not pack it again.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead) and hasattr(module, "cpu_linear"):
            module.quant_method.process_weights_after_loading(module)
