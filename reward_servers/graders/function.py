"""A function of the user's own, by its place; `reward=FILE.py:name` is the same."""

from collections.abc import Sequence

from pydantic import Field

from contracts.scores import Sample
from contracts.settings import Settings


class Function(Settings):
    """`function` is `package.module:name`, or `FILE.py:name`, seen from the working folder.

    Further options are the function's own. `user_rewards/own.py` takes the function's place for this reward's
    name before it makes the reward.

    Example: `reward=function reward.function=my_rewards.py:brevity reward.limit=10`
    """

    function: str = Field(pattern=r"^[^:]+:[^\W\d]\w*$")

    def score(self, samples: Sequence[Sample]) -> Sequence[float]:
        raise NotImplementedError("the function itself is the reward: see reward_servers/user_rewards/own.py")
