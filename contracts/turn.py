"""One turn of a rollout: an observation, then the model's answer.

Numbers of a turn cross processes as bytes (`contracts/packed.py`) and become tuples at the first read. A
process that only passes a turn on never unpacks them.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from contracts.packed import Packed, as_array, extremes, length, packed, unpacked

NONE = packed(())
NUMBERS = ("observation", "tokens", "behavior_logprobs", "weight_versions")


class _Carrier:
    """Place for a turn's numbers from another process, in the order of `NUMBERS`."""

    __slots__ = ("_packed",)
    _packed: tuple[Packed, Packed, Packed, Packed] | None


@dataclass(frozen=True, slots=True)
class Turn(_Carrier):
    """An observation, then the model's answer.

    Example: the observation has two tokens; the model answers with three, the last one by new weights.

        Turn(observation=(12, 14), tokens=(15, 17, 2), text="6 8",
            behavior_logprobs=(-0.7, -1.2, -0.1), weight_versions=(4, 4, 5), reward=0.5)

    `behavior_logprobs[t]` is the log-probability of `tokens[t]` under the distribution that drew it, and
    `weight_versions[t]` the version of the weights. `reward` is this turn's alone, None until it is known.
    The last token gets it, unless `token_rewards` divide it over the tokens. The observation of a `fresh`
    turn is the whole context, with the turns that the model remembers. Any other turn's context begins with
    the turns before it.
    """

    observation: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str
    behavior_logprobs: tuple[float, ...]
    weight_versions: tuple[int, ...]
    reward: float | None = None
    fresh: bool = False
    observation_text: str = ""  # the observation for people to read; "" if it is the prompt
    role: str = ""  # the policy's, if it has several in an episode: `critic`
    token_rewards: tuple[float, ...] = ()  # they add up to `reward`

    def __post_init__(self) -> None:
        object.__setattr__(self, "_packed", None)
        if not len(self.tokens) == len(self.behavior_logprobs) == len(self.weight_versions):
            raise ValueError(
                "a turn needs a log-probability and a weight version for each token, got "
                f"{len(self.tokens)} tokens, {len(self.behavior_logprobs)} log-probabilities, "
                f"{len(self.weight_versions)} versions"
            )
        if self.token_rewards and len(self.token_rewards) != len(self.tokens):
            raise ValueError(
                f"a turn needs a reward for each token or for none, got {len(self.tokens)} tokens and "
                f"{len(self.token_rewards)} rewards"
            )

    @property
    def num_tokens(self) -> int:
        """Return the number of the model's tokens."""
        return len(self.tokens) if self._packed is None else length(self._packed[1])

    @property
    def num_observed(self) -> int:
        """Return the number of the observation's tokens."""
        return len(self.observation) if self._packed is None else length(self._packed[0])

    @property
    def oldest_and_newest(self) -> tuple[int, int]:
        """Return the lowest and the highest version of the weights that drew a token; there must be one."""
        if self._packed is not None:
            return extremes(self._packed[3])
        return min(self.weight_versions), max(self.weight_versions)

    def array(self, name: str) -> np.ndarray:
        """Return one of the turn's `NUMBERS` as an array; never write to it."""
        if self._packed is not None:
            return as_array(self._packed[NUMBERS.index(name)])
        return np.asarray(getattr(self, name))

    def with_reward(self, reward: float, token_rewards: tuple[float, ...] = ()) -> "Turn":
        """Return the turn with this reward; without rewards of tokens, the last token gets it."""
        if self._packed is None:
            return replace(self, reward=reward, token_rewards=token_rewards)
        rest = (self.fresh, self.observation_text, self.role)
        return _received(self._packed, self.text, reward, *rest, packed(token_rewards))

    def __reduce__(self) -> tuple[Any, ...]:
        numbers = self._packed or tuple(packed(getattr(self, name)) for name in NUMBERS)
        rest = (self.fresh, self.observation_text, self.role)
        return _received, (numbers, self.text, self.reward, *rest, packed(self.token_rewards))

    if not TYPE_CHECKING:  # otherwise type checkers miss misspelt names

        def __getattr__(self, name: str) -> Any:
            """Unpack numbers that came as bytes, at their first read."""
            if name not in NUMBERS:
                raise AttributeError(f"a turn has no {name!r}", name=name, obj=self)
            numbers = unpacked(self._packed[NUMBERS.index(name)])
            object.__setattr__(self, name, numbers)
            return numbers


def _received(
    numbers: tuple[Packed, Packed, Packed, Packed],
    text: str,
    reward: float | None,
    fresh: bool,
    observation_text: str,
    role: str,
    token_rewards: Packed = NONE,
) -> Turn:
    """Return a turn that came from another process, which has checked it."""
    turn = object.__new__(Turn)
    put = object.__setattr__
    put(turn, "_packed", numbers)
    put(turn, "text", text)
    put(turn, "reward", reward)
    put(turn, "fresh", fresh)
    put(turn, "observation_text", observation_text)
    put(turn, "role", role)
    put(turn, "token_rewards", unpacked(token_rewards) if length(token_rewards) else ())
    return turn
