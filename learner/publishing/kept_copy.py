"""Keep a copy of the weights that were sent last, for workers that took no part, beside the sending.

    send ─▶ tensor ─▶ workers                  the push waits for this
               └─▶ queue ─▶ thread ─▶ buffer   and not for this: the buffer is used again at every push

The buffer lies in the host's memory, apart from the parameters: a worker may ask for all weights while an
update changes them. Fresh memory would cost more than the copy: the system hands it out page by page.
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

AHEAD = 4  # tensors that wait to be copied and lie nowhere else: each takes memory
Item = tuple[str, Tensor, bool, torch.cuda.Event | None]


class KeptCopy:
    """Copy of the last weights that were sent whole, with their manifest."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._layout = Layout({}, 0)
        self._manifest: WeightManifest | None = None  # None: not all of it is copied
        self._thread: threading.Thread | None = None
        self._waiting: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(AHEAD)
        self._reading = threading.Lock()  # held while the buffer is read for a late worker, or laid out anew
        self._failed: Exception | None = None
        self._complete: WeightManifest | None = None
        self._is_ending = False  # all tensors were put

    def begin(self, manifest: WeightManifest) -> None:
        """Forget what was kept, which must not be taken for what is announced now."""
        with contextlib.suppress(LearnerError):
            self.settle()
        assert manifest.shapes is not None, "expected the manifest of a broadcast"
        self._thread, self._failed, self._is_ending = None, None, False
        with self._reading:
            self._manifest = None
            self._layout = layout(manifest.dtypes, manifest.shapes)

    def put(self, name: str, tensor: Tensor, *, is_staged: bool = False) -> None:
        """Let the thread copy a tensor, which must stay as it is until `settle`.

        Args:
            is_staged: whether its memory is kept anyway; otherwise a few may wait.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._copy, name="keeps weights", daemon=True)
            self._thread.start()
        if not is_staged:
            self._room.acquire()
        # A link may cast and pack on streams of its own, for which the thread's stream does not wait.
        written = torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None
        self._waiting.put((name, tensor, is_staged, written))

    def finish(self, manifest: WeightManifest | None) -> None:
        """End a copy whose tensors were all put; None: they were not, so it is of no use."""
        self._complete, self._is_ending = manifest, True
        if self._thread is not None:
            self._waiting.put(None)

    def settle(self) -> None:
        """Wait until all that was put is copied; the tensors may change from then on.

        Raises:
            LearnerError: a tensor could not be copied.
        """
        thread = self._thread  # another caller may begin the next copy meanwhile
        if thread is not None and self._is_ending:
            thread.join()
        if self._failed is not None:
            raise LearnerError(f"the weights that were sent could not be kept: {self._failed}")

    def whole(self) -> tuple[WeightManifest, dict[str, Array]]:
        """Return the manifest and copies of all arrays of the last weights that were sent.

        Raises:
            LearnerError: nothing was sent, or a push is under way.
        """
        self.settle()
        with self._reading:
            if self._manifest is None:
                raise LearnerError(
                    "all weights were asked for, and none are published; expected a publication first"
                )
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
            except Exception as error:  # a thread's exception would vanish: `settle` raises it
                self._failed = error
            del item, tensor  # its memory may be needed
            if not is_staged:
                self._room.release()
        if self._failed is None:
            self._manifest = self._complete

    def _large_enough(self) -> Tensor:
        """Return the buffer, made anew where it is too small; pinned beside a GPU, which then copies fast."""
        if self._buffer.numel() < self._layout.num_bytes:
            self._buffer = torch.empty(0, dtype=torch.uint8)  # give the old one's memory back first
            self._buffer = _fresh(self._layout.num_bytes)
        return self._buffer


def _fresh(num_bytes: int) -> Tensor:
    if torch.cuda.is_available():
        with contextlib.suppress(RuntimeError):  # the system pins no more: copies are slower then
            return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    return torch.empty(num_bytes, dtype=torch.uint8)
