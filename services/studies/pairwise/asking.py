"""Ask about every pair in both orders, several questions at a time, and save each reply at once.

pairs × orders ─▶ those without a kept reply ─▶ chat model ─▶ replies.jsonl
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from contracts.errors import InputError, RunError
from reward_servers.chat_models.chat_model import ChatModel, Refused, Unanswered
from services.runs.json_lines import append_row, read_rows
from services.studies.pairwise.question import ORDERS, Order, Question
from services.studies.pairwise.texts import Pair

UNKNOWN = "an unknown address"  # address of replies that an older version saved
GIVEN_UP_AFTER = 8  # questions in a row without a reply, after which the server counts as gone


@dataclass(frozen=True, slots=True)
class Asked:
    """One question: a pair in one order."""

    place: int  # the pair's place among all pairs
    pair: Pair
    order: Order
    text: str
    key: str  # hash of this request to this model


def questions(pairs: Iterable[Pair], question: Question, model: ChatModel) -> list[Asked]:
    """Return both orders of each pair; skip two equal texts."""
    requests = []
    for place, pair in enumerate(pairs):
        for order in ORDERS if pair.a != pair.b else ():
            text = question.text(pair, order)
            body = json.dumps(model.request(text), sort_keys=True, ensure_ascii=False)
            key = hashlib.sha256(body.encode("utf-8", "backslashreplace")).hexdigest()[:32]
            requests.append(Asked(place, pair, order, text, key))
    return requests


def kept_replies(file: Path) -> dict[str, str]:
    """Return the saved replies by the question's key, without a line truncated by a kill."""
    return {row["key"]: row["reply"] for row in read_rows(file, {"key": str, "reply": str})}


def from_elsewhere(file: Path, requests: Iterable[Asked], model: ChatModel) -> dict[str, int]:
    """Count the saved replies to these questions from other addresses, by address."""
    keys = {request.key for request in requests}
    urls = {row["key"]: str(row.get("url", UNKNOWN)) for row in read_rows(file, {"key": str, "reply": str})}
    return dict(Counter(url for key, url in urls.items() if key in keys and url != model.shown_url))


def ask(
    requests: Sequence[Asked],
    model: ChatModel,
    file: Path,
    num_in_flight: int,
    advance: Callable[[], None],
) -> dict[str, str]:
    """Return the reply to every question by its key: saved replies, and new ones.

    The result lacks unanswered questions; the next run repeats them.

    Args:
        advance: called for each reply, and for each question without one.

    Raises:
        InputError: the server refuses the requests, or `file` can't be written.
        RunError: the server has stopped answering. Earlier replies are saved.
    """
    replies = kept_replies(file)
    waiting = {request.key: request for request in requests if request.key not in replies}
    if waiting:
        file.parent.mkdir(parents=True, exist_ok=True)
        end_broken_line(file)
        has_replied = any(request.key in replies for request in requests)
        desk = _Desk(model, file, replies, advance, has_replied=has_replied)
        asyncio.run(desk.work_off(list(waiting.values()), num_in_flight))
    return replies


def end_broken_line(file: Path) -> None:
    """End a line truncated by a kill, so that the next row begins on a new line."""
    if file.exists() and (text := file.read_bytes()) and not text.endswith(b"\n"):
        with file.open("ab") as opened:
            opened.write(b"\n")


class _Desk:
    """Open questions, and the replies so far."""

    def __init__(
        self,
        model: ChatModel,
        file: Path,
        replies: dict[str, str],
        advance: Callable[[], None],
        *,
        has_replied: bool,
    ) -> None:
        self._model, self._file, self._replies, self._advance = model, file, replies, advance
        self._has_replied = has_replied  # whether one of these questions got a reply, now or before
        self._in_a_row = 0

    async def work_off(self, waiting: list[Asked], num_in_flight: int) -> None:
        queue = iter(waiting)
        async with self._model.client() as client:
            tasks = [asyncio.create_task(self._take_from(queue, client)) for _ in range(num_in_flight)]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _take_from(self, queue: Iterable[Asked], client: httpx.AsyncClient) -> None:
        for request in queue:
            try:
                reply = await self._model.reply(client, request.text)
            except Unanswered as error:
                # A server that refuses every question is no judge; single questions may be too long.
                if not (isinstance(error, Refused) and self._has_replied):
                    self._in_a_row += 1
                if self._in_a_row >= GIVEN_UP_AFTER:
                    raise RunError(
                        f"{self._in_a_row} questions in a row got no reply from {error}. "
                        f"{len(self._replies)} replies are saved; the same command continues"
                    ) from None
            else:
                self._in_a_row, self._has_replied = 0, True
                self._keep(request, reply)
            self._advance()

    def _keep(self, request: Asked, reply: str) -> None:
        self._replies[request.key] = reply
        row = {"key": request.key, "prompt": request.pair.id, "order": request.order, "reply": reply}
        row["url"] = self._model.shown_url
        try:
            append_row(self._file, row)
        except OSError as error:
            raise InputError(f"{self._file}: can't be written: {error.strerror}") from None
