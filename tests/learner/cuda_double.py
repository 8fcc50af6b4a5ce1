"""A double of CUDA's streams on a CPU: which stream a thread is on, and whether it has ended its work."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch


class Stream:
    """Stream whose work is unfinished from `write` until somebody waits for it."""

    cuda_stream = 0

    def __init__(self, device: Any = None) -> None:
        self.is_busy = False

    def write(self) -> None:
        self.is_busy = True

    def synchronize(self) -> None:
        self.is_busy = False

    def wait_stream(self, other: "Stream") -> None:
        """Wait on the GPU alone: the processor does not know when."""


class Cuda:
    """`torch.cuda` as to streams and the allocator's cache; each thread begins on the default stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from vllm.utils import torch_utils

        self.default, self._own = Stream(), threading.local()
        self.num_emptied = 0  # times that the cache was given back
        self.inner_set_stream = lambda stream: setattr(self._own, "stream", stream)
        for name in ("Stream", "current_stream", "stream", "empty_cache"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, f"_{name}"))
        monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
        # vLLM's own `set_stream` and `current_stream` run, on these streams.
        monkeypatch.setattr(torch.cuda, "set_stream", torch_utils._patched_set_stream)
        monkeypatch.setattr(torch_utils, "prev_set_stream", self.inner_set_stream)
        monkeypatch.setattr(torch_utils, "_current_stream_tls", threading.local())
        monkeypatch.setattr("vllm.platforms.current_platform.is_cuda", lambda: True)

    _Stream = Stream

    def _current_stream(self) -> Stream:
        stream: Stream = getattr(self._own, "stream", self.default)
        return stream

    @contextlib.contextmanager
    def _stream(self, stream: Stream) -> Iterator[None]:
        before = torch.cuda.current_stream()
        torch.cuda.set_stream(stream)  # type: ignore[arg-type]
        yield
        torch.cuda.set_stream(before)

    def _empty_cache(self) -> None:
        self.num_emptied += 1
