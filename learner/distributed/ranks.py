"""Ranks: the processes of one learner, which meet, sum their results and shard the models' parameters.

Each rank is a whole `Learner`. All get the same rollouts, lay them into the same batch, and each computes on
its share of the sequences. A loss is divided by the whole minibatch's tokens, so the ranks' gradients and
metrics are summed, never averaged.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from contracts.network.loopback import joins_nodes, stay_on_loopback
from learner.distributed.rendezvous import TCP, Rendezvous
from learner.distributed.sharding import sharded
from learner.settings import LearnerSettings

CPU = torch.device("cpu")
FILE = "file://"
LOOPBACK = "127.0.0.1"


class Ranks:
    """All ranks, seen from one of them. A single rank holds everything and sends nothing.

    Args:
        keeps_gradients: keep a minibatch's gradients whole on each rank, and sum them once, after its last
            micro-batch. Otherwise ranks sum them after each micro-batch, and keep their rows.
        offloads: keep the rows of sharded models in the host's memory; this also works with a single rank.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        device: torch.device = CPU,
        *,
        keeps_gradients: bool = False,
        offloads: bool = False,
    ) -> None:
        self.rank, self.size, self.device = rank, size, device
        self._keeps_gradients, self._offloads = keeps_gradients, offloads
        self._roots: list[Any] = []

    @property
    def shards(self) -> bool:
        """Return whether models can be sharded, over several ranks or between the host and one GPU."""
        return self.size > 1 or self._offloads

    @property
    def is_first(self) -> bool:
        """Return whether this is the first rank, whose results the learner returns."""
        return self.rank == 0

    @torch.no_grad()
    def sum(self, *tensors: Tensor) -> None:
        """Replace each tensor, in place, by its sum over all ranks."""
        for tensor in tensors if self.size > 1 else ():
            dist.all_reduce(tensor)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum the gradients of parameters that each rank has whole; FSDP2 sums those of rows."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        self.sum(*(gradient for gradient in gradients if not isinstance(gradient, DTensor)))

    @torch.no_grad()
    def copy_first(self, tensor: Tensor) -> None:
        """Replace the tensor, of any shape, in place by the first rank's tensor."""
        if self.size > 1:
            dist.broadcast(tensor, src=0)

    def total(self, shares: Mapping[str, float]) -> dict[str, float]:
        """Return each name's sum over ranks, or its maximum if it ends in /max; ranks give the same names."""
        if self.size == 1:
            return dict(shares)
        largest = sorted(name for name in shares if name.endswith("/max"))
        summed = sorted(shares.keys() - set(largest))
        values: dict[str, float] = {}
        for names, operation in ((summed, dist.ReduceOp.SUM), (largest, dist.ReduceOp.MAX)):
            if names:
                own_shares = [shares[name] for name in names]
                reduced = torch.tensor(own_shares, dtype=torch.float64, device=self.device)
                dist.all_reduce(reduced, operation)
                values |= dict(zip(names, reduced.tolist(), strict=True))
        return {name: values[name] for name in shares}

    def shard(self, module: nn.Module, *, in_bfloat16: bool) -> None:
        """Keep only this rank's rows of the module's parameters; see `learner/distributed/sharding.py`."""
        root = sharded(module, self.size, self.device, in_bfloat16=in_bfloat16, offload=self._offloads)
        self._roots.append(root)

    def gather(self, *, is_last: bool = True) -> None:
        """Gather the parameters outside of transformer blocks; they stay until a backward pass or `release`.

        Args:
            is_last: whether the next pass is the last of a minibatch; kept gradients are summed only then.
        """
        for root in self._roots:
            root.set_requires_gradient_sync(is_last or not self._keeps_gradients)
            root()

    def release(self) -> None:
        for root in self._roots:
            root.reset_iter_state()  # acts as `reshard`, and forgets which blocks ran

    @contextlib.contextmanager
    def at_hand(self) -> Iterator[None]:
        """Gather parameters inside the context, each block's when it runs; no backward pass may follow."""
        self.gather()
        try:
            yield
        finally:
            self.release()

    def leave(self) -> None:
        """Close the connections to the other ranks."""
        self._roots.clear()
        if self.size > 1:
            dist.barrier()  # another rank may still receive from this one
        if self.shards:
            dist.destroy_process_group()


ALONE = Ranks()


def join(rendezvous: Rendezvous | None, device: torch.device, settings: LearnerSettings) -> Ranks:
    """Wait at most `progress_timeout_s` for the other ranks; without a rendezvous this rank is alone."""
    if rendezvous is None or rendezvous.size == 1:
        if settings.offload:
            if not joins_nodes():  # weights may go to another node over NCCL
                stay_on_loopback()
            _begin(dist.HashStore(), 0, 1, device, settings)
        return Ranks(device=device, offloads=settings.offload)
    if rendezvous.address.startswith((FILE, f"{TCP}{LOOPBACK}:")):
        stay_on_loopback()
    patience = timedelta(seconds=settings.progress_timeout_s)
    _begin(_store(rendezvous, patience), rendezvous.rank, rendezvous.size, device, settings)
    keeps = settings.sum_gradients == "minibatch"
    return Ranks(rendezvous.rank, rendezvous.size, device, keeps_gradients=keeps, offloads=settings.offload)


def _begin(store: dist.Store, rank: int, size: int, device: torch.device, settings: LearnerSettings) -> None:
    """Join the group of all ranks; NCCL sends GPU memory, gloo the host's."""
    on_gpu = "cpu:gloo,cuda:nccl" if settings.offload else "nccl"
    dist.init_process_group(
        on_gpu if device.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=settings.progress_timeout_s),
    )


def _store(rendezvous: Rendezvous, patience: timedelta) -> dist.Store:
    if rendezvous.address.startswith(FILE):
        return dist.FileStore(rendezvous.address.removeprefix(FILE), rendezvous.size)
    host, _, port = rendezvous.address.removeprefix(TCP).rpartition(":")
    return dist.TCPStore(host, int(port), is_master=False, timeout=patience)
