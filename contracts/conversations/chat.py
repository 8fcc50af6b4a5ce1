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
from functools import cached_property
from typing import Any

from contracts.conversations.accepted_forms import AcceptedForms
from contracts.conversations.answers import Answers
from contracts.conversations.chat_settings import ChatForm
from contracts.conversations.messages import RESPONSE, Message, spoken
from contracts.conversations.rendering import ASKED as ASKED
from contracts.conversations.rendering import SAID, Rendering
from contracts.conversations.rendering import SYSTEM_ROLES as SYSTEM_ROLES
from contracts.errors import InputError
from contracts.rollout import Prompt

Tokens = tuple[int, ...]

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
        self._tokenizer, self._form = tokenizer, form
        self._rendering = Rendering(tokenizer, form)
        self._forms = AcceptedForms(self._rendering)
        if form.system is not None:
            self._refuse_lost_system()

    def text(self, messages: Sequence[Message], tools: Sequence[Any] = (), *, ask: bool = True) -> str:
        """Return a conversation as the model reads it, special tokens visible.

        Args:
            tools: JSON schemas of functions that the model may call.
            ask: end where the assistant's answer begins.

        Raises:
            InputError: the template refuses the conversation, or has no place for a part of it; says what to
                do.
        """
        return self._rendering.text(self._forms.translated(messages), tools, ask=ask)

    def tokens(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> Tokens:
        """Return a conversation's tokens, up to where the assistant's answer begins.

        Raises:
            InputError: as `text`; or the template leaves out a message.
        """
        said = self._forms.translated(messages)
        rendered = self._rendering.text(said, tools, ask=True)
        self._forms.refuse_lost(said, ask=True)
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
        """Return the tokens of messages that follow a closed answer, up to where the next answer begins.

        Raises:
            InputError: the template has no place between an answer and the message behind it.
        """
        return self._encode_behind(self._closing, self.turn_text(messages))

    def turn_text(self, messages: Sequence[Message]) -> str:
        """Return the text of `turn`, special tokens visible."""
        rest = self._behind([ASKED, SAID, *messages], ask=True)
        if not rest.startswith(self._closing):
            raise _not_in_turns()
        return rest.removeprefix(self._closing)

    def closing(self, answer: Sequence[int]) -> Tokens:
        """Return the tokens between an answer and the next message, without those that the answer has."""
        closing, last = self._closing_tokens, self._last_tokens
        for count in range(max(len(closing), len(last)), 0, -1):
            end = tuple(answer[-count:])
            if end == closing[:count]:
                return closing[count:]
            if end == last[:count] and end[: len(closing)] == closing:
                return ()
        # Some end an answer with another token where nothing follows, as gpt-oss with <|return|>, <|call|>.
        return closing[1:] if tuple(answer[-1:]) in (last[:1], self._call_end) and answer else closing

    def following(self, answer: Sequence[int], turn: Tokens) -> Tokens:
        """Return the tokens of a turn behind an answer, with what closes the answer, and nothing twice.

        Where a template writes no mark behind answers, a model may end its own by drawing the first token of
        the next message, as GLM does with <|user|> and <|observation|>.
        """
        has_mark = bool(self._closing_tokens)
        if not has_mark and turn and tuple(answer[-1:]) == turn[:1] and self._special(turn[0]):
            return turn[1:]
        return self.closing(answer) + turn

    def answer(self, text: str) -> Tokens:
        """Return an answer to a question as the model would generate it, its end included.

        Raises:
            InputError: as `answer_to`.
        """
        return self._answer([ASKED], {"role": "assistant", "content": text.strip()}, ())

    def answer_to(self, prompt: Prompt, response: str) -> Tokens:
        """Return the answer to a prompt as the model would generate it, its end included.

        Args:
            response: its text; the prompt's meta data has its message, where that is more than a text.

        Raises:
            InputError: the template leaves out a part of the answer, or has no place for it behind the
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
        """Return the model's answer as a message, for templates that lay out earlier answers anew.

        An answer in gpt-oss's channels is divided into `thinking` and `content`; other templates find the
        thinking in the content themselves.
        """
        ends = [self._up_to_the_end(self._last_tokens), *((end,) for end in self._ends)]
        ends += [self._last_tokens[:1], self._closing_tokens[:1]]
        end = next((end for end in ends if end and tuple(answer[-len(end) :]) == end), ())
        kept = list(answer[: len(answer) - len(end)])
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
        tokens = self._last_tokens[:1] or self._closing_tokens[:1]
        return tokens[0] if tokens and self._special(tokens[0]) else None

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
        if not self._last:  # the mark stands behind an answer that something follows, or there is none
            return self._before_the_next
        if rest.startswith(self._last):
            return self._last
        tokens = self.encode(rest)
        mark = self.shown(tokens[0]) if tokens and self._special(tokens[0]) else ""
        if not mark or not rest.startswith(mark):
            raise _not_in_turns()
        behind = rest.removeprefix(mark)
        return mark + behind[: len(behind) - len(behind.lstrip())]

    @cached_property
    def _before_the_next(self) -> str:
        """Return what stands between an answer and the beginning that a first message has, too."""
        mark = str(ASKED["content"])
        between = self._behind([ASKED, SAID, ASKED], ask=True).partition(mark)[0]
        tokens, opening = self.encode(between), self.encode(self.text([ASKED]).partition(mark)[0])
        pairs = zip(reversed(tokens), reversed(opening), strict=False)
        num_equal = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(tokens), len(opening)))
        before = self._tokenizer.decode(tokens[: len(tokens) - num_equal], skip_special_tokens=False)
        return str(before) if between.startswith(before) else ""

    @cached_property
    def _last_tokens(self) -> Tokens:
        return self.encode(self._last)

    @cached_property
    def _closing_tokens(self) -> Tokens:
        return self.encode(self._closing)

    @cached_property
    def _call_end(self) -> Tokens:
        """Return the first token behind a call that nothing follows; () where it is no special one."""
        text = self._rendering.tried([ASKED, self._forms.call_message()])
        tokens = self._trailing(self.encode(text.rstrip()))
        return tokens[:1]

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        """Return the tokens at which the model stops."""
        eos = self._tokenizer.eos_token_id
        return tuple(dict.fromkeys((*([] if eos is None else [eos]), *self._form.ends)))

    @cached_property
    def _answers(self) -> Answers:
        return Answers(self._rendering, self._forms, self._last)

    def _answer(self, asked: Sequence[Message], message: Message, tools: Sequence[Any]) -> Tokens:
        before, said = self._answers.laid_out(asked, message, tools)
        if self._last and said.endswith(self._last):
            body = self._encode_behind(before, said.removesuffix(self._last))
            return body + self._up_to_the_end(self._last_tokens)
        body = self._encode_behind(before, said.rstrip())
        if marks := self._trailing(body):
            kept = self._up_to_the_end(marks)
            if kept[-1] in self._ends:
                return body[: len(body) - len(marks)] + kept
        return body + self._end_before("tool" if message.get("tool_calls") else "user")

    def _up_to_the_end(self, marks: Tokens) -> Tokens:
        """Return marks behind an answer up to the one at which the model stops, else up to the first."""
        places = [place for place, token in enumerate(marks) if token in self._ends]
        places += [place for place, token in enumerate(marks) if self._special(token)]
        if places:
            return marks[: places[0] + 1]
        return self.encode(self._last.rstrip()) + self._ends[:1]  # a mark in letters, or none

    def _end_before(self, role: str) -> Tokens:
        """Return the token that ends an answer where the template writes none."""
        message = {**ASKED, "role": role}
        first = self.encode(self._behind([ASKED, SAID, message], ask=True))[:1]
        return first if first and first[0] in self._ends else self._ends[:1]

    def _trailing(self, tokens: Tokens) -> Tokens:
        """Return the special tokens at the end."""
        count = next((i for i, token in enumerate(reversed(tokens)) if not self._special(token)), len(tokens))
        return tokens[len(tokens) - count :]

    def _encode_behind(self, before: str, text: str) -> Tokens:
        """Return a text's tokens behind another text: some tokenizers begin each text with a blank."""
        head, whole = self.encode(before), self.encode(before + text)
        return whole[len(head) :] if whole[: len(head)] == head else self.encode(text)

    def _behind(self, messages: Sequence[Message], *, ask: bool) -> str:
        _, found, rest = self.text(messages, ask=ask).rpartition(str(SAID["content"]))
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

    def _special(self, token: int) -> bool:
        return token in self._added

    @cached_property
    def _added(self) -> frozenset[int]:
        return frozenset(self._tokenizer.get_added_vocab().values())


def messages_of(prompt: Prompt) -> list[Mapping[str, Any]]:
    """Return a prompt's conversation; a plain text is the user's message."""
    return list(prompt.messages) or [{"role": "user", "content": prompt.text}]


def _not_in_turns() -> InputError:
    return InputError(
        "this chat template can't be continued turn by turn: it leaves out answers, or writes no mark behind "
        "them. model.chat.history=template renders every turn anew; or model.chat.template=FILE"
    )
