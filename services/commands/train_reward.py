"""`whetstone train-reward`: train a classifier or a preference model to be a reward."""

from collections.abc import Sequence

from services.training.reward_training.settings import print_help, settings_from
from services.training.reward_training.train_reward import train_reward


def run(argv: Sequence[str]) -> int:
    """Train a reward model. Return the exit code."""
    if {"-h", "--help"} & set(argv):
        return print_help()
    return train_reward(settings_from(argv))
