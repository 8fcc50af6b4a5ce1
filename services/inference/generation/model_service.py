"""Serve a finished model that vLLM can't load by our server, until a signal ends it."""

import contextlib
import copy
from pathlib import Path

from contracts.errors import RunError
from contracts.secrets.redaction import redact
from rollout_workers.engines.base import Engine
from rollout_workers.gateway.engine_calls import EngineCalls
from rollout_workers.gateway.reading import Reader
from rollout_workers.gateway.server import Gateway
from rollout_workers.gateway.serving import EngineThread, ModelDoor
from rollout_workers.tools.tool_calls import parser_of
from services.inference.generation.run_model import RunModel
from services.inference.generation.served import Served
from services.models.quiet import quiet_transformers
from services.terminal.doing import doing
from services.terminal.interrupts import Interrupted, StopRequest

LOOK_S = 0.2


def serve_model(served: Served) -> None:
    """Start transformers' engine and answer calls; return after Ctrl-C or SIGTERM.

    Raises:
        RunError: the engine failed.
    """
    calls, model = EngineCalls(), served.model
    with doing("starting transformers"):
        quiet_transformers()
        thread = EngineThread(lambda: _engine(model), calls)
        started = thread.engine()
    tokenizer = copy.deepcopy(started.tokenizer)
    reader = Reader(tokenizer, model.chat, parser_of(served.tool_parser, tokenizer))
    door = ModelDoor(started, reader, calls, served.sampling, served.seed)
    gateway = Gateway(name=served.name, public=door)
    gateway.start(served.listener, served.guarded(gateway))
    served.announce()
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


def _engine(model: RunModel) -> Engine:
    from rollout_workers.engines.transformers_engine import TransformersEngine

    return TransformersEngine(model.path, model.path, model.files.window, model.rollout)
