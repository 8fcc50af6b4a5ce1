"""Ends of answers: the template's text after them, and the tokens at which the model stops.

template | after an answer that nothing follows | before the next message
--- | --- | ---
most | `<|im_end|>` | `<|im_end|>`
gpt-oss | `<|return|>`, after a call `<|call|>` | `<|end|>`
Phi-3.5 | `<|end|>`, and the end token | `<|end|>`
Apertus, Hunyuan | nothing | `<|assistant_end|>`
GLM | nothing: the model draws the mark of the next message | nothing
"""

from collections.abc import Sequence
from functools import cached_property

from contracts.conversations.accepted_forms import AcceptedForms
from contracts.conversations.encoding import Encoding, Tokens
from contracts.conversations.messages import Message
from contracts.conversations.rendering import ASKED, SAID, Rendering
from contracts.errors import InputError

MARK = str(ASKED["content"])


class Ends:
    """Ends of answers by one template.

    Args:
        stops: tokens at which the model stops, besides the tokenizer's end token.
    """

    def __init__(
        self, rendering: Rendering, forms: AcceptedForms, encoding: Encoding, stops: Sequence[int]
    ) -> None:
        self._rendering, self._forms, self._encoding = rendering, forms, encoding
        self._stops: Tokens = tuple(dict.fromkeys((*encoding.eos, *stops)))

    @cached_property
    def last(self) -> str:
        """Return the text after an answer that nothing follows."""
        return self.behind([ASKED, SAID], ask=False)

    @cached_property
    def closing(self) -> str:
        """Return the text between an answer and the beginning of the next message."""
        rest = self.behind([ASKED, SAID, ASKED], ask=True)
        if not self.last:
            return self._before_the_next(rest.partition(MARK)[0])
        if rest.startswith(self.last):
            return self.last
        tokens = self._encoding.tokens(rest)
        mark = self._encoding.shown(tokens[0]) if tokens and self._encoding.is_mark(tokens[0]) else ""
        if not mark or not rest.startswith(mark):
            raise not_in_turns()
        behind = rest.removeprefix(mark)
        return mark + behind[: len(behind) - len(behind.lstrip())]

    @property
    def token(self) -> int | None:
        """Return the special token with which the template ends an answer; None without one."""
        tokens = self._last[:1] or self._closing[:1]
        return tokens[0] if tokens and self._encoding.is_mark(tokens[0]) else None

    def left(self, answer: Tokens) -> Tokens:
        """Return the tokens between an answer and the next message, except those that the answer has."""
        for count in range(max(len(self._closing), len(self._last)), 0, -1):
            end = answer[-count:]
            if end == self._closing[:count]:
                return self._closing[count:]
            if end == self._last[:count] and end[: len(self._closing)] == self._closing:
                return ()
        marks = [place for place, token in enumerate(self._closing) if self._encoding.is_mark(token)]
        if marks and answer[-1:] == self._closing[marks[0] : marks[0] + 1]:  # without the blanks before it
            return self._closing[marks[0] + 1 :]
        ends_otherwise = answer and answer[-1:] in (self._last[:1], self._behind_calls)
        return self._closing[1:] if ends_otherwise else self._closing

    def following(self, answer: Tokens, turn: Tokens) -> Tokens:
        """Return a turn's tokens after an answer, with the answer's closing tokens, and no token twice."""
        is_drawn = not self._closing and turn and answer[-1:] == turn[:1] and self._encoding.is_mark(turn[0])
        return turn[1:] if is_drawn else self.left(answer) + turn

    def without(self, answer: Tokens) -> Tokens:
        """Return an answer without the tokens that end it."""
        ends = [self._up_to_the_stop(self._last), *((stop,) for stop in self._stops)]
        ends += [self._last[:1], self._closing[:1]]
        end = next((end for end in ends if end and answer[-len(end) :] == end), ())
        return answer[: len(answer) - len(end)]

    def ended(self, before: str, written: str, *, calls: bool) -> Tokens:
        """Return the tokens of an answer after its prompt, up to the token at which the model stops.

        Args:
            written: the answer with all of the template's text after it.
            calls: whether the answer calls tools, so that their results follow.
        """
        if self.last and written.endswith(self.last):
            body = self._encoding.behind(before, written.removesuffix(self.last))
            return body + self._up_to_the_stop(self._last)
        body = self._encoding.behind(before, written.rstrip())
        if marks := self._encoding.marks_at_the_end(body):
            kept = self._up_to_the_stop(marks)
            if kept[-1] in self._stops:
                return body[: len(body) - len(marks)] + kept
        return body + self._drawn_mark("tool" if calls else "user")

    def behind(self, messages: Sequence[Message], *, ask: bool) -> str:
        """Return the text after the last placeholder of an answer.

        Raises:
            InputError: the template leaves out answers.
        """
        translated = self._forms.translated(messages)
        _, placeholder, rest = self._rendering.text(translated, ask=ask).rpartition(str(SAID["content"]))
        if not placeholder:
            raise not_in_turns()
        return rest

    @cached_property
    def _last(self) -> Tokens:
        return self._encoding.tokens(self.last)

    @cached_property
    def _closing(self) -> Tokens:
        return self._encoding.tokens(self.closing)

    @cached_property
    def _behind_calls(self) -> Tokens:
        """Return the token at which the model stops after a call; () without one."""
        text = self._rendering.tried([ASKED, self._forms.call_message()])
        marks = self._encoding.marks_at_the_end(self._encoding.tokens(text.rstrip()))
        return tuple(token for token in marks if token in self._stops)[:1]

    def _before_the_next(self, between: str) -> str:
        """Return the text between an answer and the opening text that first messages have too."""
        opening = self._rendering.text([ASKED], ask=True).partition(MARK)[0]
        tokens, first = self._encoding.tokens(between), self._encoding.tokens(opening)
        pairs = zip(reversed(tokens), reversed(first), strict=False)
        num_equal = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(tokens), len(first)))
        before = self._encoding.text(tokens[: len(tokens) - num_equal])
        return before if between.startswith(before) else ""

    def _up_to_the_stop(self, marks: Tokens) -> Tokens:
        """Return marks after an answer up to the first at which the model stops, else up to the first."""
        places = [place for place, token in enumerate(marks) if token in self._stops]
        places += [place for place, token in enumerate(marks) if self._encoding.is_mark(token)]
        if places:
            return marks[: places[0] + 1]
        return self._encoding.tokens(self.last.rstrip()) + self._stops[:1]  # a mark in letters, or none

    def _drawn_mark(self, role: str) -> Tokens:
        """Return the next message's mark if the model stops at it; else the tokenizer's end token."""
        text = self._rendering.tried([ASKED, SAID, {**ASKED, "role": role}], ask=True)
        mark = self._encoding.tokens(text.rpartition(str(SAID["content"]))[2])[:1]
        return mark if mark and mark[0] in self._stops else self._stops[:1]


def not_in_turns() -> InputError:
    """Return the refusal of a template without an end between an answer and the next message."""
    return InputError(
        "this chat template can't be continued turn by turn: it leaves out answers, or writes no mark after "
        "them. Set model.chat.history=template to render every turn anew, or model.chat.template=FILE"
    )
