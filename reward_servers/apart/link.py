"""The line between the tests' and the program's process. While a side waits, it answers the other's requests.

    tests ── {"do": "call", "of": 3, …} ──▶ program
          ◀─ {"do": "call", "of": 0, …} ──      a function from the test
          ── {"value": 5} ────────────────▶
          ◀─ {"value": 25, "printed": ""} ─

A message is its length in four bytes, and JSON.
"""

import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from reward_servers.apart.plain import as_mapping

MOST = 16 << 20  # bytes of a message
HEADER = 4

Message = Mapping[str, Any]


class Lost(BaseException):
    """The other process ended, or wrote no message. No test's `except Exception` catches this."""


class Link:
    """One end of the line.

    Args:
        file: descriptor of a socket.
        answer: answers a request; it never raises.
    """

    def __init__(self, file: int, answer: Callable[[Message], Message]) -> None:
        self._file, self._answer = file, answer
        self._turn = threading.RLock()
        self._is_lost = False

    def ask(self, message: Message) -> Message:
        """Return the other side's answer, and meanwhile answer its requests.

        Raises:
            Lost: the other side ended.
        """
        with self._turn:
            self._send(message)
            while "do" in (received := self._receive()):
                self._reply(received)
            return received

    def answer_all(self) -> None:
        """Answer until the other side ends."""
        while True:
            self._reply(self._receive())

    def _reply(self, request: Message) -> None:
        answer = self._answer(request)
        try:
            self._send(answer)
        except (ValueError, RecursionError, TypeError) as error:
            self._send({"error": ["ValueError", [f"the value can't be sent: {error}"]]})

    def _send(self, message: Message) -> None:
        data = json.dumps(message).encode()
        if len(data) > MOST:
            raise ValueError(f"it has {len(data)} bytes; expected at most {MOST}")
        data = len(data).to_bytes(HEADER) + data
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            raise self._lost(f"the other process ended: {error}") from None

    def _receive(self) -> Message:
        length = int.from_bytes(self._exactly(HEADER))
        if length > MOST:
            raise self._lost(f"a message of {length} bytes")
        try:
            return as_mapping(json.loads(self._exactly(length)))
        except (ValueError, RecursionError) as error:
            raise self._lost(f"no message: {error}") from None

    def _exactly(self, length: int) -> bytes:
        if self._is_lost:
            raise Lost("the line is closed")
        received = bytearray()
        while len(received) < length:
            some = os.read(self._file, min(length - len(received), 1 << 20))
            if not some:
                raise self._lost("the other process ended")
            received += some
        return bytes(received)

    def _lost(self, why: str) -> Lost:
        self._is_lost = True
        return Lost(why)
