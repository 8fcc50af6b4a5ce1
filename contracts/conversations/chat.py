"""Rendering of conversations by chat templates: only here do messages become tokens.

Train, evaluate, generate, chat and annotate all read prompts through `Chat`, so that they read the same. A
template is text in Jinja, which transformers renders in its sandbox. The template writes the special tokens;
the tokenizer adds none, so that there are not two beginning tokens.

Each later turn is rendered separately, after the drawn tokens:

    tokens(messages)  answer  closing(answer)  turn([user])  answer  closing(answer)  turn([user])  …
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from contracts.conversations.accepted_forms import AcceptedForms
from contracts.conversations.answers import Answers
from contracts.conversations.chat_settings import ChatForm
from contracts.conversations.encoding import Encoding, Tokens
from contracts.conversations.ends import Ends, not_in_turns
from contracts.conversations.messages import RESPONSE, Message, spoken
from contracts.conversations.rendering import ASKED as ASKED
from contracts.conversations.rendering import SAID, Rendering
from contracts.conversations.rendering import SYSTEM_ROLES as SYSTEM_ROLES
from contracts.errors import InputError
from contracts.rollout import Prompt

CHANNEL = re.compile(
    r"<\|channel\|>(\w+)[^<]*<\|message\|>(.*?)(?=<\|end\|>|<\|return\|>|<\|call\|>|$)", re.DOTALL
)


class Chat:
    """Renderer of conversations for one tokenizer.

    Example: with a template that writes `<|role|>content<end>` around each message and a system message
    "Be brief.", `text([{"role": "user", "content": "Hi!"}])` is
    "<|system|>Be brief.<end><|user|>Hi!<end><|assistant|>".

    Raises:
        InputError: the tokenizer has no template, or the template has no place for the system message.
    """

    def __init__(self, tokenizer: Any, form: ChatForm) -> None:
        self._tokenizer, self._form = tokenizer, form
        self._rendering = Rendering(tokenizer, form)
        self._forms, self._encoding = AcceptedForms(self._rendering), Encoding(tokenizer)
        self._ends = Ends(self._rendering, self._forms, self._encoding, form.ends)
        if form.system is not None:
            self._refuse_lost_system()

    def text(self, messages: Sequence[Message], tools: Sequence[Any] = (), *, ask: bool = True) -> str:
        """Return a conversation as the model reads it, special tokens visible.

        Args:
            tools: JSON schemas of functions that the model may call.
            ask: end where the assistant's answer begins.

        Raises:
            InputError: the template refuses the conversation, or has no place for a part of it; names a
                remedy.
        """
        return self._rendering.text(self._forms.translated(messages), tools, ask=ask)

    def tokens(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> Tokens:
        """Return a conversation's tokens, up to where the assistant's answer begins.

        Raises:
            InputError: as for `text`; or the template leaves out a message.
        """
        translated = self._forms.translated(messages)
        rendered = self._rendering.text(translated, tools, ask=True)
        self._forms.refuse_lost(translated, ask=True)
        return self.encode(rendered)

    def of_prompt(self, prompt: Prompt) -> Tokens:
        """Return a prompt's tokens; a plain text is the user's message.

        Raises:
            InputError: the template refuses the prompt, or leaves out a part; names it.
        """
        try:
            return self.tokens(messages_of(prompt), prompt.tools)
        except InputError as error:
            raise InputError(f"prompt {prompt.id}: {error}") from None

    def turn(self, messages: Sequence[Message]) -> Tokens:
        """Return the tokens of messages that follow a closed answer, up to the begin of the next answer.

        Raises:
            InputError: the template has no place between an answer and the next message.
        """
        return self._encoding.behind(self._ends.closing, self.turn_text(messages))

    def turn_text(self, messages: Sequence[Message]) -> str:
        """Return the text of `turn`, special tokens visible."""
        rest = self._ends.behind([ASKED, SAID, *messages], ask=True)
        if not rest.startswith(self._ends.closing):
            raise not_in_turns()
        return rest.removeprefix(self._ends.closing)

    def closing(self, answer: Sequence[int]) -> Tokens:
        """Return the tokens between an answer and the next message, except those that the answer has."""
        return self._ends.left(tuple(answer))

    def following(self, answer: Sequence[int], turn: Tokens) -> Tokens:
        """Return a turn's tokens after an answer, with the answer's closing tokens, and no token twice.

        If a template writes no mark after answers, a model may end its answer with the first token of the
        next message, as GLM does with <|user|> and <|observation|>.
        """
        return self._ends.following(tuple(answer), turn)

    def answer(self, text: str) -> Tokens:
        """Return an answer to a question as the model would generate it, its end included.

        Raises:
            InputError: as for `answer_to`.
        """
        return self._answer([ASKED], {"role": "assistant", "content": text.strip()}, ())

    def answer_to(self, prompt: Prompt, response: str) -> Tokens:
        """Return the answer to a prompt as the model would generate it, its end included.

        Args:
            response: its text; if it is more than a text, the prompt's meta data has its message.

        Raises:
            InputError: the template leaves out a part of the answer, or has no place for it after the
                prompt; names the prompt.
        """
        message: Message = prompt.meta.get(RESPONSE) or {}
        if response.strip() not in {str(message.get("content") or "").strip(), spoken(message).strip()} - {
            ""
        }:
            message = {"role": "assistant", "content": response.strip()}
        try:
            return self._answer(messages_of(prompt), message, prompt.tools)
        except InputError as error:
            raise InputError(f"the response to prompt {prompt.id}: {error}") from None

    def message(self, answer: Sequence[int]) -> Message:
        """Return the model's answer as a message, for templates that render earlier answers again.

        An answer in gpt-oss's channels is divided into `thinking` and `content`; other templates find the
        thinking in the content themselves.
        """
        text = self._encoding.text(self._ends.without(tuple(answer)))
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
        """Return the special token with which the template ends an answer; None without one."""
        return self._ends.token

    @property
    def shows_tools(self) -> bool:
        """Return whether the template lists the tools that the model may call."""
        return self._forms.shows_tools

    @property
    def changes_daily(self) -> bool:
        """Return whether a rendered text named the day of its rendering, and the settings name none."""
        return self._rendering.changes_daily

    @property
    def eos_token_id(self) -> int | None:
        return next(iter(self._encoding.eos), None)

    def shown(self, token: int) -> str:
        """Return a token as text."""
        return self._encoding.shown(token)

    def pieces(self, text: str) -> list[str]:
        """Return a text cut between its tokens; joined, the pieces are the text again."""
        return self._encoding.pieces(text)

    def encode(self, text: str) -> Tokens:
        """Return the tokens of a rendered text, or of a piece of it; the tokenizer adds none."""
        return self._encoding.tokens(text)

    @cached_property
    def _answers(self) -> Answers:
        return Answers(self._rendering, self._forms, self._ends.last)

    def _answer(self, prompt: Sequence[Message], message: Message, tools: Sequence[Any]) -> Tokens:
        before, written = self._answers.laid_out(prompt, message, tools)
        return self._ends.ended(before, written, calls=bool(message.get("tool_calls")))

    def _refuse_lost_system(self) -> None:
        """Refuse a template that leaves out the system message; its default may have the same words."""
        assert self._form.system is not None
        with_system = self.text([ASKED])
        try:
            without = Chat(self._tokenizer, replace(self._form, system=None)).text([ASKED])
        except InputError:  # the template requires one
            return
        if with_system == without and self._form.system.strip() not in with_system:
            raise InputError(
                "this chat template leaves out system messages: leave out model.chat.system, or give "
                "model.chat.template=FILE with a place for it"
            )


def messages_of(prompt: Prompt) -> list[Mapping[str, Any]]:
    """Return a prompt's conversation; a plain text is the user's message."""
    return list(prompt.messages) or [{"role": "user", "content": prompt.text}]
