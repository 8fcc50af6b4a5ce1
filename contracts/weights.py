"""Which weights are live, where their bytes are, and how a worker proves it has them."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Probe:
    """A fixed token sequence, and the log-probabilities the learner gives its tokens after the first.

    Example: `Probe(tokens=(1, 403, 88), logprobs=(-3.2, -0.9))`. A worker scores the same tokens
    after loading: agreement within `tolerance` proves that these very weights arrived.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    tolerance: float


@dataclass(frozen=True, slots=True)
class ChangedElements:
    """Of one parameter, laid out flat: which elements are others than before, and what they are now.

    Example: the first of a million biases has become 1.0, in bfloat16: `ChangedElements(indices=[0],
    values=[0x3f80])`, NumPy arrays of uint32 (uint64 where there are more than 2³² elements) and uint16.
    """

    indices: Any
    values: Any


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """A published version of the weights, without the tensors themselves.

    The tensors travel beside it as arrays by Hugging Face parameter name; `dtypes` says what each
    holds, since NumPy has no bfloat16 (such an array comes as uint16).

    `mask_version` is the version that NLPO's mask model was copied from, None where there is no mask; its
    arrays travel apart from the policy's, under the same names, and change only when the mask is synced.

    Where `adapter` is given, the arrays are a LoRA adapter's own matrices by peft's names, to be used beside
    the weights that an engine began with, and it is peft's configuration of them. Else the arrays may be some
    of the parameters only: the others are as in the model's files.

    `push` names this one publication, where another may be based on it: a version may come twice, with other
    weights, when a run goes back to a checkpoint. Where `base` names an earlier one, what travels beside the
    manifest is what has changed since: nothing of a parameter that is the same, its `ChangedElements`, or all
    of its array. `checksum` is that of the arrays which these make (`checksum_of`). `num_bytes` counts what
    travels.

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


def checksum_of(arrays: Mapping[str, Any]) -> int:
    """CRC-32 of the arrays' bytes, by name: what the probe's tolerance may let pass, it does not.

    >>> checksum_of({"b": b"456789", "a": b"123"}) == 0xCBF43926
    True
    """
    found = 0
    for name in sorted(arrays):
        found = zlib.crc32(arrays[name], found)
    return found
