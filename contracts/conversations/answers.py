"""Layout of an answer after its prompt, as the template writes it or as the model would generate it.

the template writes after the prompt | the answer is
--- | ---
the answer, whole | what it writes
the answer without its thought, and the prompt opens a thought | the thought, its closing mark, the rest
the answer in front of which the prompt has an empty thought | the answer alone
another beginning, as it rewrites the prompt | what it writes after a single question
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
        last: the template's text after an answer that nothing follows.
    """

    def __init__(self, rendering: Rendering, forms: AcceptedForms, last: str) -> None:
        self._rendering, self._forms, self._last = rendering, forms, last

    def laid_out(
        self, prompt: Sequence[Message], answer: Message, tools: Sequence[Any] = ()
    ) -> tuple[str, str]:
        """Return the prompt, and the answer after it with the template's text at its end.

        Raises:
            InputError: the template leaves out a part of the answer, or has no place for it.
        """
        before, written = self._found(self._rendering, self._forms, prompt, answer, tools)
        if written is None:
            raise InputError(self._refusal(before, prompt, answer, tools))
        return before, written

    def _found(
        self,
        rendering: Rendering,
        forms: AcceptedForms,
        prompt: Sequence[Message],
        answer: Message,
        tools: Sequence[Any],
    ) -> tuple[str, str | None]:
        *translated, last = forms.translated([*prompt, answer])
        before = rendering.text(translated, tools, ask=True)
        written = _behind(before, rendering.text([*translated, last], tools, ask=False), answer)
        if written is None and opening_mark(before):
            return before, self._in_the_thought(before, last)
        if written is None:  # it rewrites the text before an answer
            alone = rendering.text([ASKED], ask=True)
            written = _behind(alone, rendering.text([ASKED, last], ask=False), answer)
        return before, written

    def _in_the_thought(self, before: str, answer: Message) -> str | None:
        """Return an answer that begins inside the prompt's thought; None if it has no thought."""
        content = answer.get("content") or ""
        if answer.get("tool_calls") or not isinstance(content, str) or behind_thought(content) == content:
            return None
        rest = without_opening(content)
        return (rest.lstrip() if before[-1].isspace() else rest) + self._last

    def _refusal(self, before: str, prompt: Sequence[Message], answer: Message, tools: Sequence[Any]) -> str:
        thinks = _thinks(answer)
        if (mark := opening_mark(before)) and not thinks:
            problem = f"the prompt ends in {mark!r}, which opens a thought, and this answer has none"
            expected = f"an answer that begins with a thought, {mark}…"
        elif thinks and EMPTY_AT_THE_END.search(before):
            problem = "the prompt ends with an empty thought, and this answer has a thought of its own"
            expected = "an answer without it"
        else:
            problem = f"the chat template leaves out {self._lost(prompt, answer)} in this answer"
            expected = "an answer without it"
        option = self._option(prompt, answer, tools)
        if option:
            return f"{problem}: {option} lets the template write it"
        return f"{problem}: expected {expected}, or model.chat.template=FILE with a place for it"

    def _lost(self, prompt: Sequence[Message], answer: Message) -> str:
        whole = self._rendering.text(self._forms.translated([*prompt, answer]), ask=False)
        return " and ".join(_missing(answer, whole)) or "its beginning"

    def _option(self, prompt: Sequence[Message], answer: Message, tools: Sequence[Any]) -> str:
        """Return the option that gives the template a place for the answer; "" without one."""
        for switch in SWITCHES:
            rendering = self._rendering.with_options(switch)
            try:
                _, written = self._found(rendering, AcceptedForms(rendering), prompt, answer, tools)
            except InputError:
                continue
            if written is not None:
                ((name, value),) = switch.items()
                return f"model.chat.options.{name}={str(value).lower()}"
        return ""


def _behind(before: str, whole: str, answer: Message) -> str | None:
    """Return the template's text after a prompt; None if it is not the whole answer."""
    starts = [before] if _thinks(answer) else [before, EMPTY_AT_THE_END.sub("", before)]
    for start in starts:
        if whole.startswith(start) and not _missing(answer, written := whole.removeprefix(start)):
            return written
    return None


def _thinks(answer: Message) -> bool:
    return any(name == THOUGHT for name, _ in _parts(answer))


def _missing(answer: Message, text: str) -> list[str]:
    """Return the parts of an answer that a rendered text lacks, in words."""
    return list(dict.fromkeys(name for name, part in _parts(answer) if part not in text))


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
