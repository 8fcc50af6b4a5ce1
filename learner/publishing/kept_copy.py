"""Keep a copy of the last broadcast weights for workers that missed it, while the sending goes on.

    send ─▶ tensor ─▶ workers                  the push waits for this
               └─▶ queue ─▶ thread ─▶ buffer   and not for this: the buffer is used again at every push

The buffer lies in the host's memory, apart from the parameters, because a worker may ask for all weights
while an update changes them. Fresh memory would cost more than the copy, because the system provides it page
by page.
"""

import contextlib
import queue
import threading

import torch
from torch import Tensor

from contracts.errors import LearnerError
from contracts.network.flat_buffer import Layout, layout
from contracts.weights import WeightManifest
from learner.publishing.changed_elements import Array
from learner.publishing.weight_publisher import as_array

AHEAD = 4  # tensors on the way to the buffer; each takes memory
Item = tuple[str, Tensor, bool, torch.cuda.Event | None]


class KeptCopy:
    """Copy of the last weights that were sent whole, with their manifest."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._layout = Layout({}, 0)
        self._manifest: WeightManifest | None = None  # None: the copy is incomplete
        self._thread: threading.Thread | None = None
        self._waiting: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(AHEAD)
        self._reading = threading.Lock()  # while a late worker reads the buffer, or its layout changes
        self._failed: Exception | None = None
        self._complete: WeightManifest | None = None
        self._is_ending = False  # all tensors were put

    def begin(self, manifest: WeightManifest) -> None:
        """Forget the kept copy, so that it is not taken for the newly announced weights."""
        with contextlib.suppress(LearnerError):
            self.settle()
        assert manifest.shapes is not None, "expected the manifest of a broadcast"
        self._thread, self._failed, self._is_ending = None, None, False
        with self._reading:
            self._manifest = None
            self._layout = layout(manifest.dtypes, manifest.shapes)

    def put(self, name: str, tensor: Tensor, *, is_staged: bool = False) -> None:
        """Let the thread copy a tensor, which must not change until `settle`.

        Args:
            is_staged: whether its memory is kept anyway; the number of other waiting tensors is limited.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._copy, name="keeps weights", daemon=True)
            self._thread.start()
        if not is_staged:
            self._room.acquire()
        # A link may cast and pack on other streams, for which the thread's stream does not wait.
        written = torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None
        self._waiting.put((name, tensor, is_staged, written))

    def finish(self, manifest: WeightManifest | None) -> None:
        """End a copy to which all tensors were put; None: some are missing, so it is useless."""
        self._complete, self._is_ending = manifest, True
        if self._thread is not None:
            self._waiting.put(None)

    def settle(self) -> None:
        """Wait until all put tensors are copied; they may change from then on.

        Raises:
            LearnerError: a tensor could not be copied.
        """
        thread = self._thread  # another caller may begin the next copy meanwhile
        if thread is not None and self._is_ending:
            thread.join()
        if self._failed is not None:
            raise LearnerError(f"the weights that were sent could not be kept: {self._failed}")

    def whole(self) -> tuple[WeightManifest, dict[str, Array]]:
        """Return the manifest and copies of all arrays of the last broadcast.

        Raises:
            LearnerError: nothing was sent, or a push is in progress.
        """
        self.settle()
        with self._reading:
            if self._manifest is None:
                raise LearnerError("all weights were requested before any were published; publish first")
            views = self._layout.views(self._buffer)
            return self._manifest, {name: as_array(view).copy() for name, view in views.items()}

    def _copy(self) -> None:
        views: dict[str, Tensor] = {}
        while (item := self._waiting.get()) is not None:
            name, tensor, is_staged, written = item
            try:
                if written is not None:
                    written.synchronize()
                if not views:
                    views = self._layout.views(self._large_enough())
                if self._failed is None:
                    views[name].copy_(tensor)
            except Exception as error:  # a thread's exception would vanish, so `settle` raises it
                self._failed = error
            del item, tensor  # frees memory
            if not is_staged:
                self._room.release()
        if self._failed is None:
            self._manifest = self._complete

    def _large_enough(self) -> Tensor:
        """Return the buffer, enlarged if needed; with a GPU it is pinned, so that copies are fast."""
        if self._buffer.numel() < self._layout.num_bytes:
            self._buffer = torch.empty(0, dtype=torch.uint8)  # first free the old one's memory
            self._buffer = _fresh(self._layout.num_bytes)
        return self._buffer


def _fresh(num_bytes: int) -> Tensor:
    if torch.cuda.is_available():
        with contextlib.suppress(RuntimeError):  # the system pins no more memory, so copies are slower
            return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    return torch.empty(num_bytes, dtype=torch.uint8)
