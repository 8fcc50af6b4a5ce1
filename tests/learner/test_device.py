"""A learner's device, and that each calling thread computes there."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from learner.actors.process import LearnerProcess
from learner.distributed.device import enter, pick_device
from learner.distributed.rendezvous import Rendezvous
from learner.settings import LearnerSettings

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
    devices: list[torch.device | None] = []
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda device: current.__setitem__(threading.get_ident(), device)
    )
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", lambda _: None)

    def note(*_: Any) -> Any:
        devices.append(current.get(threading.get_ident()))

    monkeypatch.setattr("learner.actors.process.guard_process", lambda: None)
    learner: Any = SimpleNamespace(
        device=SECOND, compiled=SimpleNamespace(failure=None), **dict.fromkeys(CALLS, note)
    )
    process = LearnerProcess(lambda: learner)
    for work in (process.start, lambda: CALLS[call](process)):
        with ThreadPoolExecutor(1) as thread:  # a new one each time
            thread.submit(work).result()
    assert devices == [SECOND]


@pytest.mark.parametrize(
    ("rendezvous", "index"),
    [(None, 0), (Rendezvous(0, 4, ""), 0), (Rendezvous(1, 4, ""), 1), (Rendezvous(3, 4, ""), 1)],
)
def test_torch_makes_the_learners_gpu_the_current_one(
    monkeypatch: pytest.MonkeyPatch, rendezvous: Rendezvous | None, index: int
) -> None:
    """Torch refuses a GPU without an index, and a lone learner ended at its start; here two are visible."""
    made_current: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch._C, "_cuda_setDevice", made_current.append, raising=False)
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", lambda _: None)
    enter(pick_device(LearnerSettings(), rendezvous))
    assert made_current == [index]


@pytest.mark.parametrize(("device", "left"), [(SECOND, False), (torch.device("cpu"), True)])
def test_a_gpu_builds_no_attention_plan_for_each_new_shape(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, left: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        enter(device)
        assert torch.backends.cuda.cudnn_sdp_enabled() == left
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def test_a_learner_on_a_cpu_needs_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: pytest.fail("there is no GPU"))
    enter(torch.device("cpu"))
