"""The front of vLLM's server application: it lets through only what a model's callers need.

    request ─▶ known path ─▶ open calls ─▶ whole body, in time ─▶ JSON that all can read ─▶ defaults ─▶ vLLM

vLLM has more paths (its workers, adapters, profiles) for those who run it. A call is passed on unchanged,
with the served model's sampling and system message for options that it leaves open.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from contracts.conversations.rendering import SYSTEM_ROLES
from contracts.rollout import Sampling
from contracts.secrets.redaction import redact
from rollout_workers.gateway.answers import model_body
from rollout_workers.gateway.bodies import MOST_STOPS, MOST_TEXTS, Refused, json_object
from rollout_workers.gateway.http_messages import (
    Receive,
    Scope,
    Send,
    aside,
    send_answer,
    send_error,
    whole_body,
)
from rollout_workers.gateway.open_calls import OpenCalls
from rollout_workers.gateway.serving import WARPS

CHAT, COMPLETION, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MODELS, TOKENIZE = "/v1/models", "/tokenize"
CALLS = frozenset({CHAT, COMPLETION, RESPONSES, TOKENIZE, "/detokenize"})
SHOWN = frozenset({MODELS, "/health", "/ping", "/version", "/metrics"})
MOST_OPEN = 1024  # calls at once, because each may hold a body of megabytes
# vLLM's names for the limit of an answer's tokens
LONGEST: Mapping[str, tuple[str, ...]] = {
    CHAT: ("max_completion_tokens", "max_tokens"),
    COMPLETION: ("max_tokens",),
    RESPONSES: ("max_output_tokens",),
}
NO_TEMPLATE = (
    "there is no chat template: call /v1/completions, or start the server with --template tokenizer or "
    "--template FILE"
)


class Defaults:
    """Settings of the served model for options that a call leaves open.

    Args:
        seed: the seed of calls without one; None: a new one each time.
        system: the system message of conversations that begin without one.
        window: tokens of a prompt and its answer.
    """

    def __init__(self, sampling: Sampling, seed: int | None, system: str | None, window: int) -> None:
        self._sampling, self._seed, self._system, self._window = sampling, seed, system, window

    def filled(self, path: str, call: Mapping[str, Any]) -> dict[str, Any]:
        """Return the call with its open options filled in."""
        filled = {name: value for name, value in call.items() if value is not None}
        if self._system is not None and path in (CHAT, TOKENIZE):
            filled = _with_system(filled, self._system)
        if self._system is not None and path == RESPONSES:
            filled.setdefault("instructions", self._system)
        if path not in LONGEST:
            return filled
        sampling = self._sampling
        if not any(name in filled for name in LONGEST[path]):
            filled[LONGEST[path][0]] = min(sampling.max_tokens, self._window - 1)
        for name in WARPS:
            filled.setdefault(name, getattr(sampling, name))
        if path == RESPONSES:
            return filled
        longest = next(filled[name] for name in LONGEST[path] if name in filled)
        if sampling.min_tokens and isinstance(longest, int):
            filled.setdefault("min_tokens", min(sampling.min_tokens, longest))
        if sampling.stop:
            filled["stop"] = _stops(filled.get("stop"), sampling.stop)
        if self._seed is not None:
            filled.setdefault("seed", self._seed)
        return filled


class VLLMFront:
    """ASGI application in front of vLLM's.

    Args:
        name: the model's.
        chats: whether it reads conversations.
    """

    def __init__(self, app: Any, name: str, defaults: Defaults, most_bytes: int, *, chats: bool) -> None:
        self._app, self._name, self._defaults = app, name, defaults
        self._most_bytes, self._chats = most_bytes, chats
        self._inside = OpenCalls(MOST_OPEN, "a served model")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request; uvicorn calls this method by the ASGI protocol."""
        watched = _Watched(send)
        try:
            await self._answer(scope, receive, watched)
        except Refused as refused:
            await send_error(send, refused)
        except Exception as error:
            logging.getLogger(__name__).exception("a call failed")
            if not watched.has_begun:
                reason = redact(f"{type(error).__name__}: {error}")[:500]
                await send_error(send, Refused(500, reason, "server_error"))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        is_shown = path in SHOWN or path == f"{MODELS}/{self._name}"
        if not is_shown and path not in CALLS:
            raise Refused(404, f"{path:.80}: there is no such address here", "not_found")
        if method != ("GET" if is_shown else "POST"):
            expected = "GET" if is_shown else "POST"
            raise Refused(405, f"{method} {path:.80}: expected {expected}", "method_not_allowed")
        if path == f"{MODELS}/{self._name}":
            await send_answer(send, 200, model_body(self._name))
        elif is_shown:
            await self._app(scope, receive, send)
        else:
            with self._inside.entered():
                body = await whole_body(scope, receive, self._most_bytes)
                passed = await aside(len(body), self._passed, path, body)
                await self._app(_sized(scope, len(passed)), _replayed(passed, receive), send)

    def _passed(self, path: str, body: bytes) -> bytes:
        """Return the body that vLLM gets.

        Raises:
            Refused: the request exceeds a limit, or needs an ability that the model lacks.
        """
        call = json_object(body)
        if not self._chats and (path in (CHAT, RESPONSES) or "messages" in call):
            raise Refused(400, NO_TEMPLATE)
        _check_size(call)
        try:
            return json.dumps(self._defaults.filled(path, call), allow_nan=False).encode()
        except ValueError:
            raise Refused(
                400, "the body holds a number that is NaN or infinite; expected finite ones"
            ) from None


