"""A gateway over a tiny chat model in this process, and a record of the engine's requests."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from openai import OpenAI

from contracts.conversations.chat_settings import ChatForm
from contracts.rollout import FinishReason, Lease, Prompt, Rollout, Sampling
from rollout_workers.engines.base import Generation, Request
from rollout_workers.engines.transformers_engine import TransformersEngine
from rollout_workers.environments.program import Program
from rollout_workers.gateway.engine_calls import EngineCalls
from rollout_workers.gateway.episode_door import EpisodeDoor
from rollout_workers.gateway.reading import Reader
from rollout_workers.gateway.server import Gateway
from rollout_workers.gateway.serving import EngineThread, ModelDoor
from rollout_workers.settings import RolloutSettings

SETTINGS = RolloutSettings(max_tokens=8, max_concurrent=64, dtype="float32")


class Watched(TransformersEngine):
    """An engine that remembers what it was asked and what it drew."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), str(folder), None, SETTINGS)
        self.asked: dict[int, Request] = {}
        self.drawn: dict[int, Generation] = {}

    def add(self, request: Request) -> None:
        self.asked[request.id] = request
        super().add(request)

    def step(self) -> list[Generation]:
        finished = super().step()
        self.drawn |= {generation.request_id: generation for generation in finished}
        return finished


@dataclass
class Served:
    """A gateway; `door` opens a door for a lease, and `client` calls it."""

    folder: Path
    engine: Watched
    thread: EngineThread
    calls: EngineCalls
    gateway: Gateway
    address: str
    form: ChatForm | None = field(default_factory=ChatForm)
    parse: Any = None  # finds calls of tools

    def door(
        self,
        lease_id: int = 1,
        max_tokens: int = 8,
        form: ChatForm | None = None,
        partner: ModelDoor | None = None,
        **settings: Any,
    ) -> EpisodeDoor:
        from transformers import AutoTokenizer

        lease = Lease(lease_id, Prompt("p", ""), (1,), 1, 7, Sampling(max_tokens=max_tokens))
        reader = Reader(AutoTokenizer.from_pretrained(self.folder), form or self.form, self.parse)
        program = Program(command="none", **settings)
        return EpisodeDoor(lease, program, reader, self.calls, None, self.engine.window, partner)

    def client(self, door: Any) -> OpenAI:
        key = self.key(door)
        return OpenAI(base_url=self.address, api_key=key, max_retries=0)

    def key(self, door: Any) -> str:
        async def open_it() -> str:
            return self.gateway.open(door)

        return self.gateway.submit(open_it()).result(10)


def rollout_of(door: EpisodeDoor) -> Rollout:
    return Rollout(1, 1, door.lease.prompt, door.history.turns(), FinishReason.STOP)


@contextmanager
def serve(folder: Path) -> Iterator[Served]:
    calls, gateway = EngineCalls(), Gateway(most_bytes=2**20)
    thread = EngineThread(lambda: Watched(folder), calls)
    engine = thread.engine()
    assert isinstance(engine, Watched)
    yield Served(folder, engine, thread, calls, gateway, gateway.start())
    gateway.stop()
    thread.stop()


def connect(served: Served) -> socket.socket:
    place = urlsplit(served.address)
    return socket.create_connection((place.hostname, place.port), timeout=30)  # type: ignore[arg-type]


def head(path: str, key: str, length: int | None) -> bytes:
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n{size}\r\n\r\n".encode()
