"""Turn reference texts of prompts into rollouts for supervised training, as if the model had written them."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.conversations.chat import Chat
from contracts.errors import InputError
from contracts.rollout import FinishReason, Lease, Rollout, Turn
from services.config.settings import RunSettings
from services.data.tasks.base import Side
from services.data.tasks.responses import behind, has_whole_references
from services.data.tokens.response_tokens import written
from services.models.files import read_model, shared_window
from services.models.tokenizer import load_tokenizer
from services.training.loop.collecting import Collected
from services.training.sources.reading import chat_of

Demonstrate = Callable[[Sequence[Lease]], Collected]


@dataclass(eq=False)
class Demonstrations:
    """Maker of rollouts from leases, one for each reference text, without generation or scoring.

    Example: prompt "3 5" with references ("6 8",) becomes the rollout whose turn has the tokens of "6 8" and
    the end of sequence. If a reference begins with its prompt, as in imdb, the prompt is removed from it.

    Args:
        max_tokens: most tokens of a reference; longer references lose their end.
        window: most tokens of prompt and reference; longer prompts are cut on `side`. None: no limit.
        chat: renderer of conversations, which makes a reference the assistant's message; None: plain texts.
    """

    tokenizer: Any
    max_tokens: int
    loss_on: str
    window: int | None = None
    side: Side = "left"
    chat: Chat | None = None
    whole_references: bool = False

    def __post_init__(self) -> None:
        if self.tokenizer.eos_token_id is None and self.loss_on != "text":
            raise InputError(
                "algorithm=supervised teaches the end of a response, but the tokenizer has no end token; set "
                "eos_token in tokenizer_config.json, or algorithm.loss_on=text"
            )
        if self.window is not None:
            self.max_tokens = min(self.max_tokens, self.window - 1)

    def __call__(self, leases: Sequence[Lease]) -> Collected:
        started = time.perf_counter()
        rollouts = [self._rollout(lease, text) for lease in leases for text in lease.prompt.references]
        return Collected(rollouts, rollout_s=time.perf_counter() - started)

    def _rollout(self, lease: Lease, reference: str) -> Rollout:
        text = behind(lease.prompt, reference) if self.whole_references else reference
        if self.loss_on == "text":  # as RL4LMs: the loss covers the prompt but no end token
            tokens = self._plain(text)
            response = tokens[: self.max_tokens]
            is_whole = len(tokens) < self.max_tokens
            prompt = self._beside(response, lease.tokens)
            observation, answer = prompt[:1], (*prompt[1:], *response)
        else:
            whole = written(self.tokenizer, lease.prompt, text, self.chat)
            answer, is_whole = whole[: self.max_tokens], len(whole) <= self.max_tokens
            observation = self._beside(answer, lease.tokens)
        turn = Turn(observation, answer, text, (0.0,) * len(answer), (0,) * len(answer))
        reason = FinishReason.STOP if is_whole else FinishReason.LENGTH
        return Rollout(lease.id, lease.group, lease.prompt, (turn,), reason)

    def _plain(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _beside(self, answer: tuple[int, ...], prompt: tuple[int, ...]) -> tuple[int, ...]:
        """Return the part of the prompt, at least one token, that fits in the window beside the answer."""
        if self.window is None:
            return prompt
        room = self.window - len(answer)
        return prompt[:room] if self.side == "right" else prompt[-room:]


def each_by_part(makers: Mapping[str, Demonstrate]) -> Demonstrate:
    """Return a maker of a mixture's rollouts, which calls the maker of each lease's part."""

    def demonstrate(leases: Sequence[Lease]) -> Collected:
        collected = Collected()
        for lease in leases:
            collected.add(makers[lease.prompt.part]([lease]))
        return collected

    return demonstrate


def demonstrations_of(settings: RunSettings) -> Demonstrate:
    """Return the maker of rollouts from the references of a run's prompts; each part has its own maker."""
    files, tokenizer = read_model(settings.model), load_tokenizer(settings.model)
    makers = {
        part: Demonstrations(
            *(tokenizer, settings.rollout.max_tokens, settings.algorithm.loss_over, shared_window(files)),
            run.prompt_limit("train").side,
            chat_of(run.chat_form(files), tokenizer),
            has_whole_references(run.task),
        )
        for part, run in settings.by_task.items()
    }
    return each_by_part(makers) if settings.parts else makers[""]
