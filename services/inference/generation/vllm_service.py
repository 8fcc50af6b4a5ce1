"""Serve a finished model by vLLM's server application behind our guard, until a signal ends it.

    caller ─▶ guard (Host, Origin, token) ─▶ front (paths, sizes, defaults) ─▶ vLLM's application ─▶ engine

The application runs in this process, its engine in a child. If the child dies, the server ends with a
code other than 0, so a supervisor can start it again.
"""

import asyncio
import contextlib
import subprocess
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from contracts.conversations.chat import Chat
from contracts.errors import InputError, RunError
from contracts.network.http_server import server_config
from contracts.processes.working_folder import off_the_path_of_children
from contracts.secrets.redaction import redact
from rollout_workers.engines.engine_arguments import engine_arguments, prepare_environment
from rollout_workers.engines.vllm_engine import chosen_arguments
from rollout_workers.gateway.server import MOST_BYTES
from rollout_workers.gateway.vllm_front import Defaults, VLLMFront
from services.inference.generation.served import Served
from services.terminal.doing import doing
from services.terminal.interrupts import StopRequest

LOOK_S = 0.5  # interval of checks that the engine lives
DEAD = "vLLM's engine has died, and with it every call; its log is above. Start the command again"


def serve_by_vllm(served: Served) -> None:
    """Start the engine and answer calls; return after Ctrl-C or SIGTERM.

    Raises:
        InputError: vLLM refuses the model, or its chat template has no place for the system message.
        RunError: the engine died.
    """
    asyncio.run(_serve(served))


async def _serve(served: Served) -> None:
    import torch

    on_gpu = torch.cuda.is_available()
    rollout = served.model.rollout
    prepare_environment(is_split=rollout.tensor_parallel_size > 1, on_gpu=on_gpu)
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client_from_engine_args

    path = served.model.path
    chosen = chosen_arguments(path, path, served.model.files.window, rollout, None, None)
    # vLLM's defaults: steps may run ahead, and log-probabilities are the model's, before sampling.
    chosen |= {"logprobs_mode": "raw_logprobs", "async_scheduling": None, "enable_sleep_mode": False}
    chosen |= {"disable_log_stats": False}  # /metrics counts running and waiting calls
    arguments = engine_arguments(chosen, rollout.engine_args, AsyncEngineArgs)
    async with contextlib.AsyncExitStack() as stack:
        with doing("starting vllm"), off_the_path_of_children():
            engine = await stack.enter_async_context(build_async_engine_client_from_engine_args(arguments))
            server = await _server(served, engine)
        stack.enter_context(_children_end_with_us())
        await _answer_until_stopped(served, engine, server)


async def _server(served: Served, engine: Any) -> Any:
    """Return a server of vLLM's application for the engine, behind the front and the guard."""
    import uvicorn
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app

    chat = served.model.chat
    if chat is not None:
        Chat(engine.get_tokenizer(), chat)  # refuses a system message that the template would lose
    settings = _settings(served)
    tasks = await engine.get_supported_tasks()
    app = build_app(settings, tasks, engine.model_config)
    await init_app_state(engine, app.state, settings, tasks)
    system = None if chat is None else chat.system
    defaults = Defaults(served.sampling, served.seed, system, engine.model_config.max_model_len)
    front = VLLMFront(app, served.name, defaults, MOST_BYTES, chats=chat is not None)
    server = uvicorn.Server(server_config(served.guarded(front)))
    app.state.server = server  # vLLM ends it when an engine dies
    return server


async def _answer_until_stopped(served: Served, engine: Any, server: Any) -> None:
    stop = StopRequest()
    setattr(server, "capture_signals", contextlib.nullcontext)  # noqa: B010  (StopRequest handles signals)
    stop.hold(lambda: setattr(server, "should_exit", True))
    watching = asyncio.ensure_future(_end_with_engine(server, engine))
    served.announce()
    try:
        await server.serve(sockets=[served.listener])
    finally:
        watching.cancel()
        stop.restore()
    if engine.errored and not stop.is_asked:  # Ctrl-C reaches the engine, too
        raise RunError(DEAD)


@contextlib.contextmanager
def _children_end_with_us() -> Iterator[None]:
    """Let a shell kill the engine if this process is killed, because the engine would survive."""
    import psutil

    engines = " ".join(str(child.pid) for child in psutil.Process().children(recursive=True))
    wait = ["/bin/sh", "-c", f"read -r _ || kill -9 {engines}"]  # the pipe ends with this process
    with subprocess.Popen(
        wait,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as watcher:
        try:
            yield
        finally:
            watcher.communicate(b"done\n")


async def _end_with_engine(server: Any, engine: Any) -> None:
    while not engine.errored:
        await asyncio.sleep(LOOK_S)
    server.should_exit = True


def _settings(served: Served) -> Namespace:
    """Return vLLM's server options, with our values for its application and defaults elsewhere.

    Raises:
        InputError: vLLM knows no such parser.
    """
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.entrypoints.launchers.launcher import validate_api_server_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    chat = served.model.chat
    settings: Namespace = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    settings.model, settings.served_model_name = served.model.path, [served.name]
    settings.generation_config = "vllm"  # the run's own sampling is the default, from the front
    settings.disable_fastapi_docs = True
    settings.enable_auto_tool_choice, settings.tool_call_parser = True, served.tool_parser
    settings.chat_template = None if chat is None else chat.template
    settings.default_chat_template_kwargs = None if chat is None else dict(chat.options)
    try:
        validate_api_server_args(settings)
    except KeyError as error:
        raise InputError(f"--tool-parser: {redact(str(error))}") from None
    return settings
