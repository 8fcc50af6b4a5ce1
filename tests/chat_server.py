"""Chat servers on loopback, as OpenAI's: real ones, whose answers a test writes."""

import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response


@contextmanager
def serving(answer: Callable[[Request], Awaitable[Response]]) -> Iterator[str]:
    """Serve `answer` at an address up to /v1."""
    app = FastAPI()
    app.add_api_route("/v1/chat/completions", answer, methods=["POST"], response_model=None)
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [door]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{door.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join(20)


def reply(content: Any, tokens: tuple[int, int] = (0, 0)) -> JSONResponse:
    """Return a chat model's response; anything but a text is written as JSON."""
    text = content if isinstance(content, str) else json.dumps(content)
    choice = {"message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
    return JSONResponse({"choices": [choice], "usage": usage})