class _Watched:
    """ASGI's `send`, and whether an answer has begun."""

    def __init__(self, send: Send) -> None:
        self._send, self.has_begun = send, False

    async def __call__(self, message: Any) -> None:
        self.has_begun = True
        await self._send(message)


def _check_size(call: Mapping[str, Any]) -> None:
    prompts, choices, stop = call.get("prompt"), call.get("n"), call.get("stop")
    is_several = isinstance(prompts, list) and bool(prompts) and not isinstance(prompts[0], int)
    num_prompts = len(prompts) if is_several and isinstance(prompts, list) else 1
    num_choices = choices if isinstance(choices, int) else 1
    if num_prompts * num_choices > MOST_TEXTS:
        raise Refused(
            400,
            f"{num_prompts} prompts with n={num_choices!s:.20}: expected at most {MOST_TEXTS} texts a call",
            "too_many_texts",
        )
    if isinstance(stop, list) and len(stop) > MOST_STOPS:  # the engine looks for each at every token
        raise Refused(400, f"stop: expected at most {MOST_STOPS} texts, got {len(stop)}")


def _with_system(call: dict[str, Any], system: str) -> dict[str, Any]:
    messages = call.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[0], dict):
        return call  # vLLM reports what it expects
    if messages[0].get("role") in SYSTEM_ROLES:
        return call
    return {**call, "messages": [{"role": "system", "content": system}, *messages]}


def _stops(stops: Any, model_stops: Sequence[str]) -> Any:
    """Return a call's stop texts with the model's; vLLM refuses anything that is no text or list.

    >>> _stops("a", ["b", "a"]), _stops(None, ["b"]), _stops(3, ["b"])
    (['b', 'a'], ['b'], 3)
    """
    if stops is not None and not isinstance(stops, str | list):
        return stops
    more = [] if stops is None else [stops] if isinstance(stops, str) else stops
    return [*model_stops, *(text for text in more if text not in model_stops)]


def _sized(scope: Scope, length: int) -> Scope:
    dropped = (b"content-length", b"transfer-encoding")
    headers = [(name, value) for name, value in scope["headers"] if name not in dropped]
    return {**scope, "headers": [*headers, (b"content-length", str(length).encode())]}


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return ASGI's `receive` that gives this body first, then the caller's disconnect."""
    is_given = False

    async def receive_again() -> Any:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again
