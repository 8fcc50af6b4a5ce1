"""One session of an OpenEnv server over its WebSocket: reset and step, each with a deadline.

    {"type": "reset", "data": {"seed": 3}}   ─▶   {"type": "observation", "data": {"observation": {…},
    {"type": "step", "data": {…action…}}              "reward": 0.5, "done": false}}
                                             or   {"type": "error", "data": {"message": …, "code": …}}

Source: `openenv/core/env_server/{http_server,types}.py` of openenv-core 0.3.0 and openenv 0.10.0. A
    connection is a session with a separate environment, which ends with the connection.
"""

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import process_exception
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI, WebSocketException
from websockets.protocol import State
from websockets.sync.client import ClientConnection, connect

from contracts.errors import EpisodeError, InputError
from contracts.network.bounded_answers import MOST_BYTES
from rollout_workers.tools.env_servers import is_near, looked_up

RETRY_S = 0.2
INVALID, FULL = "VALIDATION_ERROR", "CAPACITY_REACHED"


@dataclass(frozen=True, slots=True)
class Answer:
    """The server's answer to a reset or a step; `is_invalid`: the server refused the step's action."""

    observation: Mapping[str, Any] = field(default_factory=dict)
    reward: float = 0.0
    is_done: bool = False
    is_invalid: bool = False


def action_schema(url: str, timeout_s: float) -> Mapping[str, Any]:
    """Return the JSON schema of the server's actions.

    Raises:
        InputError: no OpenEnv server answers.
    """
    answer = looked_up(url, "/schema", "OpenEnv", timeout_s)
    if not isinstance(answer, Mapping) or "action" not in answer:
        raise InputError(f"environment.url={url}: {url}/schema has no action; expected an OpenEnv server")
    schema = answer["action"]
    return schema if isinstance(schema, Mapping) else {}


class Session:
    """Session that connects at its first reset, and again after an error.

    Args:
        start_timeout_s, step_timeout_s: limits of a reset and of a step.
    """

    def __init__(self, url: str, start_timeout_s: float, step_timeout_s: float) -> None:
        self._url = url
        self._start_timeout_s, self._step_timeout_s = start_timeout_s, step_timeout_s
        self._line: ClientConnection | None = None

    def reset(self, data: Mapping[str, Any]) -> Answer:
        """Begin an episode; if all of the server's sessions are taken, ask again until the deadline.

        Raises:
            EpisodeError: the server can't be reached, is full, fails or gives no answer in time.
        """
        deadline = time.monotonic() + self._start_timeout_s
        if self._line is not None and self._line.state is not State.OPEN:
            self._drop()  # the server has closed an idle session, or was restarted
        while True:
            try:
                return self._asked("reset", data, deadline)
            except _Full as error:
                if time.monotonic() + RETRY_S > deadline:
                    raise EpisodeError(
                        f"environment.url={self._url}: {error}; expected a session for each episode: start "
                        "the server with a larger max_concurrent_envs, or lower environment.num_parallel"
                    ) from None
                time.sleep(RETRY_S)

    def step(self, action: Mapping[str, Any]) -> Answer:
        """Send an action.

        Raises:
            EpisodeError: the server fails, died, or gives no answer in time.
        """
        return self._asked("step", action, time.monotonic() + self._step_timeout_s)

    def close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            with contextlib.suppress(OSError, WebSocketException):
                line.send('{"type": "close"}')
            with contextlib.suppress(OSError, WebSocketException):
                line.close()

    def _asked(self, kind: str, data: Mapping[str, Any], deadline: float) -> Answer:
        try:
            line = self._line = self._line or self._connected(deadline)
            with contextlib.suppress(ConnectionClosed):  # the server's last message can still be read
                line.send(json.dumps({"type": kind, "data": data}))
            message = line.recv(timeout=max(0.0, deadline - time.monotonic()))
            return _read(message, kind)
        except TimeoutError:
            self._drop()
            limit = "start" if kind == "reset" else "step"
            raise EpisodeError(
                f"environment.url={self._url}: no answer to {kind} in {self._limit_s(kind):g} s; "
                f"raise environment.{limit}_timeout_s"
            ) from None
        except (OSError, WebSocketException) as error:
            self._drop()
            reason = str(error) or type(error).__name__
            raise EpisodeError(
                f"environment.url={self._url}: {kind} failed, because the connection failed: {reason}"
            ) from None
        except EpisodeError as error:
            self._drop()
            raise type(error)(f"environment.url={self._url}: {error}") from None

    def _connected(self, deadline: float) -> ClientConnection:
        address = f"ws{self._url.removeprefix('http')}/ws"
        try:
            return connect(
                address,
                open_timeout=max(0.1, deadline - time.monotonic()),
                close_timeout=1.0,
                max_size=MOST_BYTES,
                proxy=None if is_near(self._url) else True,
                ping_interval=None,  # a deadline ends each wait, and a server that computes answers no ping
            )
        except (InvalidURI, InvalidHandshake) as error:
            if process_exception(error) is None:  # a dying server closes it, a loaded one answers 503
                raise ConnectionError(f"the handshake was not completed: {error}") from None
            raise EpisodeError(f"{address} is not an OpenEnv WebSocket: {error}") from None

    def _limit_s(self, kind: str) -> float:
        return self._start_timeout_s if kind == "reset" else self._step_timeout_s

    def _drop(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            with contextlib.suppress(OSError, WebSocketException):
                line.socket.close()  # with a hanging server, a polite close would wait


class _Full(EpisodeError):
    """All of the server's sessions are taken."""


def _read(raw: str | bytes, kind: str) -> Answer:
    """Read an answer; raise EpisodeError if it is an error or no observation."""
    try:
        message = json.loads(raw)
        data = message["data"]
        if message["type"] == "error":
            return _refused(data, kind)
        observation, reward, is_done = data["observation"], data.get("reward"), data.get("done", False)
        if message["type"] != "observation" or not isinstance(observation, Mapping):
            raise ValueError
        return Answer(observation, float(reward or 0.0), bool(is_done))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise EpisodeError(f"{kind} was answered by {raw!r:.200}; expected an observation") from None


def _refused(data: Mapping[str, Any], kind: str) -> Answer:
    code, message = data.get("code"), data.get("message")
    if kind == "step" and code == INVALID:
        return Answer(is_invalid=True)
    raise (_Full if code == FULL else EpisodeError)(f"{kind} failed with {code}: {message}")
