"""Protocol of an environment and its records: after a reset with a prompt and a seed, it answers texts.

The terms are Gymnasium's, with texts for observations and actions. An environment runs in its own process, so
these records travel between processes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from contracts.rollout import Prompt


@dataclass(frozen=True, slots=True)
class Observation:
    """A text of the environment, and the answers that it allows.

    Example: a text game's first observation.

        Observation(text="-= Kitchen =-\\nYou are in a kitchen.", header="Find the coin.",
                    hint="You can: go east, take knife.", actions=("go east", "take knife"), expert="go east")

    `header` precedes the whole conversation and is never dropped; only a reset gives one. `hint` is shown
    now, and dropped later where the model remembers only some turns. `actions` are the answers known to be
    valid; () allows any answer. `expert` is an expert's answer. With `by_model` a copy of the model itself
    plays the partner and writes the text. `messages` are what a chat template lays out in place of the text,
    such as a whole conversation at a reset; () means a message of the user. `tools` are JSON schemas of
    functions that the model may call; only a reset gives them.
    """

    text: str
    header: str = ""
    hint: str = ""
    actions: tuple[str, ...] = ()
    expert: str | None = None
    by_model: bool = False
    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """The environment's response to one answer of the model.

    Example: the coin is found, which ends the game:
    `Step(Observation("*** The End ***"), reward=1.0, terminated=True, info={"won": 1.0, "steps": 5.0})`

    `terminated`: the episode truly ended, and no reward can follow. `truncated`: it was cut, though the game
    would go on. `info` holds numbers to log; each name's last value in an episode counts.
    """

    observation: Observation
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, float] = field(default_factory=dict)


class Environment(Protocol):
    """A game or a dialogue, used for one episode after another; it may raise, hang or die at any time.

    If a copy of the model writes observations, the environment may have `overhear(text: str) -> bool`. It
    gets the copy's text; returning True ends the episode.
    """

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        """Begin an episode; the same prompt and seed always begin the same episode."""
        ...

    def step(self, text: str) -> Step:
        """Respond to the model's text, which comes without end token and stop string."""
        ...

    def close(self) -> None: ...
