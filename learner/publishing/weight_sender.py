"""Send one learner process's weights to a group of workers, and keep a copy for workers that miss it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from contracts.errors import LearnerError
from contracts.network.flat_buffer import layout
from contracts.weights import WeightGroup, WeightManifest
from learner.publishing.changed_elements import Array
from learner.publishing.kept_copy import KeptCopy
from learner.publishing.weight_links import LINKS, Handles, IpcLink, Link, NcclLink
from learner.publishing.weight_publisher import announce, wire_tensors

if TYPE_CHECKING:
    from learner.learner import Learner

BEFORE = 0, 1  # (done, total)


class WeightSender:
    """Sender of a learner's weights; every rank has one. The first rank sends to all workers.

    The copy lies in the host's memory, because an update changes the weights while workers may join.
    """

    def __init__(self, learner: "Learner") -> None:
        self._learner, self._kept = learner, KeptCopy()
        self._link: Link | None = None
        self._manifest: WeightManifest | None = None
        self._engine_dtype = ""
        self.progress = BEFORE

    def announce(self, engine_dtype: str) -> WeightManifest:
        """Return the manifest of the weights that `send` will send."""
        learner, self._engine_dtype = self._learner, engine_dtype
        mask_version = None if learner.mask is None else learner.mask_version
        made = announce(
            learner.pair.lm,
            learner.version,
            engine_dtype,
            mask_version,
            learner.ranks,
            learner.probing(engine_dtype),
        )
        self._manifest = made
        self._kept.begin(made)  # the old copy must not be taken for these weights
        return made

    def new_address(self, transport: str) -> str:
        """Return the address of a new group that meets at this process."""
        return NcclLink.new_id() if transport == "nccl" else ""

    def join(self, group: WeightGroup) -> str | None:
        """Join a group, and leave the old one; return why that failed, or None."""
        self._leave()
        if not self._learner.ranks.is_first and group.transport != "ipc":
            return None
        try:
            self._link = LINKS[group.transport](group)
        except RuntimeError as error:
            return str(error)
        return None

    def send(self) -> tuple[Handles, str | None]:
        """Send what was announced; return handles for workers, and why the broadcast broke off, or None.

        Ranks of one learner gather each tensor together, so all of them continue to the end.

        Raises:
            LearnerError: not all tensors could be gathered.
        """
        assert self._manifest is not None, "weights have to be announced first"
        tensors, handles, broken = self._gathered(self._manifest), Handles(), None
        try:
            if self._link is not None:
                laid = layout(self._manifest.dtypes, self._manifest.shapes or {})
                handles = self._link.send(tensors, laid)
        except RuntimeError as error:
            broken = str(error)
        try:
            if broken:  # members that wait for this process notice
                self._leave()
        finally:
            try:
                for _ in tensors:
                    pass
            finally:
                is_whole = self.progress[0] == len(self._manifest.dtypes)
                self._kept.finish(self._manifest if is_whole else None)
        done, total = self.progress
        self.progress = BEFORE
        if done < total:
            raise LearnerError(f"{done} of {total} tensors were gathered: {broken}")
        return handles, broken

    def keep(self) -> None:
        """Keep what was announced without sending it; workers that could not join load it as arrays."""
        self._leave()
        self.send()
        self.release()

    def release(self) -> None:
        """Free memory that is no longer read, because a worker on the same GPU needs it.

        Raises:
            LearnerError: the sent weights could not be kept.
        """
        self._kept.settle()
        if self._link is not None:
            self._link.release()
        self._learner.leave_room()

    def _leave(self) -> None:
        if self._link is not None:
            link, self._link = self._link, None
            link.leave()

    def whole(self) -> tuple[WeightManifest, dict[str, Array]]:
        """Return all that was sent last, even while an update changes the weights."""
        return self._kept.whole()

    def _gathered(self, manifest: WeightManifest) -> Iterator[tuple[str, Tensor]]:
        total, is_first = len(manifest.dtypes), self._learner.ranks.is_first
        for index, (name, tensor) in enumerate(wire_tensors(self._learner.pair.lm, self._engine_dtype)):
            self.progress = index, total
            yield name, tensor
            if is_first:  # sent; memory that a link has staged does not change
                staged = self._link.staged.get(name) if isinstance(self._link, IpcLink) else None
                self._kept.put(name, tensor if staged is None else staged, is_staged=staged is not None)
        self.progress = total, total
