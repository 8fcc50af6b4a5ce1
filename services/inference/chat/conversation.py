"""A conversation in a terminal, line by line."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

from contracts.errors import InputError
from services.inference.chat.prompts import Message, Reader
from services.terminal.visible import visible

OUTGROWN = "The conversation is longer than the model can read: from now on its oldest part is left out."
LEAVE = ("quit", "exit")


def converse(reader: Reader, speaker: Any, lines: Iterator[str], say: Callable[[str], None]) -> None:
    """Answer each line until the input's end, `quit` or `exit`; `reset` starts a new conversation."""
    messages: list[Message] = []
    is_told = False
    for line in lines:
        if not (command := line.strip()):
            continue
        if command in LEAVE:
            return
        if command == "reset":
            messages.clear()
            is_told = False
            continue
        talk = [*messages, {"role": "user", "content": line}]
        try:
            tokens, num_forgotten = reader.read(talk)
        except InputError as error:
            print(visible(str(error)), file=sys.stderr)
            continue
        if num_forgotten and not is_told:
            print(OUTGROWN, file=sys.stderr)
            is_told = True
        answer = speaker.answer(tokens, lambda piece: say(visible(piece)))
        messages = [*talk[num_forgotten:], {"role": "assistant", "content": answer.text}]
        say("\n")
