"""Turn reference texts of prompts into rollouts for supervised training, as if the model had written them."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from contracts.conversations.chat import Chat
from contracts.errors import InputError
from contracts.rollout import FinishReason, Lease, Rollout, Turn
from services.config.settings import RunSettings
from services.loop.collecting import Collected
from services.models.files import read_model, shared_window
from services.models.tokenizer import load_tokenizer
from services.sources.reading import chat_of
from services.tasks.base import Side
from services.tasks.responses import behind, has_whole_references
from services.tokens.response_tokens import written

Demonstrate = Callable[[Sequence[Lease]], Collected]


class Demonstrations:
    """Maker of rollouts from leases, one for each reference text; nothing is generated or scored.

    Example: prompt "3 5" with references ("6 8",) becomes the rollout whose turn has the tokens of "6 8" and
    the end of sequence. If a reference begins with its prompt, as imdb's do, it loses the prompt.

    Args:
        max_tokens: the most tokens of a reference; a longer one loses its end.
        window: tokens that prompt and reference may have together; a longer prompt is cut on `side`. None:
            no limit.
        chat: the renderer of conversations, which writes a reference as the assistant's; None: plain texts.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_tokens: int,
        loss_on: str,
        window: int | None = None,
        side: Side = "left",
        chat: Chat | None = None,
        whole_references: bool = False,
    ) -> None:
        if tokenizer.eos_token_id is None and loss_on != "text":
            raise InputError(
                "algorithm=supervised teaches the end of a response, and the tokenizer has no end token; set "
                "eos_token in tokenizer_config.json, or algorithm.loss_on=text"
            )
        self._tokenizer, self._loss_on = tokenizer, loss_on
        self._max_tokens = max_tokens if window is None else min(max_tokens, window - 1)
        self._window, self._side, self._chat = window, side, chat
        self._whole_references = whole_references

    def __call__(self, leases: Sequence[Lease]) -> Collected:
        started = time.perf_counter()
        rollouts = [self._rollout(lease, text) for lease in leases for text in lease.prompt.references]
        return Collected(rollouts, rollout_s=time.perf_counter() - started)

    def _rollout(self, lease: Lease, reference: str) -> Rollout:
        text = behind(lease.prompt, reference) if self._whole_references else reference
        if self._loss_on == "text":  # RL4LMs' whole text: the loss covers the prompt, and no end token
            tokens = self._plain(text)
            response = tokens[: self._max_tokens]
            is_whole = len(tokens) < self._max_tokens
            prompt = self._beside(response, lease.tokens)
            observation, answer = prompt[:1], (*prompt[1:], *response)
        else:
            whole = written(self._tokenizer, lease.prompt, text, self._chat)
            answer, is_whole = whole[: self._max_tokens], len(whole) <= self._max_tokens
            observation = self._beside(answer, lease.tokens)
        turn = Turn(observation, answer, text, (0.0,) * len(answer), (0,) * len(answer))
        reason = FinishReason.STOP if is_whole else FinishReason.LENGTH
        return Rollout(lease.id, lease.group, lease.prompt, (turn,), reason)

    def _plain(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _beside(self, answer: tuple[int, ...], prompt: tuple[int, ...]) -> tuple[int, ...]:
        """Return the part of the prompt that fits in the window beside the answer, one token at least."""
        if self._window is None:
            return prompt
        room = self._window - len(answer)
        return prompt[:room] if self._side == "right" else prompt[-room:]


def each_by_part(makers: Mapping[str, Demonstrate]) -> Demonstrate:
    """Return a maker of a mixture's rollouts, which asks the maker of each lease's part."""

    def demonstrate(leases: Sequence[Lease]) -> Collected:
        found = Collected()
        for lease in leases:
            found.add(makers[lease.prompt.part]([lease]))
        return found

    return demonstrate


def demonstrations_of(settings: RunSettings) -> Demonstrate:
    """Return the maker of rollouts from the references of a run's prompts, for each part its own."""
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
