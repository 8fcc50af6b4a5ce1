"""Interpreter between a model and its tools, in the worker: read calls, and limit results."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from contracts.conversations.encoding import marks_of, without_marks
from contracts.conversations.messages import Message
from contracts.environments import Observation
from rollout_workers.tools.tool_calls import Parser, Schemas, as_text, parser_of
from rollout_workers.tools.tool_texts import RESPONSE_CLOSES, RESPONSE_OPENS, TOOL, responded


class ToolInterpreter:
    """Interpreter of one worker for all of its episodes, which share their tools.

    Args:
        parser: name of a parser, as in `environment.tool_parser`.
        max_result_tokens: limit of a result's tokens; the rest is cut.

    Raises:
        InputError: no parser has this name.
    """

    def __init__(self, parser: str, tokenizer: Any, max_result_tokens: int) -> None:
        self._parse: Parser = parser_of(parser, tokenizer)
        self._tokenizer, self._most = tokenizer, max_result_tokens
        self._tools: Schemas = ()
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self._ends = {*tokenizer.all_special_ids, *(number for number in added if added[number].special)}
        self._marks = list(dict.fromkeys((*marks_of(tokenizer), RESPONSE_OPENS, RESPONSE_CLOSES)))

    def heard(self, text: str, tokens: Sequence[int]) -> str:
        """Return the parsed answer as JSON. Marks of calls may be special tokens, which `text` lacks."""
        content = list(tokens[:-1] if tokens and tokens[-1] in self._ends else tokens)
        written = str(self._tokenizer.decode(content, skip_special_tokens=False))
        return as_text(self._parse(written, self._tools))

    def read(self, observation: Observation) -> Observation:
        """Return an observation with shortened results, without the tokenizer's marks."""
        self._tools = observation.tools or self._tools
        if not any(message["role"] == TOOL for message in observation.messages):
            return observation
        messages = tuple(self._bounded(message) for message in observation.messages)
        responses = responded([str(message["content"]) for message in messages if message["role"] == TOOL])
        return replace(observation, text=f"\n{responses}\n", messages=messages)

    def _bounded(self, message: Message) -> Message:
        if message["role"] != TOOL:
            return message
        content = without_marks(str(message["content"]), self._marks)
        return {**message, "content": self._cut(content)}

    def _cut(self, text: str) -> str:
        tokens = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if len(tokens) <= self._most:
            return text
        kept = self._tokenizer.decode(tokens[: self._most], skip_special_tokens=False)
        return f"{kept} … ({len(tokens) - self._most} tokens are left out)"
