"""Servers on loopback: real ones, and chat models as OpenAI's, whose answers a test writes."""

import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from contracts.network.http_server import server_config


@contextmanager
def serving(answer: Callable[[Request], Awaitable[Response]]) -> Iterator[str]:
    """Serve `answer` at an address up to /v1."""
    app = FastAPI()
    app.add_api_route("/v1/chat/completions", answer, methods=["POST"], response_model=None)
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        with running(app, door):
            yield f"http://127.0.0.1:{door.getsockname()[1]}/v1"


@contextmanager
def running(app: Any, door: socket.socket) -> Iterator[None]:
    """Serve an application at a socket, as our commands do."""
    server = uvicorn.Server(server_config(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [door]})
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(20)


def reply(content: Any, tokens: tuple[int, int] = (0, 0)) -> JSONResponse:
    """Return a chat model's response; anything but a text is written as JSON."""
    text = content if isinstance(content, str) else json.dumps(content)
    choice = {"message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
    return JSONResponse({"choices": [choice], "usage": usage})
