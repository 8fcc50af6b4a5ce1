"""Server-sent events, as the HTML standard reads them from a stream of bytes."""

import re
from collections.abc import AsyncIterator, Iterator

from contracts.network.bounded_answers import MOST_BYTES, AnswerTooLong

LINE_END = re.compile(rb"\r\n|\n|\r(?=.)", re.DOTALL)  # the line feed of a last \r may still come


async def events(pieces: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, str]]:
    """Yield each event's name and data. Only CR and LF end a line; U+2028 and U+0085 do not.

    Raises:
        AnswerTooLong: the stream is too long.
        ValueError: the stream is not UTF-8.
    """
    left, num_bytes = b"", 0
    reading = _Reading()
    async for piece in pieces:
        num_bytes += len(piece)
        if num_bytes > MOST_BYTES:
            raise AnswerTooLong(f"the stream has more than {MOST_BYTES} bytes")
        *lines, left = LINE_END.split(left + piece)
        for line in lines:
            for event in reading.line(line.decode()):
                yield event


class _Reading:
    """Lines of the current event."""

    def __init__(self) -> None:
        self._name, self._data = "", list[str]()

    def line(self, line: str) -> Iterator[tuple[str, str]]:
        """Yield the event that a blank line ends."""
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")  # one blank belongs to the form, more to the text
        if not line:
            if self._name or self._data:
                yield self._name, "\n".join(self._data)
            self._name, self._data = "", []
        elif field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
