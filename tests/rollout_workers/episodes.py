"""Play episodes in this process with an engine that writes scripted answers."""

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import Field

from contracts.environments import Environment, Observation, Step
from contracts.rollout import FinishReason, Lease, Prompt, Rollout, Sampling
from contracts.settings import Strings
from rollout_workers.engines.base import Generation, Request
from rollout_workers.environments.base import EnvironmentSettings
from rollout_workers.environments.pool import LocalEnvironments
from rollout_workers.episodes import Episodes
from rollout_workers.settings import RolloutSettings

Write = Callable[[Request], tuple[int, ...]]


class WritingEngine:
    """Answers every request at once, with what `write` makes of it; remembers what it was asked."""

    weight_version = 3
    mask_version = None

    def __init__(self, tokenizer: Any, window: int | None, write: Write) -> None:
        self.tokenizer, self.window, self._write = tokenizer, window, write
        self.requests: list[Request] = []
        self.written: list[tuple[int, ...]] = []

    def answer(self, request: Request) -> Generation:
        tokens = self._write(request)
        self.requests.append(request)
        self.written.append(tokens)
        text = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return Generation(
            request.id, tokens, text, (-1.0,) * len(tokens), (3,) * len(tokens), FinishReason.STOP
        )


class Told(EnvironmentSettings):
    """Says one text after the other, rewards each answer with 1, ends after the last."""

    header: str = ""
    says: Strings = ("one", "two")
    hint: str = ""
    actions: tuple[str, ...] = ()
    expert: str | None = None
    by_model: tuple[int, ...] = ()  # which of them are left to the model's copy
    truncates: bool = False
    odd_reward: float = Field(default=1.0, allow_inf_nan=True)  # of each answer
    odd_text: bool = False  # says None instead

    def make(self) -> Environment:
        return _Telling(self)


class _Telling:
    def __init__(self, script: Told) -> None:
        self._told, self._index = script, 0
        self.heard: list[str] = []

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        self._index = 0
        return self._observation(self._told.header)

    def step(self, text: str) -> Step:
        script = self._told
        self.heard.append(text)
        self._index += 1
        over = self._index >= len(self._told.says)
        info = {"steps": float(self._index)}
        if over:
            return Step(Observation("over"), script.odd_reward, not script.truncates, script.truncates, info)
        if script.odd_text:
            return Step(Observation(None))  # type: ignore[arg-type]
        return Step(self._observation(""), script.odd_reward, info=info)

    def close(self) -> None:
        pass

    def _observation(self, header: str) -> Observation:
        script, index = self._told, self._index
        if index in script.by_model:
            return Observation("", header, by_model=True)
        return Observation(script.says[index], header, script.hint, script.actions, script.expert)


def lease(number: int = 0, **sampling: Any) -> Lease:
    drawn = Sampling(**{"max_tokens": 8, **sampling})
    return Lease(number, Prompt(f"p/{number}", "play"), (1,), group=number, seed=7 + number, sampling=drawn)


def play(
    settings: EnvironmentSettings, engine: WritingEngine, leases: Sequence[Lease], max_tokens: int = 8
) -> list[Rollout]:
    """All of them to their ends."""
    rollout = RolloutSettings(max_tokens=max_tokens)
    episodes = Episodes(settings, LocalEnvironments(settings), engine, rollout)  # type: ignore[arg-type]
    episodes.admit(leases)
    rollouts: list[Rollout] = []
    for _ in range(10_000):
        requests, finished = episodes.advance(engine_is_idle=True)
        rollouts += finished
        episodes.on_generations([engine.answer(request) for request in requests])
        if not episodes.num_unfinished and not finished:
            return sorted(rollouts, key=lambda rollout: rollout.lease_id)
    raise AssertionError("the episodes do not end")
