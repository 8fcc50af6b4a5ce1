"""Answers of HTTP servers, read up to a limit, so that an endless answer fills no memory."""

from typing import Any

import httpx

MOST_BYTES = 16 * 2**20  # limit of an unpacked answer
OF_PACKED = ("content-encoding", "content-length", "transfer-encoding")  # headers that unpacking makes wrong


class AnswerTooLong(ValueError):
    """An answer with more bytes than its reader accepts."""


async def answer_of(
    client: httpx.AsyncClient, method: str, url: str, *, most_bytes: int = MOST_BYTES, **request: Any
) -> httpx.Response:
    """Return a request's whole answer.

    Raises:
        AnswerTooLong: it has more than `most_bytes`.
        httpx.HTTPError: the request failed.
    """
    async with client.stream(method, url, **request) as response:
        return await read_whole(response, most_bytes)


async def read_whole(response: httpx.Response, most_bytes: int = MOST_BYTES) -> httpx.Response:
    """Return the answer of a request that was begun, as `answer_of` does."""
    content = bytearray()
    async for piece in response.aiter_bytes():
        _add(content, piece, most_bytes)
    return _whole(response, content)


def answer_here(method: str, url: str, **request: Any) -> httpx.Response:
    """Return a request's whole answer without an event loop, as `answer_of` does."""
    with httpx.stream(method, url, **request) as response:
        content = bytearray()
        for piece in response.iter_bytes():
            _add(content, piece, MOST_BYTES)
        return _whole(response, content)


def _add(content: bytearray, piece: bytes, most_bytes: int) -> None:
    if len(content) + len(piece) > most_bytes:
        raise AnswerTooLong(f"the answer has more than {most_bytes} bytes")
    content += piece


def _whole(response: httpx.Response, content: bytearray) -> httpx.Response:
    headers = [pair for pair in response.headers.multi_items() if pair[0].lower() not in OF_PACKED]
    return httpx.Response(
        response.status_code, headers=headers, content=bytes(content), request=response.request
    )
