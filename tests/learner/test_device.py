"""Which device a learner computes on, and that each thread that calls it computes there."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from learner.actors.process import LearnerProcess

SECOND = torch.device("cuda", 1)
CALLS: dict[str, Callable[[LearnerProcess], Any]] = {
    "update": lambda process: process.update([]),
    "publish": lambda process: process.publish("float32"),
    "publish_mask": lambda process: process.publish_mask("float32"),
    "published_whole": lambda process: process.published_whole(),
    "save": lambda process: process.save("folder"),
    "load": lambda process: process.load("folder"),
    "export": lambda process: process.export("folder"),
}


@pytest.mark.parametrize("call", CALLS)
def test_whichever_thread_calls_the_learners_gpu_is_that_threads_own(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """CUDA gives a new thread the first GPU; this machine may have none, so its calls are noted."""
    current: dict[int, torch.device] = {}
    found: list[torch.device | None] = []
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda device: current.__setitem__(threading.get_ident(), device)
    )

    def note(*_: Any) -> Any:
        found.append(current.get(threading.get_ident()))

    monkeypatch.setattr("learner.actors.process.guard_process", lambda: None)
    told: Any = SimpleNamespace(device=SECOND, **dict.fromkeys(CALLS, note))
    process = LearnerProcess(lambda: told)
    for work in (process.start, lambda: CALLS[call](process)):
        with ThreadPoolExecutor(1) as thread:  # a new one each time
            thread.submit(work).result()
    assert found == [SECOND]


def test_a_learner_on_a_cpu_needs_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    from learner.distributed.device import enter

    monkeypatch.setattr(torch.cuda, "set_device", lambda _: pytest.fail("there is no GPU"))
    enter(torch.device("cpu"))
