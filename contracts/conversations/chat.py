"""Rendering of conversations by chat templates: the one place where messages become tokens.

Train, evaluate, generate, chat and annotate all read prompts through `Chat`, so that they read the same. A
template is text in Jinja, which transformers renders in its sandbox. Special tokens are the template's own:
the tokenizer adds none, so that there is one beginning token and not two.

A later turn is rendered as a piece of its own, behind the tokens that were drawn:

    tokens(messages)  answer  closing(answer)  turn([user])  answer  closing(answer)  turn([user])  …
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, time
from functools import cached_property
from typing import Any

from contracts.conversations.chat_settings import ChatForm
from contracts.conversations.messages import Message
from contracts.errors import InputError
from contracts.rollout import Prompt

Tokens = tuple[int, ...]

# Contents whose places are looked for in a rendered text.
ASKED: Message = {"role": "user", "content": "Placeholder-of-a-question"}
SAID: Message = {"role": "assistant", "content": "Placeholder-of-an-answer"}
SYSTEM_ROLES = ("system", "developer")
CHANNEL = re.compile(
    r"<\|channel\|>(\w+)[^<]*<\|message\|>(.*?)(?=<\|end\|>|<\|return\|>|<\|call\|>|$)", re.DOTALL
)


class Chat:
    """Renderer of conversations for one tokenizer.

    Example: with a template that writes `<|role|>content<end>` around each message and a system message
    "Be brief.", `text([{"role": "user", "content": "Hi!"}])` is
    "<|system|>Be brief.<end><|user|>Hi!<end><|assistant|>".

    Raises:
        InputError: there is no template, or it has no place for the system message.
    """

    def __init__(self, tokenizer: Any, form: ChatForm) -> None:
        if form.template is None and not getattr(tokenizer, "chat_template", None):
            raise InputError(
                "the tokenizer has no chat template: give a file, model.chat.template=FILE.jinja, or "
                "model.chat.template=none for plain text"
            )
        self._tokenizer, self._form = tokenizer, form
        # A day of its own for each start: a run that is at work at midnight goes on with its day.
        self._now = datetime.now() if form.date is None else datetime.combine(form.date, time())
        # True: a rendered text names the day of its rendering, and the settings name none.
        self.changes_daily = False
        if form.system is not None:
            self._refuse_lost_system()

    def text(self, messages: Sequence[Message], tools: Sequence[Any] = (), *, ask: bool = True) -> str:
        """Return a conversation as the model reads it, special tokens visible.

        Args:
            tools: JSON schemas of functions that the model may call.
            ask: end where the assistant's answer begins.

        Raises:
            InputError: the template refuses the conversation; says what to do.
        """
        said = [dict(message) for message in (*self._opening(messages), *messages)]
        try:
            rendered = self._tokenizer.apply_chat_template(
                said,
                tools=list(tools) or None,
                chat_template=self._form.template,
                tokenize=False,
                add_generation_prompt=ask,
                **{"strftime_now": self._today, **self._form.options},
            )
        except Exception as error:  # a template may raise anything
            raise InputError(_refusal(error, said)) from None
        return str(rendered)

    def tokens(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> Tokens:
        """Return a conversation's tokens, up to where the assistant's answer begins."""
        return self.encode(self.text(messages, tools))

    def of_prompt(self, prompt: Prompt) -> Tokens:
        """Return a prompt's tokens; a plain text is the user's message.

        Raises:
            InputError: the template refuses the prompt; names it.
        """
        try:
            return self.tokens(messages_of(prompt), prompt.tools)
        except InputError as error:
            raise InputError(f"prompt {prompt.id}: {error}") from None

    def turn(self, messages: Sequence[Message]) -> Tokens:
        """Return the tokens of messages that follow a closed answer, up to where the next answer begins.

        Raises:
            InputError: the template has no place between an answer and the message behind it.
        """
        return self.encode(self.turn_text(messages))

    def turn_text(self, messages: Sequence[Message]) -> str:
        """Return the text of `turn`, special tokens visible."""
        rest = self._behind([ASKED, SAID, *messages], ask=True)
        if not rest.startswith(self._closing):
            raise _not_in_turns()
        return rest.removeprefix(self._closing)

    def closing(self, answer: Sequence[int]) -> Tokens:
        """Return the tokens between an answer and the next message, without those that the answer has."""
        closing, last = self._closing_tokens, self._last_tokens
        said = (count for count in range(len(closing), 0, -1) if tuple(answer[-count:]) == closing[:count])
        if count := next(said, 0):
            return closing[count:]
        # Some end an answer with another token where nothing follows, as gpt-oss with <|return|>.
        return closing[1:] if last and tuple(answer[-1:]) == last[:1] else closing

    def answer(self, text: str) -> Tokens:
        """Return an answer as the model would generate it, its end included."""
        end = self._last_tokens[:1]
        if not end and self._tokenizer.eos_token_id is not None:
            end = (self._tokenizer.eos_token_id,)
        return self.encode(self._before_answers + text.strip()) + end

    def message(self, answer: Sequence[int]) -> Message:
        """Return the model's answer as a message, for templates that lay out earlier answers anew.

        An answer in gpt-oss's channels is divided into `thinking` and `content`; other templates find the
        thinking in the content themselves.
        """
        ends = {self._last_tokens[:1], self._closing_tokens[:1], (self._tokenizer.eos_token_id,)}
        kept = list(answer[:-1] if tuple(answer[-1:]) in ends else answer)
        text = str(self._tokenizer.decode(kept, skip_special_tokens=False))
        parts = dict(CHANNEL.findall(text))
        if not parts:
            return {"role": "assistant", "content": text}
        thinking = {"thinking": parts["analysis"]} if "analysis" in parts else {}
        return {"role": "assistant", "content": parts.get("final", ""), **thinking}

    @property
    def follows_template(self) -> bool:
        """Return whether earlier turns are read as the template writes them, not as they were recorded."""
        return self._form.follows_template

    @property
    def system(self) -> str | None:
        return self._form.system

    @property
    def end_token(self) -> int | None:
        """Return the token with which the template ends an answer; None where it is no special token."""
        tokens = self._last_tokens[:1]
        return tokens[0] if tokens and self._special(tokens[0]) else None

    @property
    def eos_token_id(self) -> int | None:
        found: int | None = self._tokenizer.eos_token_id
        return found

    def shown(self, token: int) -> str:
        """Return a token as text."""
        return str(self._tokenizer.convert_ids_to_tokens(token))

    def pieces(self, text: str) -> list[str]:
        """Return a text cut between its tokens; together the pieces are the text again."""
        if not getattr(self._tokenizer, "is_fast", False):
            return re.findall(r"\s*\S+\s*$|\s*\S+|\s+$", text)
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        starts = sorted({0, *(start for start, _ in found["offset_mapping"])})
        return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]

    def encode(self, text: str) -> Tokens:
        """Return the tokens of a rendered text, or of a piece of it; the tokenizer adds none."""
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"]) if text else ()

    # ---- the template's pieces ----

    @cached_property
    def _last(self) -> str:
        """Return the text behind an answer that nothing follows."""
        return self._behind([ASKED, SAID], ask=False)

    @cached_property
    def _closing(self) -> str:
        """Return the text between an answer and the beginning of the next message."""
        rest = self._behind([ASKED, SAID, ASKED], ask=True)
        if rest.startswith(self._last):
            return self._last
        tokens = self.encode(rest)
        mark = self.shown(tokens[0]) if tokens and self._special(tokens[0]) else ""
        if not mark or not rest.startswith(mark):
            raise _not_in_turns()
        behind = rest.removeprefix(mark)
        return mark + behind[: len(behind) - len(behind.lstrip())]

    @cached_property
    def _last_tokens(self) -> Tokens:
        return self.encode(self._last)

    @cached_property
    def _closing_tokens(self) -> Tokens:
        return self.encode(self._closing)

    @cached_property
    def _before_answers(self) -> str:
        """Return what the template puts in front of an answer, and not at the end of a prompt."""
        asked, said = self.text([ASKED]), self.text([ASKED, SAID], ask=False)
        return said[len(asked) : said.rindex(SAID["content"])] if said.startswith(asked) else ""

    def _behind(self, messages: Sequence[Message], *, ask: bool) -> str:
        _, found, rest = self.text(messages, ask=ask).rpartition(SAID["content"])
        if not found:
            raise _not_in_turns()
        return rest

    def _refuse_lost_system(self) -> None:
        """Refuse a template that leaves out the system message; its own default may be the same words."""
        assert self._form.system is not None
        with_system = self.text([ASKED])
        try:
            without = Chat(self._tokenizer, replace(self._form, system=None)).text([ASKED])
        except InputError:  # it needs one
            return
        if with_system == without and self._form.system.strip() not in with_system:
            raise InputError(
                "this chat template leaves out system messages: leave out model.chat.system, or give "
                "model.chat.template=FILE with a place for it"
            )

    def _opening(self, messages: Sequence[Message]) -> list[Message]:
        """Return the system message, unless the conversation begins with one."""
        has_own = bool(messages) and messages[0].get("role") in SYSTEM_ROLES
        return (
            [] if self._form.system is None or has_own else [{"role": "system", "content": self._form.system}]
        )

    def _today(self, form: str) -> str:
        self.changes_daily = self._form.date is None
        return self._now.strftime(form)

    def _special(self, token: int) -> bool:
        return self._tokenizer.convert_ids_to_tokens(token) in self._tokenizer.get_added_vocab()


def messages_of(prompt: Prompt) -> list[Mapping[str, Any]]:
    """Return a prompt's conversation; a plain text is the user's message."""
    return list(prompt.messages) or [{"role": "user", "content": prompt.text}]


def _refusal(error: Exception, messages: Sequence[Message]) -> str:
    roles = [str(message["role"]) for message in messages]
    told = f"the chat template refuses a conversation of {', '.join(roles)}: {error}"
    if roles[0] in SYSTEM_ROLES:
        return f"{told}. If it takes no system message, leave out model.chat.system, or those of the data"
    return (
        f"{told}. If it needs a system message, give model.chat.system=TEXT; model.chat.template=FILE takes "
        "another template, none plain text"
    )


def _not_in_turns() -> InputError:
    return InputError(
        "this chat template can't be continued turn by turn: it leaves out answers, or writes no mark behind "
        "them. model.chat.history=template renders every turn anew; or model.chat.template=FILE"
    )
