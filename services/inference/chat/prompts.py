"""Lay out a conversation's prompt as in the model's training, and cut it to the window.

a dialogue task's run     the utterances as the task writes them, as many as its prompts have
a dialogue, of any task   the utterances, each followed by the environment's separator
a chat template           the template, with the system message
neither                   one text, a line for each turn
"""

import sys
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from contracts.components import create
from contracts.conversations.chat import Chat
from contracts.conversations.chat_settings import ChatForm
from contracts.errors import InputError
from rollout_workers.environments.partner_texts import joined
from services.data.tasks import TASKS
from services.data.tasks.base import OPTIONAL, SIDE_KEY, Task
from services.data.tokens.prompt_tokens import PromptTokens

Message = Mapping[str, str]  # {"role": "user" or "assistant", "content": …}


class Layout(Protocol):
    """Form of a conversation in a model's prompt."""

    stop: tuple[str, ...]  # strings that end an answer, besides the model's own end token
    most: int | None  # limit of messages in a prompt; None: unlimited
    by_pairs: bool  # whether a question is dropped with its answer, or each message alone

    def tokens(self, messages: Sequence[Message]) -> list[int]: ...


class Talk(Protocol):
    """Form of consecutive utterances in a prompt."""

    @property
    def eou_token(self) -> str:
        """The end-of-utterance token, which follows each utterance."""
        ...

    def prompt_of(self, utterances: Sequence[str]) -> str: ...


@runtime_checkable
class Dialogue(Talk, Protocol):
    """A task whose prompts are the last utterances of a dialogue, as DailyDialog's are."""

    context_size: int  # utterances in a prompt


@dataclass(frozen=True, slots=True)
class Separated:
    """The form that environment=dialogue gives to any task's utterances: `u1 <EOU> u2 <EOU>`."""

    eou_token: str

    def prompt_of(self, utterances: Sequence[str]) -> str:
        return joined(utterances, self.eou_token)


@dataclass(frozen=True, slots=True)
class Reader:
    """Converter of messages to at most `room` tokens; None: no limit.

    Example: with Lines and a room of 3, "3 5", its answer "7" and "9 11" are read as "9 11".
    """

    layout: Layout
    room: int | None

    def read(self, messages: Sequence[Message]) -> tuple[list[int], int]:
        """Return the prompt's tokens for an answer to the last message, and the number of dropped messages.

        Raises:
            InputError: the last message alone does not fit, or the layout refuses the conversation.
        """
        starts = [
            index
            for index, message in enumerate(messages)
            if message["role"] == "user" or not self.layout.by_pairs
        ]
        starts = starts[-self.layout.most :] if self.layout.most else starts
        tokens = self.layout.tokens(messages[starts[0] :])
        if self._fits(tokens):
            return tokens, starts[0]
        # Bisection, for a conversation of many messages: a later start never makes the prompt longer.
        place = bisect_left(starts, True, key=lambda start: self._fits(self.layout.tokens(messages[start:])))
        if place == len(starts):
            alone = len(self.layout.tokens(messages[starts[-1] :]))
            raise InputError(
                f"your message makes {alone} tokens, and the model can read {self.room}: "
                "say it in fewer words"
            )
        return self.layout.tokens(messages[starts[place] :]), starts[place]

    def _fits(self, tokens: Sequence[int]) -> bool:
        return self.room is None or len(tokens) <= self.room


class Utterances:
    """Layout of a dialogue, which either speaker may begin.

    Example: after "Hello!", "Hi." and "How are you?" DailyDialog's model reads
    "Hello! <EOU> Hi. <EOU> How are you? <EOU>", and its answer ends at the next <EOU>.
    """

    by_pairs = False

    def __init__(self, tokenizer: Any, talk: Talk, most: int | None) -> None:
        self._talk, self.most = talk, most
        self.stop: tuple[str, ...] = (talk.eou_token,)
        self._to_tokens = PromptTokens(tokenizer)

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        if (mark := self._talk.eou_token) in messages[-1]["content"]:
            raise InputError(
                f"the message contains {mark}, which ends each utterance of this model; leave it out"
            )
        utterances = [message["content"].strip() for message in messages]
        return list(self._to_tokens.of_text(self._talk.prompt_of(utterances)))


class Template:
    """Layout by a chat template, as in training and evaluations."""

    stop: tuple[str, ...] = ()
    most: int | None = None
    by_pairs = True

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self.tokens([{"role": "user", "content": "…"}])  # a template that refuses system messages fails now

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        return list(self._chat.tokens(messages))


class Lines:
    """Layout of all messages as one text, a line each, for a model that continues texts.

    Example: after a user's "3 5" and the model's "7", the user's "9" makes it read "3 5\\n7\\n9".
    """

    most: int | None = None
    by_pairs = True

    def __init__(self, tokenizer: Any, system: str | None, reply_end: str = "") -> None:
        self._to_tokens, self._opening = PromptTokens(tokenizer), _opening(system)
        end = reply_end.strip() or reply_end
        self.stop: tuple[str, ...] = (end,) if end else ()  # the end of answers in the run's environment

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        return list(
            self._to_tokens.of_text("\n".join(message["content"] for message in (*self._opening, *messages)))
        )


def layout_of(
    config: Mapping[str, Any], tokenizer: Any, form: ChatForm | None, system: str | None = None
) -> Layout:
    """Return the layout for a run with this configuration; {} for a model without a run.

    Args:
        form: the chat template by which the model reads prompts; None: it reads plain texts.
        system: a system message in front of plain texts; a template has its own in `form`.

    Raises:
        InputError: the layout has no place for a system message, or the template refuses it.
    """
    if form is not None:
        return Template(Chat(tokenizer, form))
    environment = config.get("environment") or {}
    plays = environment.get("name", "single_turn") != "single_turn"
    talk, most = _talk_of(_task(config), environment if plays else {})
    if talk is not None:
        if system is not None:
            raise InputError("--system: this run's model was trained on utterances alone; leave it out")
        return Utterances(tokenizer, talk, most)
    return Lines(tokenizer, system, str(environment.get("reply_end") or "") if plays else "")


def _talk_of(task: Task | None, environment: Mapping[str, Any]) -> tuple[Talk | None, int | None]:
    """Return the form of a run's dialogues, if any, and a prompt's largest number of utterances."""
    separator = environment.get("separator")
    if isinstance(task, Dialogue):  # in an environment a dialogue grows without limit
        return task, None if environment else task.context_size
    return (Separated(str(separator)) if separator else None), None


def _task(config: Mapping[str, Any]) -> Task | None:
    if not isinstance(section := config.get("task"), Mapping):
        return None
    options = {key: value for key, value in section.items() if key not in ("name", SIDE_KEY)}
    try:
        task: Task = create("task", str(section.get("name")), options, TASKS, Task, OPTIONAL)
    except InputError as error:  # the model can be used without the user's own task class
        print(
            f"The run's task can't be made here, so its prompts' form is not known: {error}", file=sys.stderr
        )
        return None
    return task


def _opening(system: str | None) -> list[Message]:
    return [] if system is None else [{"role": "system", "content": system}]
