"""Records of published weights: their version, their arrays, and the probe that proves their arrival."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Probe:
    """A fixed token sequence, and the learner's log-probabilities of its tokens after the first.

    Example: `Probe(tokens=(1, 403, 88), logprobs=(-3.2, -0.9), tolerance=0.1)`. A worker scores the same
    tokens after loading: agreement within `tolerance` proves that these weights arrived.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    tolerance: float


@dataclass(frozen=True, slots=True)
class ChangedElements:
    """The changed elements of one flattened parameter: their indices and their new values.

    Example: the first of a million biases has become 1.0, in bfloat16: `ChangedElements(indices=[0],
    values=[0x3f80])`, NumPy arrays of uint32 (uint64 beyond 2³² elements) and uint16.
    """

    indices: Any
    values: Any


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """A published version of the weights, without the tensors themselves.

    The tensors travel beside it as arrays by Hugging Face parameter name. `dtypes` gives each array's type,
    since NumPy has no bfloat16 (such an array comes as uint16). `num_bytes` is the size of all that travels.

    `mask_version` is the version that NLPO's mask model was copied from, None without a mask. The mask's
    arrays travel apart from the policy's, under the same names, and change only when the mask is synced.

    `adapter` is peft's configuration of a LoRA adapter. If given, the arrays are the adapter's own matrices
    by peft's names, and apply on top of the weights that an engine began with. Without it the arrays may be
    only some of the parameters; the others stay as in the model's files.

    `push` names this publication, if a later one may be based on it. A version can't name it: after a return
    to a checkpoint the same version may come again, with other weights. If `base` names an earlier
    publication, only the changes since then travel. For each parameter that is nothing if it is equal, its
    `ChangedElements`, or its whole array. `checksum` is `checksum_of` the whole arrays that result.

    `shapes` are given where the weights go through a `WeightGroup` in the order of `dtypes`, without arrays.

    Example: `WeightManifest(version=7, dtypes={"model.norm.weight": "float32"}, num_bytes=256,
    probe=Probe(…), mask_version=5)`
    """

    version: int
    dtypes: Mapping[str, str]
    num_bytes: int
    probe: Probe
    mask_version: int | None = None
    adapter: Mapping[str, Any] | None = None
    push: str | None = None
    base: str | None = None
    checksum: int | None = None
    shapes: Mapping[str, tuple[int, ...]] | None = None


@dataclass(frozen=True, slots=True)
class WeightGroup:
    """Group in which a learner, of rank 0, sends weights to the processes of engines, of ranks 1 and up.

    `address` is what all need to meet: of a store (gloo), NCCL's unique id in base64 (nccl), or nothing,
    where processes on one GPU pass memory by its handle (ipc). Whoever waits longer than `patience_s` for
    another gives up.

    Example: two workers of one process each, on CPUs:
    `WeightGroup("gloo", "tcp://127.0.0.1:40123", size=3, patience_s=60.0)`
    """

    transport: str
    address: str
    size: int
    patience_s: float


def checksum_of(arrays: Mapping[str, Any]) -> int:
    """Return the CRC-32 of the arrays' bytes in order of their names; it finds errors that the probe misses.

    >>> checksum_of({"b": b"456789", "a": b"123"}) == 0xCBF43926
    True
    """
    found = 0
    for name in sorted(arrays):
        found = zlib.crc32(arrays[name], found)
    return found
