"""What a model acts in: an environment is reset with a prompt and a seed, then answers each of its texts.

Gymnasium's terms, with texts for observations and actions. An environment lives in a process of its
own: what it says crosses a border, so it says it in these records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from contracts.rollout import Prompt


@dataclass(frozen=True, slots=True)
class Observation:
    """What the world says, and what could be answered.

    Example: a text game's first observation.

        Observation(text="-= Kitchen =-\\nYou are in a kitchen.", header="Find the coin.",
                    hint="You can: go east, take knife.", actions=("go east", "take knife"), expert="go east")

    `header` stands in front of everything and is never forgotten; only a reset gives one. `hint` is said
    now, and forgotten where only some turns are remembered. `actions` are the answers known to be valid,
    () where anything goes; `expert` the answer of one who knows the way. With `by_model` the text is left
    to the model itself: a partner who is its own copy speaks.
    """

    text: str
    header: str = ""
    hint: str = ""
    actions: tuple[str, ...] = ()
    expert: str | None = None
    by_model: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """What an answer led to.

    Example: the coin is found, which ends the game:
    `Step(Observation("*** The End ***"), reward=1.0, terminated=True, info={"won": 1.0, "steps": 5.0})`

    `terminated` is a true end, after which nothing could be earned; `truncated` a cut: the game would go on.
    `info` are numbers to be logged; of each name the last value of an episode counts.
    """

    observation: Observation
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, float] = field(default_factory=dict)


class Environment(Protocol):
    """One game, one talk. Used for one episode after another; may raise, hang or die at any time.

    Where it leaves observations to the model's own copy, it may have `overhear(text: str) -> bool`, which is
    told what the copy said; True ends the episode.
    """

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        """Begin an episode: the same prompt and seed begin the same one."""
        ...

    def step(self, text: str) -> Step:
        """Answer what the model wrote; its text is without end token and stop string."""
        ...

    def close(self) -> None: ...
