"""Store tensors as safetensors: whole tensors in one file, sharded ones in a file for each rank.

    policy.safetensors                   whole tensors
    policy-00002-of-00002.safetensors    the second rank's rows; the header says as JSON where they belong:
                                         {"wte.weight": {"shape": [37, 16], "first": 19}}

Any number of ranks can read files from any other number; each reads only its rows.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from contracts.errors import LearnerError
from learner.distributed.ranks import Ranks
from learner.distributed.sharding import own_rows, spread_like

ROWS = "rows"  # the entry in a file's header


def write(tensors: Mapping[str, Tensor], folder: Path, name: str, ranks: Ranks) -> None:
    """Write tensors of any shape, with all ranks at once; the first rank writes unsharded tensors."""
    if not any(isinstance(tensor, DTensor) for tensor in tensors.values()):
        if ranks.is_first:
            save_file(_on_cpu(tensors), folder / f"{name}.safetensors")
        return
    parts, places = {}, {}
    for key, tensor in tensors.items():
        rows, first = own_rows(tensor)
        if rows.numel() and (isinstance(tensor, DTensor) or ranks.is_first):
            parts[key], places[key] = rows, {"shape": list(tensor.shape), "first": first}
    file = folder / f"{name}-{ranks.rank + 1:05d}-of-{ranks.size:05d}.safetensors"
    save_file(_on_cpu(parts), file, metadata={ROWS: json.dumps(places)})


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}


@dataclass(frozen=True, slots=True)
class _Part:
    file: Path
    first: int
    num_rows: int


class TensorFiles:
    """Tensors of some files, from `write` or from any program that stores whole tensors."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._parts: dict[str, list[_Part]] = {}
        self.shapes: dict[str, torch.Size] = {}
        for file in files:
            with safe_open(file, framework="pt") as opened:
                places = json.loads((opened.metadata() or {}).get(ROWS, "{}"))
                for key in opened.keys():  # noqa: SIM118 (not a dictionary)
                    stored = opened.get_slice(key).get_shape()
                    place = places.get(key, {"shape": stored, "first": 0})
                    self.shapes[key] = torch.Size(place["shape"])
                    part = _Part(file, place["first"], stored[0] if stored else 0)
                    self._parts.setdefault(key, []).append(part)

    @classmethod
    def written(cls, folder: Path, name: str) -> "TensorFiles":
        """Return the files that `write` left in a folder under this name.

        Raises:
            LearnerError: files are missing.
        """
        return cls(_files(folder, name))

    def whole(self, key: str) -> Tensor:
        shape = self.shapes[key]
        if not shape:
            with safe_open(self._parts[key][0].file, framework="pt") as opened:
                scalar: Tensor = opened.get_tensor(key)
            return scalar
        return self.rows(key, 0, shape[0])

    def rows(self, key: str, first: int, count: int) -> Tensor:
        """Read `count` rows of a tensor, from row `first` on.

        Raises:
            LearnerError: the files lack some of the rows.
        """
        pieces = []
        for part in sorted(self._parts[key], key=lambda part: part.first):
            start, stop = max(first, part.first), min(first + count, part.first + part.num_rows)
            if start < stop:
                with safe_open(part.file, framework="pt") as opened:
                    pieces.append(opened.get_slice(key)[start - part.first : stop - part.first])
        if sum(map(len, pieces)) != count:
            raise LearnerError(
                f"{self._parts[key][0].file.parent}: rows {first} to {first + count} of {key} are expected, "
                f"but only {sum(map(len, pieces))} of them exist; the checkpoint is incomplete"
            )
        return torch.cat(pieces) if pieces else self._none_of(key)

    def _none_of(self, key: str) -> Tensor:
        with safe_open(self._parts[key][0].file, framework="pt") as opened:
            none: Tensor = opened.get_slice(key)[:0]
        return none

    def like(self, key: str, other: Tensor) -> Tensor:
        """Read a tensor with the sharding of `other`: all of it, or this rank's rows."""
        if not isinstance(other, DTensor):
            return self.whole(key)
        rows, first = own_rows(other)
        return spread_like(self.rows(key, first, len(rows)).to(rows.device), other)


def _files(folder: Path, name: str) -> list[Path]:
    if (single := folder / f"{name}.safetensors").exists():
        return [single]
    files = sorted(folder.glob(f"{name}-*-of-*.safetensors"))
    expected = int(files[0].stem.rpartition("-of-")[2]) if files else 1
    if len(files) != expected:
        raise LearnerError(
            f"{folder}: expected {name}.safetensors, or one file for each process that wrote it; "
            f"{len(files)} of {expected} are there"
        )
    return files
