"""Conversion of prompts to tokens, with the side on which long prompts are cut.

task.truncation_side, rollout.max_prompt_tokens, evaluation.max_prompt_tokens ─▶ PromptLimit ─┐
model.chat, environment.template, the tokenizer's template ─▶ Chat ───────────────────────────┴─▶ PromptTokens
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args

from contracts.conversations.chat import Chat
from contracts.errors import InputError, did_you_mean
from contracts.rollout import Prompt
from services.data.tasks.base import SIDE_KEY, SPLITS, Side, Split
from services.data.tokens.cut_conversations import fitted
from services.data.tokens.prompt_limit import UNCUT, PromptLimit

SIDES: tuple[str, ...] = get_args(Side)
ToTokens = Callable[[Prompt], tuple[int, ...]]


class PromptTokens:
    """Converter of prompts to tokens, and of tokens back to the text that the model reads.

    Args:
        chat: renderer of conversations; None: prompts are plain texts.
    """

    def __init__(self, tokenizer: Any, limit: PromptLimit = UNCUT, chat: Chat | None = None) -> None:
        self._tokenizer, self.limit, self.chat = tokenizer, limit, chat

    def __call__(self, prompt: Prompt) -> tuple[int, ...]:
        """Return a prompt's tokens, cut to the limit.

        Raises:
            InputError: the chat template rejects the prompt or leaves no room for it, or an empty prompt has
                no token to start from.
        """
        if self.chat is not None:
            return fitted(self.chat, prompt, self.limit)
        return self.of_text(prompt.text)

    def uncut(self) -> "PromptTokens":
        """Return the converter of whole prompts, without a limit."""
        return PromptTokens(self._tokenizer, UNCUT, self.chat)

    def of_text(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a plain text, without the model's chat template."""
        cut: dict[str, Any] = {}
        if self.limit.max_tokens:
            # A tokenizer may serve several limits, so each call sets the side.
            self._tokenizer.truncation_side = self.limit.side
            cut = {"truncation": True, "max_length": self.limit.max_tokens}
        tokens = self._tokenizer(text, **cut)["input_ids"]
        if tokens:
            return tuple(tokens)
        # A model needs at least one token to start from.
        for start in (self._tokenizer.bos_token_id, self._tokenizer.eos_token_id):
            if start is not None:
                return (start,)
        raise InputError(
            "an empty prompt needs a token to start from, and the tokenizer has neither a beginning nor "
            "an end token; give every prompt a text, or set bos_token in tokenizer_config.json"
        )

    def length(self, prompt: Prompt) -> int:
        """Return the number of tokens of the whole prompt."""
        if self.chat is not None:
            return len(self.chat.of_prompt(prompt))
        return len(self._tokenizer(prompt.text)["input_ids"])

    def cuts(self, prompt: Prompt) -> bool:
        """Return whether this prompt is too long to be read whole."""
        return self.limit.cuts(self.length(prompt))

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of these tokens, with visible special tokens."""
        written: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return written


def tools_warnings(chat: Chat | None, prompts: Iterable[Prompt]) -> list[str]:
    """Warn if prompts have tools that the chat template does not show to the model."""
    if chat is None or chat.shows_tools or not any(prompt.tools for prompt in prompts):
        return []
    return [
        "the chat template has no place for tools, but prompts have tools: the model does not see them. "
        "Use a template that lists them, model.chat.template=FILE, or describe them in a message"
    ]


def sides_of(sides: Any, task: object) -> dict[Split, Side]:
    """Return the side on which each split's long prompts are cut.

    Args:
        sides: value of `task.truncation_side`: a side, a mapping of splits to sides, or None.
        task: task whose attribute `truncation_side`, by default left, applies to splits that `sides` lacks.

        Raises:
        InputError: `sides` is none of these.

    >>> sides_of({"train": "right"}, None)
    {'train': 'right', 'validation': 'left', 'test': 'left'}
    """
    default = getattr(task, SIDE_KEY, "left")
    one = default if sides is None else sides
    by_split: Mapping[Any, Any] = sides if isinstance(sides, Mapping) else dict.fromkeys(SPLITS, one)
    for split, side in by_split.items():
        if split not in SPLITS:
            raise InputError(f"task.{SIDE_KEY}: no such split {split!r}{did_you_mean(str(split), SPLITS)}")
        if side not in SIDES:
            raise InputError(
                f"task.{SIDE_KEY}: got {side!r}; expected left (long prompts lose their beginning) or right "
                f"(they lose their end), or a mapping such as {{train: right, validation: left}}"
            )
    return {split: by_split.get(split, default) for split in SPLITS}


def shown_sides(sides: Mapping[Split, Side]) -> str | dict[Split, Side]:
    """Return the sides in the form of `task.truncation_side`: one word if all splits agree."""
    return next(iter(sides.values())) if len(set(sides.values())) == 1 else dict(sides)
