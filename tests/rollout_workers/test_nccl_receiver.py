"""vLLM's own NCCL engine in a worker, with a double of the communicator: groups end, and memory is free."""

import base64
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from contracts.weights import Probe, WeightGroup, WeightManifest
from rollout_workers.weights.weight_transfer import WeightReceiver

pytestmark = pytest.mark.vllm
GROUP = WeightGroup("nccl", base64.b64encode(bytes(128)).decode(), 2, 60.0)
NONE = WeightManifest(1, {}, 0, Probe((), (), 0.1), shapes={})


class Communicator:
    def __init__(self) -> None:
        self.is_open = True

    def destroy(self) -> None:
        self.is_open = False


class Model(nn.Module):
    def load_weights(self, weights: Any) -> None:
        """Never be called: nothing comes."""


class Executor:
    """vLLM's executor of one worker, whose class is vLLM's; it has no engine and says that it is on a GPU."""

    def __init__(self) -> None:
        from vllm.config import VllmConfig
        from vllm.v1.worker.gpu_worker import Worker

        self.worker: Any = Worker.__new__(Worker)
        self.worker.vllm_config = VllmConfig()
        self.worker.vllm_config.model_config = None
        self.worker.device = torch.device("cuda", 0)
        self.worker.weight_transfer_engine, self.worker._weight_update_active = None, False
        model = Model()
        self.worker.model_runner = SimpleNamespace(get_model=lambda: model, reset_lora_state=lambda: None)

    def collective_rpc(self, method: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
        return [method(self.worker, *args)]


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[Communicator]:
    """The groups that workers join, in order."""
    joined: list[Communicator] = []

    def join(*_: Any) -> Communicator:
        joined.append(Communicator())
        return joined[-1]

    engine = "vllm.distributed.weight_transfer.nccl_engine"
    monkeypatch.setattr(f"{engine}.worker_init_process_group", join)
    monkeypatch.setattr(f"{engine}.packed_nccl_broadcast_consumer", lambda **_: None)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    return joined


@pytest.fixture
def emptied(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    calls: list[bool] = []
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: calls.append(True))
    return calls


def test_a_group_ends_when_another_is_joined(groups: list[Communicator], emptied: list[bool]) -> None:
    receiver = WeightReceiver(Executor())
    assert [receiver.join(GROUP, 1) for _ in range(3)] == [None] * 3
    assert [group.is_open for group in groups] == [False, False, True]


def test_a_group_ends_when_a_broadcast_breaks_off(
    groups: list[Communicator], emptied: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(**_: Any) -> None:
        raise RuntimeError("NCCL error: remote process exited")

    where = "vllm.distributed.weight_transfer.nccl_engine.packed_nccl_broadcast_consumer"
    monkeypatch.setattr(where, breaks)
    receiver = WeightReceiver(Executor())
    receiver.join(GROUP, 1)
    assert receiver.receive(NONE, {}) == "NCCL error: remote process exited"
    assert [group.is_open for group in groups] == [False]


def test_buffers_of_received_weights_are_given_back(groups: list[Communicator], emptied: list[bool]) -> None:
    """Keys and values wake next, or a learner computes on the same GPU."""
    receiver = WeightReceiver(Executor())
    receiver.join(GROUP, 1)
    assert receiver.receive(NONE, {}) is None
    assert emptied == [True]
