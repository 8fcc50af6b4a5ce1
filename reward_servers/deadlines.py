"""Check that a reward's deadlines fit its server's."""

from collections.abc import Sequence

from contracts.components import make
from contracts.errors import InputError
from reward_servers.isolation.limits import limits_of
from reward_servers.settings import Part, RewardServersSettings
from reward_servers.user_rewards.own import find_grader, settled


def check_deadlines(rewards: Sequence[Part], settings: RewardServersSettings) -> None:
    """Refuse a sandbox that would end a reward before the reward's limits.

    A server's `timeout_s` does not matter, because a client waits for a reward that ends by itself.

    Raises:
        InputError: the limits conflict; the message names the option to change.
    """
    for part in map(settled, rewards):
        sandbox, grader = settings.for_label(part.label).sandbox, find_grader("reward", part.name)
        if sandbox is None or "limits" not in getattr(grader, "model_fields", {}):
            continue
        limits = limits_of(make("reward", part.name, grader, part.options))
        if limits is not None and limits.batch_seconds >= sandbox.seconds:
            raise InputError(
                f"reward={part.name} confines its samples by itself, a batch for limits.batch_seconds="
                f"{limits.batch_seconds:g}: expected reward_servers.{part.label}.sandbox=null, or its "
                f"seconds above that, got {sandbox.seconds:g}"
            )
