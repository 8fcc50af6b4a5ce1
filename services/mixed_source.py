"""Batches of the policy's own rollouts with a share of a data set's: how many of each, both in an order that
resumes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contracts.errors import InputError
from contracts.rollout import Lease, Rollout
from reward_servers.settings import Part
from services.leasing import LeaseSource
from services.offline_source import OfflineSource


@dataclass(frozen=True, slots=True)
class Mixture:
    """What an iteration is made of.

    Example: of 64 prompts with 8 responses each, a quarter from pairs: `Mixture(num_prompts=48,
    num_examples=64)` has 384 rollouts of the policy's own and 128 of the data.
    """

    num_prompts: int  # that the policy answers
    num_examples: int  # of the data; one has a response, or a prompt's ranked ones


def mixture(share: float, num_prompts: int, group_size: int, num_responses: int) -> Mixture:
    """Examples in the place of so many prompts as make up the share, rounded to whole prompts.

    Args:
        num_prompts: of a whole iteration, each with `group_size` rollouts.
        num_responses: that an example has.

    Raises:
        InputError: one of both would be empty, or the rollouts don't make whole examples.
    """
    replaced = round(share * num_prompts)
    if not 0 < replaced < num_prompts:
        raise InputError(
            f"data.share={share:g} of rollout.prompts_per_iteration={num_prompts} is {replaced} prompts; "
            f"expected at least one, and one left to the policy: give another share, or more prompts"
        )
    num_rollouts = replaced * group_size
    if num_rollouts % num_responses:
        raise InputError(
            f"data.share={share:g} takes the place of {num_rollouts} rollouts, which groups of "
            f"data.num_responses={num_responses} can't make up; expected a divisor, such as "
            f"{_divisor(num_rollouts)}"
        )
    return Mixture(num_prompts - replaced, num_rollouts // num_responses)


class MixedSource:
    """A lease source and a data source, of which each iteration takes its shares."""

    def __init__(
        self, prompts: LeaseSource, data: OfflineSource, share: float, group_size: int, num_responses: int
    ) -> None:
        self._prompts, self._data = prompts, data
        self._share, self._group_size, self._num_responses = share, group_size, num_responses

    @property
    def rewards(self) -> tuple[Part, ...]:
        """Those whose weighted sum a data set's response's reward is."""
        return self._data.rewards

    def lease(self, num_prompts: int) -> list[Lease]:
        """What the policy is asked in an iteration of so many prompts."""
        return self._prompts.lease(self._mixture(num_prompts).num_prompts)

    def rollouts(self, num_prompts: int) -> list[Rollout]:
        """What the data gives to such an iteration."""
        return self._data.draw(self._mixture(num_prompts).num_examples)

    def _mixture(self, num_prompts: int) -> Mixture:
        return mixture(self._share, num_prompts, self._group_size, self._num_responses)

    def state(self) -> dict[str, Any]:
        return {"prompts": self._prompts.state(), "data": self._data.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken.

        Raises:
            InputError: the data is not what it was.
        """
        self._prompts.restore(state["prompts"])
        self._data.restore(state["data"])


def _divisor(number: int) -> int:
    """The least above 1.

    >>> _divisor(12), _divisor(7)
    (2, 7)
    """
    return next(each for each in range(2, number + 1) if number % each == 0)
