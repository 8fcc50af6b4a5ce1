"""Serve a finished model at an OpenAI-compatible address, until a signal ends it."""

import contextlib
import copy
import socket
from pathlib import Path

from contracts.errors import RunError
from contracts.network.access import digest
from contracts.network.http_guard import guarded
from contracts.rollout import Sampling
from contracts.secrets.redaction import redact
from rollout_workers.engines.base import Engine
from rollout_workers.gateway.engine_calls import EngineCalls
from rollout_workers.gateway.reading import Reader
from rollout_workers.gateway.server import MOST_BYTES, Gateway
from rollout_workers.gateway.serving import EngineThread, ModelDoor
from rollout_workers.tools.tool_calls import HERMES, parser_of
from services.generation.run_model import RunModel, quiet_transformers
from services.terminal.doing import doing
from services.terminal.interrupts import Interrupted, StopRequest

LOOK_S = 0.2


def serve_model(
    model: RunModel,
    engine: str,
    sampling: Sampling,
    name: str,
    listener: socket.socket,
    token: str | None,
    seed: int | None = None,
    tool_parser: str = HERMES,
) -> None:
    """Start the engine and answer calls; return after Ctrl-C or SIGTERM.

    Args:
        sampling: what holds where a call says nothing.
        seed: of calls that name none; None: a new one each time.
        tool_parser: of calls that offer tools.

    Raises:
        RunError: the engine failed.
    """
    calls = EngineCalls()
    with doing(f"starting {engine}"):
        quiet_transformers()
        thread = EngineThread(lambda: _engine(engine, model), calls)
        started = thread.engine()
    tokenizer = copy.deepcopy(started.tokenizer)
    reader = Reader(tokenizer, model.chat, parser_of(tool_parser, tokenizer))
    gateway = Gateway(name=name, public=ModelDoor(started, reader, calls, sampling, seed))
    host = listener.getsockname()[0]
    key = None if token is None else digest(token)
    front = guarded(gateway, host, key, most_bytes=MOST_BYTES, remedy="send a shorter conversation")
    address = gateway.start(listener, front)
    asked = "the token as api_key" if token else "any api_key"
    print(f"{name} answers at {address} (base_url), with {asked}. Ctrl-C ends it.", flush=True)
    stop = StopRequest()
    stop.hold()
    try:
        with contextlib.suppress(Interrupted):  # the normal end
            while not thread.wait(LOOK_S):
                stop.check()
    finally:
        stop.restore()
        gateway.stop()
        thread.stop()
    if thread.failure is not None:
        raise RunError(f"the engine failed: {redact(str(thread.failure))}") from thread.failure


def name_of(path: str) -> str:
    """Return a short name of a model or a run: the last part of its path.

    >>> name_of("runs/demo"), name_of("Qwen/Qwen2.5-0.5B")
    ('demo', 'Qwen2.5-0.5B')
    """
    return Path(path).name or Path(path).resolve().name


def _engine(kind: str, model: RunModel) -> Engine:
    from contracts.components import find
    from rollout_workers.engines import ENGINES

    made: Engine = find("engine", kind, ENGINES)(model.path, model.path, model.files.window, model.rollout)
    return made
