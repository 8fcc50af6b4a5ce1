"""The learner's own copy of what it published last: what the next publication is compared with.

It lies in the host's memory, apart from the parameters, which an update may be changing while a worker asks
for all that was published.
"""

import secrets
from collections.abc import Iterable
from dataclasses import replace

from contracts.errors import LearnerError
from contracts.weights import WeightManifest, checksum_of
from learner.changed_elements import Array, Sent, changes, num_bytes


class LastPublished:
    """Of one process: another one begins with a whole publication, under names of its own."""

    def __init__(self) -> None:
        self._process, self._count = secrets.token_hex(4), 0
        self._arrays: dict[str, Array] = {}
        self._base: str | None = None
        self._manifest: WeightManifest | None = None  # of the whole

    def exchange(self, arrays: Iterable[tuple[str, Array]]) -> dict[str, Sent]:
        """Keep these in the place of the old ones, a parameter at a time; nobody may change them any more.

        Returns:
            What has changed since; at first all of them.
        """
        # None until it is signed: what broke off half-way is nothing to compare with.
        self._base, self._manifest = self._manifest.push if self._manifest else None, None
        sent: dict[str, Sent] = {}
        for name, array in arrays:
            found = array if self._base is None else changes(self._arrays[name], array)
            self._arrays[name] = array
            if found is not None:
                sent[name] = found
        return sent

    def sign(self, manifest: WeightManifest, sent: dict[str, Sent]) -> WeightManifest:
        """The manifest of what was exchanged."""
        self._count += 1
        push = f"{self._process}-{self._count}"
        total = sum(array.nbytes for array in self._arrays.values())
        checksum = checksum_of({name: self._arrays[name] for name in sent})
        self._manifest = replace(manifest, push=push, num_bytes=total)
        travels = sum(map(num_bytes, sent.values()))
        return replace(self._manifest, base=self._base, num_bytes=travels, checksum=checksum)

    def whole(self) -> tuple[WeightManifest, dict[str, Array]]:
        """All of what was published last, based on nothing.

        Raises:
            LearnerError: nothing was, or it is being done now.
        """
        if self._manifest is None:
            raise LearnerError(
                "all weights were asked for, and none are published; expected a publication first"
            )
        return self._manifest, dict(self._arrays)
