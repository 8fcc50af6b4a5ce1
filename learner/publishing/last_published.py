"""Keep a copy of the last published weights, with which the next publication is compared.

The copy lies in the host's memory, apart from the parameters, because a worker may ask for the whole
publication while an update changes them.
"""

import secrets
from collections.abc import Iterable
from dataclasses import replace

from contracts.errors import LearnerError
from contracts.weights import WeightManifest, checksum_of
from learner.publishing.changed_elements import Array, Sent, changes, num_bytes


class LastPublished:
    """The last publication of one process. A new process must publish all weights first."""

    def __init__(self) -> None:
        self._process, self._count = secrets.token_hex(4), 0
        self._arrays: dict[str, Array] = {}
        self._base: str | None = None
        self._manifest: WeightManifest | None = None  # manifest of the whole publication

    def exchange(self, arrays: Iterable[tuple[str, Array]]) -> dict[str, Sent]:
        """Replace the copy by these arrays, one parameter at a time; the caller must not change them later.

        Returns:
            The changes since the last publication; at first all arrays.
        """
        # None until signed, because an interrupted publication is no base for changes.
        self._base, self._manifest = self._manifest.push if self._manifest else None, None
        sent: dict[str, Sent] = {}
        for name, array in arrays:
            changed = array if self._base is None else changes(self._arrays[name], array)
            self._arrays[name] = array
            if changed is not None:
                sent[name] = changed
        return sent

    def sign(self, manifest: WeightManifest, sent: dict[str, Sent]) -> WeightManifest:
        """Sign the exchanged arrays as a publication; return their manifest with the previous push."""
        self._count += 1
        push = f"{self._process}-{self._count}"
        total = sum(array.nbytes for array in self._arrays.values())
        checksum = checksum_of({name: self._arrays[name] for name in sent})
        self._manifest = replace(manifest, push=push, num_bytes=total)
        travels = sum(map(num_bytes, sent.values()))
        return replace(self._manifest, base=self._base, num_bytes=travels, checksum=checksum)

    def whole(self) -> tuple[WeightManifest, dict[str, Array]]:
        """Return the manifest and all arrays of the last publication, which need no earlier one.

        Raises:
            LearnerError: nothing is published, or a publication is in progress.
        """
        if self._manifest is None:
            raise LearnerError("all weights were requested before any were published; publish first")
        return self._manifest, dict(self._arrays)
