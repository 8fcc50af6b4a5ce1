"""Make a model without weights, of which each rank of a learner reads its own rows from the model's files.

    config.json ─▶ empty_model (shapes alone) ─▶ sharding (rows, unset) ─▶ StoredWeights.read

A model loaded whole by each rank would take a machine's memory once for each of them. Where the files hold
other tensors than the model has (experts that are joined, weights without safetensors), it is loaded whole.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from learner.distributed.sharding import own_rows
from learner.settings import ModelSettings
from learner.tensor_files import TensorFiles

META = torch.device("meta")
ROWS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """Files of a model, and the name in them of each of its parameters.

    Example: the hub's files of GPT-2 leave out a prefix: `names["transformer.wte.weight"] == "wte.weight"`
    """

    files: TensorFiles
    names: dict[str, str]

    @torch.no_grad()
    def read(self, lm: nn.Module) -> None:
        """Read this rank's rows of every parameter of a sharded model."""
        for name, parameter in lm.named_parameters():
            rows, first = own_rows(parameter)
            key = self.names[name]
            rows.copy_(self.files.rows(key, first, len(rows)) if rows.ndim else self.files.whole(key))


def empty_model(kind: Any, config: Any, settings: ModelSettings) -> tuple[Any, StoredWeights] | None:
    """Return a model whose parameters have a shape and no values, and where their values are stored.

    Buffers have their values. None: the files do not hold the parameters by name.

    Args:
        kind: the class of transformers that makes a model of `config`.
    """
    from transformers import GenerationConfig

    if getattr(config, "quantization_config", None):  # the files hold codes, which only the library decodes
        return None
    with _parameters_on_meta():
        lm = kind.from_config(config, dtype=torch.float32)
    if not (paths := _safetensors(settings)):
        return None
    files = TensorFiles(paths)
    keys = {name: key for key in files.shapes for name in (key, f"{lm.base_model_prefix}.{key}")}
    names = _stored_names(lm, keys, files)
    if names is None:
        return None
    for name, buffer in lm.named_buffers():
        if name in keys:
            buffer.copy_(files.whole(keys[name]))
    with suppress(OSError):  # without a file of its own, the one made from `config` stays
        lm.generation_config = GenerationConfig.from_pretrained(settings.path, revision=settings.revision)
    return lm, StoredWeights(files, names)


def _stored_names(lm: nn.Module, keys: dict[str, str], files: TensorFiles) -> dict[str, str] | None:
    """Return the stored name of each parameter.

    None: one is missing, has another shape, or is tied in the model and not in the files.
    """
    others: dict[int, list[str]] = {}  # a tied parameter may be stored under any of its names
    for name, parameter in lm.named_parameters(remove_duplicate=False):
        others.setdefault(id(parameter), []).append(name)
    found = {}
    for name, parameter in lm.named_parameters():
        stored = [keys[other] for other in others[id(parameter)] if other in keys]
        if not stored or any(files.shapes[key] != parameter.shape for key in stored):
            return None
        if not all(_same(files, stored[0], key) for key in stored[1:]):
            return None
        found[name] = stored[0]
    return found


def _same(files: TensorFiles, key: str, other: str) -> bool:
    """Return whether two tensors of one shape are equal, without reading them whole."""
    num_rows = files.shapes[key][0]
    for first in range(0, num_rows, ROWS_AT_ONCE):
        count = min(ROWS_AT_ONCE, num_rows - first)
        if not torch.equal(files.rows(key, first, count), files.rows(other, first, count)):
            return False
    return True


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Let modules that are made inside the context drop their parameters' values; buffers keep theirs."""
    register = nn.Module.register_parameter

    def register_empty(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.device != META:
            parameter = nn.Parameter(parameter.to(META), parameter.requires_grad)
        register(module, name, parameter)

    setattr(nn.Module, "register_parameter", register_empty)  # noqa: B010
    try:
        yield
    finally:
        setattr(nn.Module, "register_parameter", register)  # noqa: B010


def _safetensors(settings: ModelSettings) -> list[Path]:
    """Return the model's files, one or several with an index; [] if it has none in this format."""
    if single := _file(settings, "model.safetensors"):
        return [single]
    if index := _file(settings, "model.safetensors.index.json"):
        parts = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        return [found for part in parts if (found := _file(settings, part))]
    return []


def _file(settings: ModelSettings, name: str) -> Path | None:
    """Return a file of a model's folder, or of the hub's store on this machine; None if there is none."""
    from transformers.utils import cached_file

    try:
        found = cached_file(settings.path, name, revision=settings.revision)
    except OSError:
        return None
    return None if found is None else Path(found)
