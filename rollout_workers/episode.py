"""Play one lease in an environment: whose turn it is, what the model sees, what the rollout holds.

    reset ─▶ observation ─▶ request ─▶ generation ─▶ step ─▶ observation ─▶ … ─▶ rollout
                  │                                    ▲
                  └── expert, random, an example ──────┘   scripted actions need no engine

An episode knows neither engine nor environment: `rollout_workers/episodes.py` carries messages between them.
"""

import random
from dataclasses import dataclass, replace

import numpy as np

from contracts.environments import Observation, Step
from contracts.errors import InputError, WhetstoneError
from contracts.rollout import FinishReason, Lease, Rollout, Turn
from rollout_workers.contexts import Seen, contexts_of
from rollout_workers.engines.base import Generation, Request
from rollout_workers.environments.base import EnvironmentSettings, Interpreter
from rollout_workers.turn_texts import TurnTexts

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Action:
    """Text for the environment: the model's answer, or `overheard` words of its copy as partner."""

    text: str
    overheard: bool = False


class Episode:
    """Episode of one lease, from its first observation to its rollout; a first observation restarts it."""

    def __init__(
        self,
        lease: Lease,
        settings: EnvironmentSettings,
        texts: TurnTexts,
        room: int,
        interpreter: Interpreter | None = None,
    ) -> None:
        self.lease, self._settings, self._texts, self._room = lease, settings, texts, room
        self._interpreter = interpreter
        self.num_attempts = 0  # failed attempts

    def on_observation(self, observation: Observation | Step | bool) -> Request | Action | None:
        """React to the environment: a first observation, a step, or whether the partner ends the dialogue.

        Returns:
            The next request to the engine or action for the environment; None: the episode is over, and
            `rollout` returns it.
        """
        if isinstance(observation, Observation):
            return self._begin(observation)
        return (
            self._on_step(observation) if isinstance(observation, Step) else self._on_overheard(observation)
        )

    def _begin(self, observation: Observation) -> Request | Action | None:
        """Start or restart the episode."""
        self._turns: list[Turn] = []
        self._begins: list[int] = []  # header tokens, with the return to come, in each turn's context
        self._info: dict[str, float] = {}
        self._random = random.Random(self.lease.seed)
        self._header = observation.header
        self._contexts = contexts_of(
            self._texts, self._room, self._settings.memory, self._beginning(self._settings.target_return)
        )
        self._seen = Seen((), fresh=False)
        self._heard = ""  # `_seen` as text
        self._finish_reason = FinishReason.STOP
        self._truncated_context: Tokens = ()
        return self._ask(observation)

    def on_generation(self, generation: Generation) -> Action:
        """React to the engine's answer to the last request, by the model or its copy."""
        if self._observation.by_model:
            self._note(self._contexts.said(generation.tokens))
            self._heard += generation.text
            return Action(generation.text, overheard=True)
        self._add_turn(generation.tokens, generation.text, generation.behavior_logprobs, generation.versions)
        return self._act(generation.text, generation.tokens)

    def _on_overheard(self, ends: bool) -> Request | Action | None:
        """Continue after the environment has heard the model's copy; None: the episode is over."""
        if ends:
            return None
        return self._ask(Observation(""))

    def _on_step(self, step: Step) -> Request | Action | None:
        """Continue after a step; None: the episode is over."""
        self._info |= step.info
        if self._turns:  # an example's reward goes to the previous answer
            last = self._turns[-1]
            self._turns[-1] = replace(last, reward=(last.reward or 0.0) + step.reward)
        if step.terminated:
            return None
        if step.truncated or len(self._turns) >= self._settings.max_turns:
            self._contexts.observe(self._read(step.observation))
            self._truncated_context = self._contexts.tokens
            self._finish_reason = FinishReason.CUT
            return None
        return self._ask(step.observation)

    def rollout(self) -> Rollout:
        turns = tuple(self._turns) if self._settings.target_return is None else self._relabelled()
        lease = self.lease
        return Rollout(
            lease.id,
            lease.group,
            lease.prompt,
            turns,
            self._finish_reason,
            info=self._info,
            truncated_context=self._truncated_context,
        )

    def failed(self, error: WhetstoneError) -> Rollout:
        """Return the rollout of an episode that could not be played."""
        lease = self.lease
        return Rollout(lease.id, lease.group, lease.prompt, (), FinishReason.FAILED, error=error)

    # ---- whose turn it is ----

    def _ask(self, observation: Observation) -> Request | Action | None:
        self._observation = observation = self._read(observation)
        self._heard += f"{observation.text}{observation.hint}"
        seen = self._contexts.observe(observation)
        if not self._settings.may_forget and (seen.forgot or seen.cut):
            self._end_at_the_window()
            return None
        self._note(seen)
        if observation.by_model:
            return self._request()
        if (text := self._scripted(observation)) is not None:
            tokens = self._texts.answer(text)
            longest = self.lease.sampling.max_tokens
            if len(tokens) > longest and self.lease.sampling.player == "expert":  # a run may train on it
                raise InputError(
                    f"prompt {self.lease.prompt.id}: the expert's answer {text!r} has {len(tokens)} tokens "
                    f"with its end token, but rollout.max_tokens={longest}; set it to {len(tokens)} or more"
                )
            self._add_turn(tokens, text, (0.0,) * len(tokens), (0,) * len(tokens))
            return self._act(text, tokens)
        if self._is_example(observation):
            text = self._random.choice(observation.actions)
            tokens = self._texts.answer(text)
            self._contexts.answered(tokens)
            self._note(Seen(tokens, fresh=False))
            self._heard += f" [{text}] "
            return self._act(text, tokens)
        return self._request()

    def _read(self, observation: Observation) -> Observation:
        return observation if self._interpreter is None else self._interpreter.read(observation)

    def _act(self, text: str, tokens: Tokens) -> Action:
        return Action(text if self._interpreter is None else self._interpreter.heard(text, tokens))

    def _end_at_the_window(self) -> None:
        """End an episode whose next observation exceeds the window."""
        if not self._turns:
            raise InputError(
                f"prompt {self.lease.prompt.id}: the first text exceeds the {self._room} "
                f"tokens that rollout.max_prompt_tokens and the window leave; expected a shorter prompt, or "
                f"fewer tools"
            )
        self._truncated_context = self._contexts.tokens
        self._finish_reason = FinishReason.LENGTH

    def _scripted(self, observation: Observation) -> str | None:
        player = self.lease.sampling.player
        if player == "model":
            return None
        if player == "random" and observation.actions:
            return self._random.choice(observation.actions)
        if player == "expert" and observation.expert is not None:
            return observation.expert
        raise InputError(
            f"player={player}: the environment of prompt {self.lease.prompt.id} names no "
            f"{'expert action' if player == 'expert' else 'valid actions'}; only the model can play it"
        )

    def _is_example(self, observation: Observation) -> bool:
        rate = self.lease.sampling.example_rate
        return bool(rate and self._turns and observation.actions and self._random.random() < rate)

    def _request(self) -> Request:
        if not self._contexts.tokens:
            raise InputError(
                f"prompt {self.lease.prompt.id}: the environment said nothing, so the model has nothing to "
                "read; a first observation or header with a text is expected"
            )
        index = len(self._turns) * 2 + self._observation.by_model
        (seed,) = np.random.SeedSequence((self.lease.seed, index)).generate_state(1, np.uint64)
        return Request(self.lease.id, self._contexts.tokens, self.lease.sampling, int(seed >> np.uint64(1)))

    # ---- tokens ----

    def _note(self, seen: Seen) -> None:
        """Add to the next turn's observation, because several texts may come before it."""
        tokens = seen.tokens if seen.fresh else self._seen.tokens + seen.tokens
        self._seen = Seen(tokens, seen.fresh or self._seen.fresh, seen.cut or self._seen.cut)
        if seen.cut:
            self._info["observations_cut"] = self._info.get("observations_cut", 0.0) + 1

    def _add_turn(self, tokens: Tokens, text: str, logprobs: tuple[float, ...], versions: Tokens) -> None:
        seen = self._seen
        turn = Turn(seen.tokens, tokens, text, logprobs, versions, None, seen.fresh, self._heard)
        self._turns.append(turn)
        self._begins.append(self._contexts.begin_length if self._seen.fresh else 0)
        self._contexts.answered(tokens)
        self._seen, self._heard = Seen((), fresh=False), ""

    def _beginning(self, target: float | None) -> str:
        """Return the header; for a return-conditioned model, put the return to come in front."""
        return self._header if target is None else f"A play with a return of {target:g}.\n{self._header}"

    def _relabelled(self) -> tuple[Turn, ...]:
        """Return turns whose contexts begin with the return that followed them."""
        to_go = sum(turn.reward or 0.0 for turn in self._turns)
        turns = []
        for turn, begin_length in zip(self._turns, self._begins, strict=True):
            if turn.fresh:
                begin = self._texts.beginning(self._beginning(round(to_go, 2) + 0.0))  # not -0
                begin = begin[: self._contexts.begin_limit]
                turn = replace(turn, observation=begin + turn.observation[begin_length:])
            to_go -= turn.reward or 0.0
            turns.append(turn)
        return tuple(turns)
