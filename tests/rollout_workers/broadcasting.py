"""A learner in the test's own process that broadcasts to a fleet, in a thread."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from contracts.clients import PublishedWeights
from contracts.weights import WeightGroup
from learner.distributed.rendezvous import MeetingPoint
from learner.publishing.weight_sender import WeightSender


class InThread:
    def __init__(self, sender: WeightSender) -> None:
        self._sender, self._pool = sender, ThreadPoolExecutor(max_workers=1)
        self._point: MeetingPoint | None = None
        self._call: Future[Any] = Future()
        self.group: WeightGroup | None = None

    def published(self) -> PublishedWeights:
        return PublishedWeights(self._sender.announce("float32"), None, None, self.whole, self)

    def whole(self) -> PublishedWeights:
        return PublishedWeights(*self._sender.whole())

    def open(self, num_receivers: int) -> WeightGroup:
        self._point = MeetingPoint("127.0.0.1", num_receivers + 1)
        self.group = WeightGroup("gloo", self._point.address, num_receivers + 1, 60.0)
        self._call = self._pool.submit(self._sender.join, self.group)
        return self.group

    def has_joined(self) -> str | None:
        joined: str | None = self._call.result()
        return joined

    def send(self) -> Mapping[str, Any]:
        self._call = self._pool.submit(self._sender.send)
        return {}

    def has_sent(self) -> str | None:
        _, broken = self._call.result()
        return str(broken) if broken else None

    def keep(self) -> None:
        self.group = None
        self._sender.keep()

    def release(self) -> None:
        self._sender.release()
