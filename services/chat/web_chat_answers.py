"""Queue of conversations for the model: it writes one answer at a time and drops those nobody waits for."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from contracts.secrets.redaction import redact
from services.chat.speaker import Speaker

MOST_WAITING = 16

Event = dict[str, Any]


class Answers:
    """Speaker in a thread of its own, which answers conversations in the order of their arrival."""

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="speaker")
        self._num_asked = 0
        self._is_closed = threading.Event()

    async def to(self, tokens: Sequence[int]) -> AsyncIterator[Event]:
        """Yield the answer's events; a caller that stops reading ends the answer.

        First `{"waiting": n}` if n others come before it, then `{"text": …}` often, and at the end
        `{"end": "stop" or "length"}` or `{"error": …}`.
        """
        if self._num_asked > MOST_WAITING:
            yield {"error": f"{MOST_WAITING} others wait for an answer: try again in a moment"}
            return
        loop, events, unwanted = asyncio.get_running_loop(), asyncio.Queue[Event](), threading.Event()

        def tell(event: Event) -> None:
            _call_soon(loop, events.put_nowait, event)

        def is_stopped() -> bool:
            return unwanted.is_set() or self._is_closed.is_set()

        num_before = self._num_asked
        self._num_asked += 1
        job = self._thread.submit(self._write, tokens, tell, is_stopped)
        job.add_done_callback(lambda _: _call_soon(loop, self._one_less))
        try:
            if num_before:
                yield {"waiting": num_before}
            is_last = False
            while not is_last:
                event = await events.get()
                is_last = "end" in event or "error" in event
                yield event
        finally:
            unwanted.set()

    def close(self) -> None:
        """End the current answer and drop the waiting ones."""
        self._is_closed.set()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _one_less(self) -> None:
        self._num_asked -= 1

    def _write(
        self, tokens: Sequence[int], tell: Callable[[Event], None], is_stopped: Callable[[], bool]
    ) -> None:
        if is_stopped():
            return
        try:
            answer = self._speaker.answer(tokens, lambda text: tell({"text": text}), is_stopped)
        except Exception as error:  # a model may raise anything; the page shows it
            logging.getLogger(__name__).exception("the model failed")
            tell({"error": redact(f"{type(error).__name__}: {error}")[:500]})
        else:
            tell({"end": answer.finish_reason})


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the server has ended meanwhile
        loop.call_soon_threadsafe(call, *arguments)
