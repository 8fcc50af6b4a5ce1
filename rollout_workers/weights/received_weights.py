"""Keep the weights that a worker received, so that the next push may bring only changes.

    push 1   all arrays            kept as a copy in the host's memory, and loaded
    push 2   elements of some      written into the copy; their blocks are loaded from it

Engines join some layers of a block in one matrix (queries, keys and values), and replace it as a whole.
"""

from collections.abc import Mapping
from typing import cast

import numpy as np

from contracts.errors import WeightsError
from contracts.weights import ChangedElements, WeightManifest, checksum_of
from rollout_workers.engines.base import Array, Arrays

Pushed = Mapping[str, Array | ChangedElements]


class ReceivedWeights:
    """Weights that one worker received; kept only if pushes are based on earlier ones."""

    def __init__(self) -> None:
        self._push: str | None = None
        self._arrays: dict[str, Array] = {}

    def take(self, manifest: WeightManifest, pushed: Pushed) -> Arrays:
        """Take a push; return the arrays that the engine has to load.

        Raises:
            WeightsError: the push is based on one that did not arrive here, or its bytes differ from the
                learner's.
        """
        if manifest.base is None:
            self._push, self._arrays = manifest.push, {}
            if manifest.push is None:
                return cast(Arrays, pushed)
            self._lay(manifest, pushed)
            return self._arrays
        if manifest.base != self._push:
            raise WeightsError(
                f"version {manifest.version} came as changes to push {manifest.base}, but this worker has "
                f"{self._push or 'none'}; expected that push, or all of the weights"
            )
        self._push = None  # until all changes are written
        self._lay(manifest, pushed)
        self._push = manifest.push
        blocks = {block_of(name) for name in pushed}
        return {name: array for name, array in self._arrays.items() if block_of(name) in blocks}

    def _lay(self, manifest: WeightManifest, pushed: Pushed) -> None:
        for name, sent in pushed.items():
            if isinstance(sent, ChangedElements):
                self._arrays[name].reshape(-1)[sent.indices] = sent.values
            else:
                self._arrays[name] = np.array(sent)
        checksum = checksum_of({name: self._arrays[name] for name in pushed})
        if manifest.checksum not in (None, checksum):
            raise WeightsError(
                f"version {manifest.version} arrived wrong: the bytes of {len(pushed)} parameters have the "
                f"checksum {checksum:08x}, but the learner's is {manifest.checksum:08x}"
            )


def block_of(name: str) -> str:
    """Return the block with which a parameter is loaded: its name up to the first number, or its layer.

    >>> block_of("model.layers.3.self_attn.q_proj.weight"), block_of("model.layers.3.mlp.experts.1.up.weight")
    ('model.layers.3', 'model.layers.3')
    >>> block_of("model.norm.weight")
    'model.norm'
    """
    parts = name.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdigit()), None)
    return ".".join(parts[:-1] if number is None else parts[: number + 1])
