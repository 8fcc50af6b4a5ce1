"""Make a model without weights; each rank of a learner reads its rows from the model's files.

    config.json ─▶ empty_model (shapes alone) ─▶ sharding (rows, unset) ─▶ StoredWeights.read

If each rank loaded the whole model, a machine would need its memory once for each of them. If the files hold
other tensors than the model has (joined experts, weights without safetensors), it is loaded whole.
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
from learner.models.merged_weights import BASE, matrices_of
from learner.settings import ModelSettings
from learner.tensor_files import TensorFiles

META = torch.device("meta")
ROWS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """Files of a model, and each parameter's name in them.

    Example: the hub's files of GPT-2 leave out a prefix: `names["transformer.wte.weight"] == "wte.weight"`
    """

    files: TensorFiles
    names: dict[str, str]

    @torch.no_grad()
    def read(self, lm: nn.Module) -> None:
        """Read this rank's rows of every parameter of a sharded model, except an adapter's matrices."""
        matrices = matrices_of(lm)
        for name, parameter in lm.named_parameters():
            if id(parameter) in matrices:
                continue
            rows, first = own_rows(parameter)
            key = self.names[name.replace(f"{BASE}.", ".")]
            rows.copy_(self.files.rows(key, first, len(rows)) if rows.ndim else self.files.whole(key))


def empty_model(kind: Any, config: Any, settings: ModelSettings) -> tuple[Any, StoredWeights] | None:
    """Return a model whose parameters have shapes but no values, and the place of their values.

    Buffers have their values. None: the files do not hold the parameters by name.

    Args:
        kind: the transformers class that makes a model of `config`.
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
    with suppress(OSError):  # without such a file, the config made from `config` stays
        lm.generation_config = GenerationConfig.from_pretrained(settings.path, revision=settings.revision)
    return lm, StoredWeights(files, names)


@contextmanager
def standing_in(lm: nn.Module) -> Iterator[None]:
    """Let parameters without values seem to have some inside the context, in which an adapter is made.

    peft puts an adapter's matrices to where its layer's weight is. Stand-ins take no memory.
    """
    empty = [
        (owner, name, parameter)
        for owner in lm.modules()
        for name, parameter in owner.named_parameters(recurse=False, remove_duplicate=False)
        if parameter.is_meta
    ]
    for owner, name, parameter in empty:
        stand_in = torch.empty((), dtype=parameter.dtype).expand(parameter.shape)
        setattr(owner, name, nn.Parameter(stand_in))
    try:
        yield
    finally:
        for owner, name, parameter in empty:
            parameter.requires_grad_(owner.get_parameter(name).requires_grad)
            setattr(owner, name, parameter)


def _stored_names(lm: nn.Module, keys: dict[str, str], files: TensorFiles) -> dict[str, str] | None:
    """Return the stored name of each parameter.

    None: a parameter is missing, has another shape, or is tied in the model but not in the files.
    """
    others: dict[int, list[str]] = {}  # a tied parameter may be stored under any of its names
    for name, parameter in lm.named_parameters(remove_duplicate=False):
        others.setdefault(id(parameter), []).append(name)
    key_of = {}
    for name, parameter in lm.named_parameters():
        stored = [keys[other] for other in others[id(parameter)] if other in keys]
        if not stored or any(files.shapes[key] != parameter.shape for key in stored):
            return None
        if not all(_same(files, stored[0], key) for key in stored[1:]):
            return None
        key_of[name] = stored[0]
    return key_of


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
    """Let modules made inside the context drop their parameters' values; buffers keep theirs."""
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
        return [path for part in parts if (path := _file(settings, part))]
    return []


def _file(settings: ModelSettings, name: str) -> Path | None:
    """Return a file of a model's folder, or of the hub's local cache; None if there is none."""
    from transformers.utils import cached_file

    try:
        path = cached_file(settings.path, name, revision=settings.revision)
    except OSError:
        return None
    return None if path is None else Path(path)
