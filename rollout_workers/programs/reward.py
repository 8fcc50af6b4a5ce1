"""A program's reward: read from its file, and given to the turns of each role."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from contracts.errors import EpisodeError
from contracts.rollout import Turn

REWARD_FILE = "WHETSTONE_REWARD_FILE"
MOST_REWARD_BYTES = 2**16
POLICY = "policy"


@dataclass(frozen=True, slots=True)
class Reward:
    """A program's reward, which every role of the policy earns; or one for each role.

    Example: `Reward(1.0, {"tools_used": 2.0})`; `Reward(by_model={"policy/pro": 1.0, "policy/con": -1.0})`
    """

    value: float = 0.0
    info: Mapping[str, float] = field(default_factory=dict)  # more numbers to log
    by_model: Mapping[str, float] = field(default_factory=dict)  # rewards by the model's name in the calls

    def of(self, role: str) -> float:
        """Return a role's reward.

        Raises:
            EpisodeError: other roles have rewards, but this role has none.
        """
        name = f"{POLICY}/{role}" if role else POLICY
        if not self.by_model:
            return self.value
        if name not in self.by_model:
            raise EpisodeError(
                f"the program wrote rewards for {', '.join(self.by_model)} to the file of {REWARD_FILE}, but "
                f"{name} has answered, too; expected a number for each, or one number for all"
            )
        return self.by_model[name]


def with_reward(turns: Sequence[Turn], reward: Reward, is_split: bool) -> tuple[Turn, ...]:
    """Return the turns with each role's reward at its last turn, or split over the ends of its sequences.

    Raises:
        EpisodeError: a role has no reward.
    """
    ends = [index for index in range(len(turns)) if index + 1 == len(turns) or turns[index + 1].fresh]
    paid: dict[int, float] = {}
    for role in dict.fromkeys(turn.role for turn in turns):
        paid_turns = [index for index in ends if turns[index].role == role]
        paid_turns = paid_turns if is_split else paid_turns[-1:]
        paid |= dict.fromkeys(paid_turns, reward.of(role) / len(paid_turns))
    return tuple(replace(turn, reward=paid.get(index, 0.0)) for index, turn in enumerate(turns))


def read_reward(content: bytes) -> Reward:
    """Return the reward in a file's content: a number, or an object with `reward` and numbers to log.

    >>> read_reward(b"0.5").value, read_reward(b'{"reward": 1, "steps": 3}').info
    (0.5, {'steps': 3.0})
    >>> read_reward(b'{"reward": {"policy/pro": 1, "policy/con": -1}}').by_model["policy/con"]
    -1.0

    Raises:
        EpisodeError: the content is something else; a model's text may be the cause.
    """
    if len(content) > MOST_REWARD_BYTES:
        raise EpisodeError(
            f"the program wrote more than {MOST_REWARD_BYTES} bytes to the file of {REWARD_FILE}; expected a "
            "number, or an object of a few numbers"
        )
    try:
        parsed: Any = json.loads(content)
    except (ValueError, RecursionError):
        parsed = None
    named = dict(parsed) if isinstance(parsed, dict) else {"reward": parsed}
    own_reward = named.pop("reward", None)
    by_model = own_reward if isinstance(own_reward, dict) and own_reward else {}
    if not all(map(_is_number, (*named.values(), *(by_model.values() or [own_reward])))):
        raise EpisodeError(
            f"the program wrote {content[:80]!r} to the file of {REWARD_FILE}; expected a number such as "
            '0.5, or {"reward": 0.5, "steps": 3} with numbers to log; or for several roles '
            '{"reward": {"policy/pro": 1, "policy/con": -1}}'
        )
    earned = {str(name): float(value) for name, value in by_model.items()}
    info = {str(name): float(value) for name, value in named.items()}
    info |= {f"reward_{name.removeprefix(f'{POLICY}/')}": value for name, value in earned.items()}
    return Reward(0.0 if earned else float(own_reward), info, earned)


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False
