"""Records of published weights: their version, their arrays, and the probe that proves their arrival."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Probe:
    """A fixed token sequence, and the learner's log-probabilities of its tokens after the first.

    Example: `Probe(tokens=(1, 403, 88), logprobs=(-3.2, -0.9), tolerance=0.1)`. A worker scores these tokens
    after loading. If both agree within `tolerance`, these weights arrived.
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
    """A published version of the weights, without the tensors.

    The tensors travel beside it as arrays by Hugging Face parameter name. `dtypes` gives each array's type,
    because NumPy has no bfloat16 (it comes as uint16). `num_bytes` is the size of everything that travels.

    `mask_version` is the version from which NLPO's mask model was copied, None without a mask. The mask's
    arrays travel apart from the policy's, under the same names, and change only when the mask is synced.

    `adapter` is peft's configuration of a LoRA adapter. With it, the arrays are the adapter's matrices by
    peft's names, on top of an engine's first weights. Without it, the arrays may be only some of the
    parameters; the others keep the values of the model's files.

    `roles` is set if each role of the policy has an adapter: by role, the manifest of that adapter alone. The
    arrays have the names ROLE/NAME, and `probe` is of the model without adapters.

    `push` names this publication, if a later one may be based on it. A version can't name it: after a return
    to a checkpoint the same version may come again, with other weights. If `base` names an earlier
    publication, only the changes since then travel. An equal parameter does not travel; any other one travels
    as its `ChangedElements` or its whole array. `checksum` is `checksum_of` the whole new arrays.

    `shapes` is set if the weights go through a `WeightGroup` in the order of `dtypes`, without arrays.

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
    roles: "Mapping[str, WeightManifest] | None" = None


@dataclass(frozen=True, slots=True)
class WeightGroup:
    """Group in which a learner, of rank 0, sends weights to the processes of engines, of ranks 1 and up.

    `address` is the meeting place: a store's address (gloo), NCCL's unique id in base64 (nccl), or "" for
    processes that share one GPU's memory by its handle (ipc). A process gives up if another is missing for
    longer than `patience_s`.

    Example: two workers of one process each, on CPUs: `WeightGroup("gloo", "tcp://127.0.0.1:40123", size=3,
    patience_s=60.0)`
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
    checksum = 0
    for name in sorted(arrays):
        checksum = zlib.crc32(arrays[name], checksum)
    return checksum
