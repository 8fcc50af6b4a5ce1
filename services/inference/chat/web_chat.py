"""`whetstone chat RUN --web`: a conversation in a browser, served from this machine.

    page ── all messages ──▶ guard ─▶ Reader ─▶ Answers (one at a time) ──▶ letters, a JSON object per line

Only the page keeps the conversation, so two tabs never mix.
"""

import asyncio
import contextlib
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import Field, ValidationError, model_validator

from contracts.errors import InputError
from contracts.network.access import digest
from contracts.network.http_guard import guard
from contracts.rollout import Sampling
from contracts.secrets.redaction import redact
from contracts.settings import Settings
from services.inference.chat.prompts import Reader
from services.inference.chat.speaker import Speaker
from services.terminal.web_pages import page_of

MOST_BYTES = 512 * 1024  # limit of a request
MOST_WAITING = 16  # conversations
PAGE = Path(__file__).with_name("web_chat.html.j2")

Event = dict[str, Any]
Facts = dict[str, Any]


class Message(Settings):
    role: Literal["user", "assistant"]
    content: str


class Conversation(Settings):
    """A request's conversation. Example: `{"messages": [{"role": "user", "content": "3 5"}]}`"""

    messages: list[Message] = Field(min_length=1, max_length=1000)

    @model_validator(mode="after")
    def _asks_something(self) -> "Conversation":
        if self.messages[-1].role != "user":
            raise ValueError("the last message must be the user's")
        if not all(message.content.strip() for message in self.messages if message.role == "user"):
            raise ValueError("a user's message must not be empty")
        return self


class Answers:
    """Speaker in a separate thread, which answers conversations in order of arrival."""

    def __init__(self, speaker: Speaker) -> None:
        self._speaker, self._num_waiting = speaker, 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="speaker")

    async def to(self, tokens: Sequence[int]) -> AsyncIterator[Event]:
        """Yield the answer's events; a caller that stops reading ends the answer.

        First `{"waiting": n}` if n earlier requests wait, then `{"text": …}` often, and at the end
        `{"end": "stop" or "length"}` or `{"error": …}`.
        """
        if self._num_waiting > MOST_WAITING:
            yield {"error": f"{MOST_WAITING} others wait for an answer: try again in a moment"}
            return
        loop, events, unwanted = asyncio.get_running_loop(), asyncio.Queue[Event](), threading.Event()

        def tell(event: Event) -> None:
            with contextlib.suppress(RuntimeError):  # the server has ended meanwhile
                loop.call_soon_threadsafe(events.put_nowait, event)

        if self._num_waiting:
            tell({"waiting": self._num_waiting})
        self._num_waiting += 1
        job = loop.run_in_executor(self._thread, self._write, tokens, tell, unwanted.is_set)
        job.add_done_callback(self._one_less)
        try:
            event: Event = {}
            while not event.keys() & {"end", "error"}:
                yield (event := await events.get())
        finally:
            unwanted.set()

    def _one_less(self, _: object) -> None:
        self._num_waiting -= 1

    def _write(
        self, tokens: Sequence[int], tell: Callable[[Event], None], is_unwanted: Callable[[], bool]
    ) -> None:
        if is_unwanted():
            return
        try:
            answer = self._speaker.answer(tokens, lambda text: tell({"text": text}), is_unwanted)
            tell({"end": answer.finish_reason})
        except Exception as error:  # a model may raise anything; the page shows it
            logging.getLogger(__name__).exception("the model failed")
            tell({"error": redact(f"{type(error).__name__}: {error}")[:500]})


def facts_of(name: str, sampling: Sampling, system: str | None, note: str) -> Facts:
    """Return what the page shows about the model.

    >>> facts_of("tiny", Sampling(max_tokens=20, temperature=0.0), None, "")["drawn"]
    'greedy'
    """
    drawn = f"temperature {sampling.temperature:g}" if sampling.temperature else "greedy"
    most = sampling.max_tokens
    return {"name": name, "max_tokens": most, "drawn": drawn, "system": system, "note": note}


def chat_app(facts: Facts, reader: Reader, speaker: Speaker, host: str, token: str | None) -> Any:
    """Return the application: the page, facts about the model, and answers to conversations."""
    app = FastAPI(title="Whetstone chat", openapi_url=None)
    answers, reading = Answers(speaker), asyncio.Lock()  # one thread at a time may use a tokenizer

    @app.get("/")
    async def page() -> HTMLResponse:
        return page_of(PAGE)

    @app.get("/api/model")
    async def model() -> Facts:
        return facts

    @app.post("/api/answer")
    async def answer(request: Request) -> StreamingResponse:
        messages = [message.model_dump() for message in (await _conversation(request)).messages]
        try:
            # In a thread, because tokenizing a long text takes seconds while the server must answer.
            async with reading:
                tokens, num_forgotten = await asyncio.to_thread(reader.read, messages)
        except InputError as error:
            raise HTTPException(422, str(error)) from None
        return StreamingResponse(_lines(num_forgotten, answers.to(tokens)), media_type="application/x-ndjson")

    key = None if token is None else digest(token)
    return guard(app, host, key, most_bytes=MOST_BYTES, remedy="begin a new conversation", below="/api/")


async def _conversation(request: Request) -> Conversation:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "expected content-type application/json")  # no foreign form can send it
    try:
        return Conversation.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise HTTPException(422, f"{where or 'body'}: {first['msg']}") from None


async def _lines(num_forgotten: int, events: AsyncIterator[Event]) -> AsyncIterator[str]:
    yield json.dumps({"forgotten": num_forgotten}) + "\n"
    async for event in events:
        yield json.dumps(event) + "\n"
