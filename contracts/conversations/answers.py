"""Layout of an answer behind its prompt, as the template writes it or as the model would generate it.

the template writes behind the prompt | the answer is
--- | ---
the answer, whole | what it writes
the answer without its thought, and the prompt opens a thought | the thought, its closing mark, the rest
the answer in front of which the prompt has an empty thought | the answer alone
another beginning, as it rewrites the prompt | what it writes behind a single question
anything else | refused
"""

from collections.abc import Mapping, Sequence
from typing import Any

from contracts.conversations.accepted_forms import AcceptedForms
from contracts.conversations.messages import Message, reasoning_of
from contracts.conversations.rendering import ASKED, Rendering
from contracts.conversations.thoughts import (
    EMPTY_AT_THE_END,
    MARK,
    behind_thought,
    opening_mark,
    without_opening,
)
from contracts.errors import InputError

THOUGHT = "its thought"
# Options by which published templates switch thoughts on and off.
SWITCHES = tuple({name: value} for value in (True, False) for name in ("enable_thinking", "thinking"))


class Answers:
    """Layout of answers by one template.

    Args:
        last: what the template writes behind an answer that nothing follows.
    """

    def __init__(self, rendering: Rendering, forms: AcceptedForms, last: str) -> None:
        self._rendering, self._forms, self._last = rendering, forms, last

    def laid_out(
        self, asked: Sequence[Message], answer: Message, tools: Sequence[Any] = ()
    ) -> tuple[str, str]:
        """Return the prompt, and the answer behind it with what the template writes at its end.

        Raises:
            InputError: the template leaves out a part of the answer, or has no place behind its prompt.
        """
        before, said = self._found(self._rendering, self._forms, asked, answer, tools)
        if said is None:
            raise InputError(self._refusal(before, asked, answer, tools))
        return before, said

    def _found(
        self,
        rendering: Rendering,
        forms: AcceptedForms,
        asked: Sequence[Message],
        answer: Message,
        tools: Sequence[Any],
    ) -> tuple[str, str | None]:
        *given, last = forms.translated([*asked, answer])
        before = rendering.text(given, tools, ask=True)
        said = _behind(before, rendering.text([*given, last], tools, ask=False), answer)
        if said is None and opening_mark(before):
            return before, self._in_the_thought(before, last)
        if said is None:  # it rewrites what stands before an answer
            alone = rendering.text([ASKED], ask=True)
            said = _behind(alone, rendering.text([ASKED, last], ask=False), answer)
        return before, said

    def _in_the_thought(self, before: str, answer: Message) -> str | None:
        """Return an answer that begins inside of the prompt's thought; None: it has no thought."""
        content = answer.get("content") or ""
        if answer.get("tool_calls") or not isinstance(content, str) or behind_thought(content) == content:
            return None
        rest = without_opening(content)
        return (rest.lstrip() if before[-1].isspace() else rest) + self._last

    def _refusal(self, before: str, asked: Sequence[Message], answer: Message, tools: Sequence[Any]) -> str:
        thinks = _thinks(answer)
        if (mark := opening_mark(before)) and not thinks:
            told = f"the prompt ends in {mark!r}, which opens a thought, and this answer has none"
            expected = f"an answer that begins with a thought, {mark}…"
        elif thinks and EMPTY_AT_THE_END.search(before):
            told = "the prompt ends with an empty thought, and this answer has a thought of its own"
            expected = "an answer without it"
        else:
            told = f"the chat template leaves out {self._lost(asked, answer)} in this answer"
            expected = "an answer without it"
        option = self._option(asked, answer, tools)
        if option:
            return f"{told}: {option} lets the template write it"
        return f"{told}: expected {expected}, or model.chat.template=FILE with a place for it"

    def _lost(self, asked: Sequence[Message], answer: Message) -> str:
        whole = self._rendering.text(self._forms.translated([*asked, answer]), ask=False)
        return " and ".join(_missing(answer, whole)) or "its beginning"

    def _option(self, asked: Sequence[Message], answer: Message, tools: Sequence[Any]) -> str:
        """Return the option with which the template has a place for the answer; "" where there is none."""
        for switch in SWITCHES:
            rendering = self._rendering.with_options(switch)
            try:
                _, said = self._found(rendering, AcceptedForms(rendering), asked, answer, tools)
            except InputError:
                continue
            if said is not None:
                ((name, value),) = switch.items()
                return f"model.chat.options.{name}={str(value).lower()}"
        return ""


def _behind(before: str, whole: str, answer: Message) -> str | None:
    """Return what the template writes behind a prompt; None where it is not the whole answer."""
    starts = [before] if _thinks(answer) else [before, EMPTY_AT_THE_END.sub("", before)]
    for start in starts:
        if whole.startswith(start) and not _missing(answer, said := whole.removeprefix(start)):
            return said
    return None


def _thinks(answer: Message) -> bool:
    return any(name == THOUGHT for name, _ in _parts(answer))


def _missing(answer: Message, said: str) -> list[str]:
    """Return the parts of an answer that a rendered text lacks, in words."""
    return list(dict.fromkeys(name for name, part in _parts(answer) if part not in said))


def _parts(answer: Message) -> list[tuple[str, str]]:
    """Return an answer's parts by name: its thought, its content, its calls."""
    content = str(answer.get("content") or "")
    answered = behind_thought(content) or ""
    texts = [("its content" if text in answered else THOUGHT, text) for text in _segments(content)]
    thought = reasoning_of(answer).strip()
    calls: Sequence[Mapping[str, Any]] = answer.get("tool_calls") or ()
    return [
        *([(THOUGHT, thought)] if thought else []),
        *texts,
        *(("its tool calls", str(call["function"]["name"])) for call in calls),
    ]


def _segments(content: str) -> list[str]:
    """Return the texts between marks of thoughts, without blanks around them."""
    edges = [0, *(edge for mark in MARK.finditer(content) for edge in mark.span()), len(content)]
    texts = (content[start:end].strip() for start, end in zip(edges[::2], edges[1::2], strict=True))
    return [text for text in texts if text]
