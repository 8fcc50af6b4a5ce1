"""The model of `whetstone serve-model`, and its address."""

import socket
from dataclasses import dataclass
from typing import Any

from contracts.network.access import digest
from contracts.network.http_guard import guarded
from contracts.rollout import Sampling
from rollout_workers.gateway.server import MOST_BYTES
from services.inference.generation.run_model import RunModel


@dataclass(frozen=True, slots=True)
class Served:
    """A model to serve.

    Example: `Served(find_model("runs/demo"), Sampling(max_tokens=20), "demo", listener, token=None,
    seed=None, tool_parser="hermes")`
    """

    model: RunModel
    sampling: Sampling  # default of calls
    name: str
    listener: socket.socket
    token: str | None  # required of callers; None: local callers only
    seed: int | None  # default of calls; None: a new one each time
    tool_parser: str  # parser of calls that offer tools

    def guarded(self, app: Any) -> Any:
        """Return the application behind the guard."""
        key = None if self.token is None else digest(self.token)
        host = self.listener.getsockname()[0]
        return guarded(app, host, key, most_bytes=MOST_BYTES, remedy="send a shorter conversation")

    def announce(self) -> None:
        """Print the model's address."""
        host, port = self.listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
        key = "the token as api_key" if self.token else "any api_key"
        print(f"{self.name} answers at {address} (base_url), with {key}. Ctrl-C ends it.", flush=True)
