"""The learner's side of NCCL with doubles of CUDA and of the communicator; vLLM's packing is real."""

import base64
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.network.flat_buffer import Layout
from contracts.network.loopback import JOINS_NODES, NCCL
from contracts.weights import WeightGroup
from learner.publishing.weight_links import NcclLink
from tests.learner.cuda_double import Cuda

pytestmark = pytest.mark.vllm
GROUP = WeightGroup("nccl", base64.b64encode(bytes(128)).decode(), 2, 60.0)


class Communicator:
    """Double of vLLM's: it asks for a stream as that does, and notes what is sent."""

    def __init__(self, *_: Any) -> None:
        from vllm.utils.torch_utils import current_stream

        current_stream()
        self.sent: list[Tensor] = []
        self.is_open = True

    def broadcast(self, packed: Tensor, src: int) -> None:
        assert self.is_open and src == 0
        self.sent.append(packed)

    def destroy(self) -> None:
        self.is_open = False


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    from vllm.distributed.weight_transfer.packed_tensor import _get_streams

    monkeypatch.setattr("vllm.distributed.weight_transfer.nccl_common.uid_init_process_group", Communicator)
    yield Cuda(monkeypatch)
    _get_streams.cache_clear()


def test_weights_are_packed_when_the_stream_that_writes_them_has_ended(cuda: Cuda) -> None:
    """vLLM packs on streams of its own, which wait for no other."""
    link = NcclLink(GROUP)
    cuda.default.write()  # an update's last step

    def gathered() -> Iterator[tuple[str, Tensor]]:
        assert not cuda.default.is_busy
        yield "weight", torch.tensor([1.0, 2.0])

    link.send(gathered(), Layout({}, 0))
    (packed,) = link._joined.sent
    assert packed.view(torch.float32).tolist() == [1.0, 2.0]


def test_a_thread_that_joins_and_sends_stays_on_the_stream_of_all_others(cuda: Cuda) -> None:
    """vLLM moves a thread that it does not know to a new stream; another's update would run beside it."""
    link = NcclLink(GROUP)
    assert torch.cuda.current_stream() is cuda.default  # type: ignore[comparison-overlap]
    link.send(iter([("weight", torch.ones(2))]), Layout({}, 0))
    assert torch.cuda.current_stream() is cuda.default  # type: ignore[comparison-overlap]


def test_the_memory_of_a_push_is_given_back(cuda: Cuda) -> None:
    """Two buffers of a gigabyte on streams that nothing else uses."""
    link = NcclLink(GROUP)
    link.send(iter([("weight", torch.ones(2))]), Layout({}, 0))
    link.release()
    assert cuda.num_emptied == 1


def test_who_leaves_a_group_ends_it(cuda: Cuda) -> None:
    link = NcclLink(GROUP)
    link.leave()
    assert not link._joined.is_open


@pytest.mark.parametrize(("environment", "expected"), [({}, True), ({JOINS_NODES: "1"}, False)])
def test_members_meet_on_loopback_unless_the_run_has_joined_a_cluster(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: bool
) -> None:
    """NCCL listens as soon as it makes an id, and by default on the first interface that is not loopback."""
    seen: list[str | None] = []

    class Library:
        def ncclGetUniqueId(self) -> Any:
            from vllm.distributed.device_communicators.pynccl_wrapper import ncclUniqueId

            seen.append(os.environ.get(NCCL))
            return ncclUniqueId()

    where = "vllm.distributed.device_communicators.pynccl_wrapper.NCCLLibrary"
    monkeypatch.setattr(where, Library)
    monkeypatch.setattr(os, "environ", environment)
    assert NcclLink.new_id() == base64.b64encode(bytes(128)).decode()
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    assert seen == [loopback if expected else None]
