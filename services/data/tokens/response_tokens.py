"""Tokens of responses for training: the prompt as in rollouts, the response, the end token.

Scoring and training read the same tokens. Longer prompts are cut on their limit's side; longer responses
lose their end.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from contracts.conversations.chat import Chat
from contracts.errors import InputError
from contracts.rollout import Prompt
from services.data.tasks.base import Split
from services.data.tasks.responses import ResponseRow
from services.data.tokens.cut_prompts import CutPrompts
from services.data.tokens.prompt_limit import PromptLimit
from services.data.tokens.prompt_tokens import PromptTokens


@dataclass(frozen=True, slots=True)
class Tokens:
    """A prompt and its response as training reads them.

    Example: the prompt "3 5" with the whole response "6 8" is `Tokens((6, 8), (9, 11, 1), cut=False)`. A cut
    response has no end token. A response of only end tokens becomes empty.
    """

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    cut: bool


class ResponseTokens:
    """Converter of prompts and responses to tokens.

    Args:
        limit: limit on the prompts.
        chat: renderer of conversations, which makes a response the assistant's message; None: plain texts.
        max_tokens: most tokens of a response, including the end token.
        room: most tokens of a prompt before a response; None: no limit.

        Raises:
        InputError: the tokenizer has no end token, which each response needs.
    """

    def __init__(
        self,
        tokenizer: Any,
        limit: PromptLimit,
        max_tokens: int,
        room: int | None,
        chat: Chat | None = None,
    ) -> None:
        if tokenizer.eos_token_id is None:
            raise InputError(
                "responses end with the end token, but the tokenizer has none; set eos_token in "
                "tokenizer_config.json"
            )
        self.tokenizer, self._max_tokens, self._room = tokenizer, max_tokens, room
        self.of_prompt = PromptTokens(tokenizer, limit, chat)

    def __call__(self, prompt: Prompt, response: str) -> Tokens:
        whole = written(self.tokenizer, prompt, response, self.of_prompt.chat)
        kept = whole[: self._max_tokens]
        if all(token == whole[-1] for token in kept):  # nothing is left to learn
            kept = ()
        return Tokens(self.of_prompt(prompt), kept, cut=len(whole) > self._max_tokens)

    def check_prompts(self, prompts: Sequence[Prompt], what: str = "validation prompts are") -> None:
        """Check that every prompt leaves room for a response in the model's window.

        Args:
            what: words of the error message after "3 of 20".

        Raises:
            InputError: some prompts leave no room; the message counts them.
        """
        lengths = [len(self.of_prompt(prompt)) for prompt in prompts]
        room = self._room
        if room is None or not (num_long := sum(length > room for length in lengths)):
            return
        raise InputError(
            f"{num_long} of {len(prompts)} {what} of more than {room} tokens, the longest "
            f"{max(lengths)}. The model's window leaves no more beside a response of rollout.max_tokens="
            f"{self._max_tokens}. rollout.max_prompt_tokens={room} keeps the {self.of_prompt.limit.kept} "
            f"{room} tokens of each"
        )

    def cut_prompts(self, split: Split, prompts: Sequence[Prompt]) -> CutPrompts:
        """Count the prompts that are too long to be read whole."""
        num_cut = sum(self.of_prompt.cuts(prompt) for prompt in prompts)
        return CutPrompts(split, len(prompts), num_cut, self.of_prompt.limit)

    def check(self, rows: Sequence[ResponseRow]) -> int:
        """Check the responses, and return how many are cut.

        Raises:
            InputError: some prompts leave no room for a response in the model's window, or no response has a
                token left.
        """
        self.check_prompts([row.prompt for row in rows], "responses have a prompt")
        num_cut = num_empty = 0
        for row in rows:
            encoded = self(row.prompt, row.response)
            num_cut += encoded.cut
            num_empty += not encoded.response
        if num_empty == len(rows):
            raise InputError(
                f"all {len(rows)} responses are cut to nothing: with rollout.max_tokens={self._max_tokens} "
                f"no response has a token except the end token; expected more"
            )
        return num_cut


def written(tokenizer: Any, prompt: Prompt, response: str, chat: Chat | None) -> tuple[int, ...]:
    """Return a response, with its end token, as the model would generate it after the prompt.

    Raises:
        InputError: the chat template has no place for a part of the response; the message names the prompt.
    """
    if chat is not None:
        return chat.answer_to(prompt, response)
    return (*tokenizer(response, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)


def vocabulary_fingerprint(tokenizer: Any) -> str:
    """Return a hash of the vocabulary. Saved tokens are valid only for models with the same vocabulary."""
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda entry: (entry[1], entry[0]))
    return hashlib.sha256(repr(tokens).encode()).hexdigest()
