"""The model that `whetstone serve-model` serves, and how callers reach it."""

import socket
from dataclasses import dataclass
from typing import Any

from contracts.network.access import digest
from contracts.network.http_guard import guarded
from contracts.rollout import Sampling
from rollout_workers.gateway.server import MOST_BYTES
from services.generation.run_model import RunModel


@dataclass(frozen=True, slots=True)
class Served:
    """A model to serve.

    Example: `Served(find_model("runs/demo"), Sampling(max_tokens=20), "demo", listener, token=None,
    seed=None, tool_parser="hermes")`
    """

    model: RunModel
    sampling: Sampling  # where a call says nothing
    name: str
    listener: socket.socket
    token: str | None  # that callers need; None: this machine's need none
    seed: int | None  # of calls that name none; None: a new one each time
    tool_parser: str  # of calls that offer tools

    def guarded(self, app: Any) -> Any:
        """Return the application behind the guard."""
        key = None if self.token is None else digest(self.token)
        host = self.listener.getsockname()[0]
        return guarded(app, host, key, most_bytes=MOST_BYTES, remedy="send a shorter conversation")

    def announce(self) -> None:
        """Say where the model answers."""
        host, port = self.listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
        asked = "the token as api_key" if self.token else "any api_key"
        print(f"{self.name} answers at {address} (base_url), with {asked}. Ctrl-C ends it.", flush=True)
