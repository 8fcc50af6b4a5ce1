"""Every pair's question in both orders, several under way at a time, each reply kept as soon as it is there.

pairs × orders ─▶ those without a kept reply ─▶ chat model ─▶ replies.jsonl
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from contracts.errors import InputError, RunError
from services.json_lines import append_row, read_rows
from services.pairwise.chat_model import ChatModel, Refused, Unanswered
from services.pairwise.question import ORDERS, Order, Question
from services.pairwise.texts import Pair

GIVEN_UP_AFTER = 8  # questions in a row that got no reply: nobody is there


@dataclass(frozen=True, slots=True)
class Asked:
    """One question: a pair in one order."""

    place: int  # of the pair among all
    pair: Pair
    order: Order
    text: str
    key: str  # of exactly this question to exactly this model


def questions(pairs: Iterable[Pair], question: Question, model: ChatModel) -> list[Asked]:
    """Both orders of each pair; two texts that are the same need no judge."""
    found = []
    for place, pair in enumerate(pairs):
        for order in ORDERS if pair.a != pair.b else ():
            text = question.text(pair, order)
            asked = json.dumps(model.request(text), sort_keys=True, ensure_ascii=False)
            key = hashlib.sha256(asked.encode("utf-8", "backslashreplace")).hexdigest()[:32]
            found.append(Asked(place, pair, order, text, key))
    return found


def kept_replies(file: Path) -> dict[str, str]:
    """By the question's key. A line cut short by a kill is none, and its question is asked again."""
    return {row["key"]: row["reply"] for row in read_rows(file, {"key": str, "reply": str})}


def ask(
    asked: Sequence[Asked],
    model: ChatModel,
    file: Path,
    num_in_flight: int,
    advance: Callable[[], None],
) -> dict[str, str]:
    """The reply to every question, by its key: those that are kept, and those that are given now.

    A question that gets no reply is left out; the next run asks it again.

    Args:
        advance: called for each reply, and for each question without one.

    Raises:
        InputError: the server refuses.
        RunError: nobody answers any more. What was replied until then is kept.
    """
    replies = kept_replies(file)
    waiting = {each.key: each for each in asked if each.key not in replies}
    if waiting:
        file.parent.mkdir(parents=True, exist_ok=True)
        end_broken_line(file)
        has_replied = any(each.key in replies for each in asked)
        desk = _Desk(model, file, replies, advance, has_replied=has_replied)
        asyncio.run(desk.work_off(list(waiting.values()), num_in_flight))
    return replies


def end_broken_line(file: Path) -> None:
    """So that the next line does not continue one that a kill cut short."""
    if file.exists() and (text := file.read_bytes()) and not text.endswith(b"\n"):
        with file.open("ab") as opened:
            opened.write(b"\n")


class _Desk:
    """The questions under way."""

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
        self._has_replied = has_replied  # to one of these questions, now or before
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
        for asked in queue:
            try:
                reply = await self._model.reply(client, asked.text)
            except Unanswered as error:
                # Who refuses every question from the first on is no judge; some of them may be too long.
                if not (isinstance(error, Refused) and self._has_replied):
                    self._in_a_row += 1
                if self._in_a_row >= GIVEN_UP_AFTER:
                    raise RunError(
                        f"{self._in_a_row} questions in a row got no reply from {error}. "
                        f"{len(self._replies)} replies are kept; the same command goes on"
                    ) from None
            else:
                self._in_a_row, self._has_replied = 0, True
                self._keep(asked, reply)
            self._advance()

    def _keep(self, asked: Asked, reply: str) -> None:
        self._replies[asked.key] = reply
        row = {"key": asked.key, "prompt": asked.pair.id, "order": asked.order, "reply": reply}
        try:
            append_row(self._file, row)
        except OSError as error:
            raise InputError(f"{self._file}: can't be written: {error.strerror}") from None
