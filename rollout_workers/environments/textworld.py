"""TextWorld's games: text adventures that are explored, solved, won and lost by commands in plain words."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from contracts.environments import Environment, Observation, Step
from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.settings import Settings, Strings
from rollout_workers.environments.base import EnvironmentSettings
from rollout_workers.environments.textworld_files import game_of
from rollout_workers.environments.textworld_text import cleaned, command_of, first_room, listed

QUESTION = "You choose the action to"  # the answer continues with a blank: " go east"
REJECTED = "That is no command for this game."
LOOKING = ("look", "inventory", "examine")  # verbs that do not change the world


class GameRewards(Settings):
    """Rewards of an answer: `scale` × (the sum of the parts) + `shift`.

    Example: the winning command scores the second of two points: 1.0 × 1/2 + 1.0 = 1.5.

    trl-textworld gives 1 a *point*, 2 for a win, -2 for a loss, -0.5 for an invalid command, and, in classes
    that its runs leave out, -0.1 for every answer.
    """

    score: float = 1.0  # times the score's change, as a share of the game's highest score
    win: float = 1.0
    loss: float = -1.0
    turn: float = 0.0  # reward for every answer; negative: a cost of time
    invalid: float = -0.1  # reward for an answer that the game refuses
    # Potential-based shaping (Ng et al. 1999): a factor on discount × P(after) - P(before). -P is the number
    # of commands still needed, as a share of those needed at first: 0 once won, 1 once lost.
    progress: float = 0.0
    discount: float = Field(default=1.0, ge=0, le=1)  # the algorithm's discount for turns
    scale: float = 1.0
    shift: float = 0.0


class TextWorld(EnvironmentSettings):
    """Settings of TextWorld's games.

    The prompt's meta names the game: `{"game": "/games/17/game.z8"}`, with its `game.json` beside it.

    Each text ends in a line break, the hint with the question that the model's answer completes:

        [Attic]\\nA dusty one.\\n                                          text
        Your possible actions are go east, or look. You choose the action to      hint
         go east\\n                                                        the model, with its reply_end
    """

    rewards_itself: ClassVar[bool] = True
    has_baselines: ClassVar[bool] = True
    needs_meta: ClassVar[tuple[str, ...]] = ("game",)

    reply_end: str = "\n"
    rewards: GameRewards = GameRewards()
    objective: Literal["shown", "hidden"] = "shown"
    describe_room: bool = False  # describe the room at every turn, not only on entering: for short memories
    hints: Literal["none", "all", "shuffled"] = "all"  # the possible commands, sorted or shuffled
    hidden_verbs: Strings = ("examine",)  # valid commands that the hints leave out
    hints_cap: int | None = Field(
        default=None, ge=1
    )  # limit of commands, drawn evenly; the right one may be missing

    def check_prompt(self, prompt: Prompt) -> None:
        game_of(prompt)

    def make(self) -> Environment:
        return _Play(self)


class _Play:
    """Play of one game at a time; each reset starts again."""

    def __init__(self, settings: TextWorld) -> None:
        self._settings = settings
        self._world: Any = None

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        path = game_of(prompt)
        self._state = self._start(path, follow=bool(self._settings.rewards.progress))
        if self._state["extra.walkthrough"] is None and not self._follows:
            self._state = self._start(path, follow=True)
        self._seed, self._num_steps, self._num_invalid = seed, 0, 0
        self._walkthrough: Sequence[str] = self._state["extra.walkthrough"] or ()
        self._place: int | None = (
            0 if self._walkthrough else None
        )  # index on the walkthrough; None: the play has left it
        self._skip_open_doors()
        self._num_needed = len(self._state.policy_commands or ()) if self._follows else 0
        self._potential = self._potential_now()
        objective = " ".join(self._state.objective.split()) if self._settings.objective == "shown" else ""
        return self._observation(first_room(self._state.feedback), f"{objective}\n" if objective else "")

    def step(self, text: str) -> Step:
        before = self._state
        command = command_of(text, before["verbs"])
        feedback = REJECTED
        if command is not None:
            self._state, _, _ = self._world.step(command)
            feedback = cleaned(self._state.feedback)
        is_valid = self._state.moves > before.moves
        self._num_steps += 1
        self._num_invalid += not is_valid
        self._follow_walkthrough(command, is_valid)
        state = self._state
        return Step(
            self._observation(feedback),
            reward=self._reward(before, is_valid),
            terminated=state.won or state.lost,
            info={
                "won": float(state.won),
                "lost": float(state.lost),
                "score": state.score / max(1, state.max_score),
                "steps": float(self._num_steps),
                "invalid": self._num_invalid / self._num_steps,
                "walkthrough_length": float(len(self._walkthrough)),
            },
        )

    def close(self) -> None:
        if self._world is not None:
            self._world.close()
            self._world = None

    def _start(self, path: Path, follow: bool) -> Any:
        """Start the game; return its first state. `follow`, a policy, takes up to three times the rest."""
        textworld = _library()
        self.close()
        wanted = textworld.EnvInfos(
            admissible_commands=True,
            inventory=True,
            description=self._settings.describe_room,
            objective=True,
            score=True,
            max_score=True,
            moves=True,
            won=True,
            lost=True,
            verbs=True,
            policy_commands=follow,
            extras=["walkthrough"],
        )
        self._follows = follow
        self._world = textworld.start(str(path), wanted)
        return self._world.reset()

    def _follow_walkthrough(self, command: str | None, is_valid: bool) -> None:
        if self._place is not None and command is not None:
            if command == (self._expected() or "").lower():
                self._place += 1
            elif is_valid and command.split()[0] not in LOOKING:
                self._place = None
        self._skip_open_doors()

    def _skip_open_doors(self) -> None:
        """Skip the walkthrough's commands for open doors, because cooking games open open doors."""
        while (following := self._expected()) and following.startswith("open "):
            if following in self._state.admissible_commands:
                break
            self._place = (self._place or 0) + 1

    def _expected(self) -> str | None:
        """Return the walkthrough's next command; None if the play has left it or it has ended."""
        if self._place is None or self._place >= len(self._walkthrough):
            return None
        return self._walkthrough[self._place]

    def _reward(self, before: Any, is_valid: bool) -> float:
        rewards, state = self._settings.rewards, self._state
        potential = self._potential_now()
        progress = rewards.discount * potential - self._potential
        self._potential = potential
        total = (
            rewards.score * (state.score - before.score) / max(1, state.max_score)
            + rewards.win * state.won
            + rewards.loss * state.lost
            + rewards.turn
            + rewards.invalid * (not is_valid)
            + rewards.progress * progress
        )
        return float(rewards.scale * total + rewards.shift)

    def _potential_now(self) -> float:
        if not self._follows or self._state.won:
            return 0.0
        left = len(self._state.policy_commands or ())  # none: the game can no longer be won
        return -left / self._num_needed if left and not self._state.lost else -1.0

    def _observation(self, feedback: str, header: str = "") -> Observation:
        state, settings = self._state, self._settings
        over = state.won or state.lost
        texts = [feedback]
        if settings.describe_room and not over and (room := cleaned(state.description)) not in feedback:
            texts.append(room)
        carried = " ".join(state.inventory.split())
        if not over and "nothing" not in carried and carried not in feedback:
            texts.append(carried)
        text = "".join(f"{paragraph}\n" for paragraph in texts)
        if over:
            return Observation(text, header)
        actions = tuple(state.admissible_commands)
        return Observation(text, header, self._hint(actions), actions, self._expert())

    def _hint(self, actions: Sequence[str]) -> str:
        settings = self._settings
        if settings.hints == "none":
            return QUESTION
        draw = random.Random(f"{self._seed}/{self._num_steps}")
        shown = [action for action in actions if action.split()[0] not in settings.hidden_verbs]
        if settings.hints_cap is not None and len(shown) > settings.hints_cap:
            shown = sorted(draw.sample(shown, settings.hints_cap))
        if settings.hints == "shuffled":
            draw.shuffle(shown)
        return f"Your possible actions are {listed(shown)}. {QUESTION}" if shown else QUESTION

    def _expert(self) -> str | None:
        """Return the walkthrough's next command, or the policy's after the play has left the walkthrough."""
        policy = self._state.policy_commands if self._follows else None
        return self._expected() or (policy[0] if policy else None)


def _library() -> Any:
    try:
        import textworld
    except ImportError as error:
        raise InputError(
            f"environment=textworld needs TextWorld ({error}); install it with pip install whetstone[games]"
        ) from None
    return textworld
