"""Answers of real servers: whole ones come as they were, and longer ones than the limit are not kept."""

import asyncio
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from contracts.errors import InputError
from contracts.network.bounded_answers import MOST_BYTES, AnswerTooLong, answer_here, answer_of
from rollout_workers.tools.env_servers import looked_up

PIECE = b"1" * 2**16


class Handler(BaseHTTPRequestHandler):
    """`/packed` unpacks to 1,000 bytes, `/bomb` to one more than the limit; `/endless` never ends."""

    def do_GET(self) -> None:
        packed = {"/packed": b"7" * 1000, "/bomb": b"7" * (MOST_BYTES + 1)}
        self.send_response(404 if self.path == "/none" else 200)
        if self.path in packed:
            self.send_header("content-encoding", "gzip")
        self.end_headers()
        if self.path in packed:
            self.wfile.write(gzip.compress(packed[self.path]))
        try:
            while self.path == "/endless":
                self.wfile.write(PIECE)
        except OSError:
            self.server.hung_up.set()  # type: ignore[attr-defined]

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def server() -> Iterator[Any]:
    http: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.hung_up, http.url = threading.Event(), f"http://127.0.0.1:{http.server_port}"
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield http
    http.shutdown()
    http.server_close()


def answer(url: str, is_async: bool) -> httpx.Response:
    async def soon() -> httpx.Response:
        async with httpx.AsyncClient() as client:
            return await answer_of(client, "GET", url)

    return asyncio.run(soon()) if is_async else answer_here("GET", url)


@pytest.mark.parametrize("is_async", [True, False])
def test_an_answer_is_read_up_to_the_limit(server: Any, is_async: bool) -> None:
    packed = answer(f"{server.url}/packed", is_async)
    assert packed.status_code == 200 and packed.text == "7" * 1000
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        answer(f"{server.url}/none", is_async).raise_for_status()
    for path in ("bomb", "endless"):
        with pytest.raises(AnswerTooLong, match=f"the answer has more than {MOST_BYTES} bytes"):
            answer(f"{server.url}/{path}", is_async)
    assert server.hung_up.wait(20)  # the connection is closed


def test_a_first_look_at_a_server_names_an_endless_answer(server: Any) -> None:
    with pytest.raises(InputError, match=r"/endless gave AnswerTooLong: the answer has more than"):
        looked_up(server.url, "/endless", "OpenEnv", 20.0)
