"""Rendering of messages by a chat template, exactly as it stands: transformers runs it in its sandbox.

The sandbox keeps a template from Python's objects. Time and length of the text are bounded here.
"""

import contextlib
import ctypes
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, time
from typing import Any

from contracts.conversations.chat_settings import ChatForm
from contracts.conversations.messages import Message
from contracts.errors import InputError

# Contents whose places the code seeks in a rendered text.
ASKED: Message = {"role": "user", "content": "Placeholder-of-a-question"}
SAID: Message = {"role": "assistant", "content": "Placeholder-of-an-answer"}
SYSTEM_ROLES = ("system", "developer")
LONGEST_S = 30.0  # limit for one conversation
MOST_CHARACTERS = 50_000_000
OTHER = "; set model.chat.template=FILE for another template, or model.chat.template=none for plain text"


class Rendering:
    """Renderer of messages for one tokenizer; the settings' system message comes before them.

    Raises:
        InputError: the tokenizer has no template.
    """

    def __init__(self, tokenizer: Any, form: ChatForm) -> None:
        if form.template is None and not getattr(tokenizer, "chat_template", None):
            raise InputError(
                "the tokenizer has no chat template: give a file, model.chat.template=FILE.jinja, or "
                "model.chat.template=none for plain text"
            )
        self._tokenizer, self.form = tokenizer, form
        # Each start fixes one day, so that a run that goes past midnight keeps its day.
        self._now = datetime.now() if form.date is None else datetime.combine(form.date, time())
        # True: a rendered text names its day of rendering, and the settings name no day.
        self.changes_daily = False

    def text(self, messages: Sequence[Message], tools: Sequence[Any] = (), *, ask: bool) -> str:
        """Return messages as the template writes them, special tokens visible.

        Args:
            tools: JSON schemas of functions that the model may call.
            ask: end where the assistant's answer begins.

        Raises:
            InputError: the template refuses the conversation; names a remedy.
        """
        conversation = [dict(message) for message in (*self._opening(messages), *messages)]
        try:
            with _ended_after(LONGEST_S):
                rendered = self._tokenizer.apply_chat_template(
                    conversation,
                    tools=list(tools) or None,
                    chat_template=self.form.template,
                    tokenize=False,
                    add_generation_prompt=ask,
                    **{"strftime_now": self._today, **self.form.options},
                )
        except _TookTooLong:
            raise InputError(f"the chat template was ended: {LONGEST_S:g} s were not enough{OTHER}") from None
        except Exception as error:  # a template may raise anything
            raise InputError(_refusal(error, conversation)) from None
        if len(rendered) > MOST_CHARACTERS:
            raise InputError(f"the chat template writes {len(rendered):,} characters for one text{OTHER}")
        return str(rendered)

    def tried(self, messages: Sequence[Message], tools: Sequence[Any] = (), *, ask: bool = False) -> str:
        """Return the text of placeholders; "" if the template refuses them."""
        try:
            return self.text(messages, tools, ask=ask)
        except InputError:
            return ""

    def with_options(self, options: Mapping[str, Any]) -> "Rendering":
        """Return a renderer with more options for its template."""
        form = replace(self.form, options={**self.form.options, **options})
        return Rendering(self._tokenizer, form)

    def _opening(self, messages: Sequence[Message]) -> list[Message]:
        """Return the system message, unless the conversation begins with one."""
        has_own = bool(messages) and messages[0].get("role") in SYSTEM_ROLES
        system = self.form.system
        return [] if system is None or has_own else [{"role": "system", "content": system}]

    def _today(self, form: str) -> str:
        self.changes_daily = self.form.date is None
        return self._now.strftime(form)


class _TookTooLong(Exception):
    """The end of a template that runs too long."""


@contextlib.contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """Raise _TookTooLong in this thread between two steps of Python, after the time."""
    thread, is_over, lock = threading.get_ident(), False, threading.Lock()

    def end() -> None:
        with lock:
            if not is_over:
                raised = ctypes.py_object(_TookTooLong)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            is_over = True
        timer.cancel()


def _refusal(error: Exception, messages: Sequence[Message]) -> str:
    roles = [str(message["role"]) for message in messages]
    problem = f"the chat template refuses a conversation of {', '.join(roles)}: {error}"
    if roles[0] in SYSTEM_ROLES:
        return f"{problem}. If it takes no system message, leave out model.chat.system, or those of the data"
    return (
        f"{problem}. If it needs a system message, set model.chat.system=TEXT. Otherwise set "
        "model.chat.template=FILE for another template, or model.chat.template=none for plain text"
    )
