"""Answers and errors in the form that OpenAI's clients read, whole or as a stream of events."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollout_workers.gateway.bodies import Asked, Refused
from rollout_workers.gateway.reading import Reply

PIECE = 2000  # letters of an event


def whole_answer(number: int, request: Asked, num_read: int, replies: Sequence[Reply]) -> bytes:
    """Return the answer's body."""
    choices = [
        {"index": index, **_content(request, reply), "logprobs": None, "finish_reason": reply.finish_reason}
        for index, reply in enumerate(replies)
    ]
    body = {**_head(number, request, is_chunk=False), "choices": choices, "usage": _usage(num_read, replies)}
    return json.dumps(body).encode()


def events(number: int, request: Asked, num_read: int, replies: Sequence[Reply]) -> Iterator[bytes]:
    """Yield the answer as server-sent events; the joined pieces are the whole answer."""
    head = _head(number, request, is_chunk=True)
    for index, reply in enumerate(replies):
        for piece in _pieces(request, reply):
            yield _event({**head, "choices": [{"index": index, **piece, "finish_reason": None}]})
        end: dict[str, Any] = {"delta": {}} if request.is_chat else {"text": ""}
        yield _event({**head, "choices": [{"index": index, **end, "finish_reason": reply.finish_reason}]})
    if request.streams_usage:
        yield _event({**head, "choices": [], "usage": _usage(num_read, replies)})
    yield b"data: [DONE]\n\n"


def error_body(refused: Refused) -> bytes:
    """Return the body of a refusal."""
    kind = "invalid_request_error" if refused.status < 500 else "server_error"
    error = {"message": refused.message, "type": kind, "param": None, "code": refused.code}
    return json.dumps({"error": error}).encode()


def models_body(name: str) -> bytes:
    """Return the list of models, which has one."""
    return json.dumps({"object": "list", "data": [_model(name)]}).encode()


def model_body(name: str) -> bytes:
    """Return the description of one model."""
    return json.dumps(_model(name)).encode()


def _model(name: str) -> Mapping[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "whetstone"}


def _head(number: int, request: Asked, *, is_chunk: bool) -> dict[str, Any]:
    kind = "text_completion"
    if request.is_chat:
        kind = "chat.completion.chunk" if is_chunk else "chat.completion"
    prefix = "chatcmpl" if request.is_chat else "cmpl"
    return {"id": f"{prefix}-{number}", "object": kind, "created": int(time.time()), "model": request.model}


def _content(request: Asked, reply: Reply) -> dict[str, Any]:
    return {"message": reply.message} if request.is_chat else {"text": reply.message["content"]}


def _pieces(request: Asked, reply: Reply) -> Iterator[dict[str, Any]]:
    text = str(reply.message["content"])
    pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
    if not request.is_chat:
        yield from ({"text": piece} for piece in pieces)
        return
    others = {name: value for name, value in reply.message.items() if name != "content"}
    if calls := others.get("tool_calls"):
        others["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    yield {"delta": {**others, "content": pieces[0] if pieces else ""}}
    yield from ({"delta": {"content": piece}} for piece in pieces[1:])


def _usage(num_read: int, replies: Sequence[Reply]) -> Mapping[str, int]:
    drawn = sum(reply.num_tokens for reply in replies)
    return {"prompt_tokens": num_read, "completion_tokens": drawn, "total_tokens": num_read + drawn}


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"
