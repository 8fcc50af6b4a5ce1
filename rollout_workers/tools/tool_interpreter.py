"""Interpreter between a model and its tools, in the worker: reads calls, and bounds what results say."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from contracts.conversations.messages import Message
from contracts.environments import Observation
from rollout_workers.tools.tool_calls import Parser, Schemas, as_text, parser_of
from rollout_workers.tools.tool_texts import RESPONSE_CLOSES, RESPONSE_OPENS, TOOL, responded


class ToolInterpreter:
    """Interpreter of one worker, for all of its episodes, which have the same tools.

    Args:
        parser: name of a parser, as `environment.tool_parser`.
        max_result_tokens: of a result; the rest is cut.

    Raises:
        InputError: there is no such parser.
    """

    def __init__(self, parser: str, tokenizer: Any, max_result_tokens: int) -> None:
        self._parse: Parser = parser_of(parser, tokenizer)
        self._tokenizer, self._most = tokenizer, max_result_tokens
        self._tools: Schemas = ()
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self._ends = {*tokenizer.all_special_ids, *(number for number in added if added[number].special)}
        # A result that holds one could end its message and speak for somebody else.
        marks = (mark for mark in tokenizer.get_added_vocab() if len(mark) > 1 and not mark[0].isalnum())
        self._marks = list(dict.fromkeys((*marks, RESPONSE_OPENS, RESPONSE_CLOSES)))

    def heard(self, text: str, tokens: Sequence[int]) -> str:
        """Return the parsed answer as JSON. Marks of calls may be special tokens, which `text` lacks."""
        own = list(tokens[:-1] if tokens and tokens[-1] in self._ends else tokens)
        written = str(self._tokenizer.decode(own, skip_special_tokens=False))
        return as_text(self._parse(written, self._tools))

    def read(self, observation: Observation) -> Observation:
        """Return an observation whose results are cut, without the tokenizer's marks."""
        self._tools = observation.tools or self._tools
        if not any(message["role"] == TOOL for message in observation.messages):
            return observation
        messages = tuple(self._bounded(message) for message in observation.messages)
        told = responded([str(message["content"]) for message in messages if message["role"] == TOOL])
        return replace(observation, text=f"\n{told}\n", messages=messages)

    def _bounded(self, message: Message) -> Message:
        if message["role"] != TOOL:
            return message
        content = str(message["content"])
        for mark in self._marks:
            content = content.replace(mark, f"{mark[0]} {mark[1:]}")
        return {**message, "content": self._cut(content)}

    def _cut(self, text: str) -> str:
        tokens = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if len(tokens) <= self._most:
            return text
        kept = self._tokenizer.decode(tokens[: self._most], skip_special_tokens=False)
        return f"{kept} … ({len(tokens) - self._most} tokens are left out)"
