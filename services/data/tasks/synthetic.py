"""Divide generated prompts into disjoint splits after a seeded shuffle."""

from collections.abc import Sequence

import numpy as np

from contracts.errors import InputError
from contracts.rollout import Prompt
from services.data.tasks.base import Split


def deal(
    task: str, texts: Sequence[str], split: Split, *, num_train: int, num_eval: int, seed: int
) -> list[Prompt]:
    """Return the split's share of `texts`: `num_train` for train, `num_eval` each for validation and test.

    Raises:
        InputError: there are fewer texts than requested prompts.
    """
    wanted = num_train + 2 * num_eval
    if wanted > len(texts):
        raise InputError(
            f"task={task}: task.num_prompts={num_train} and twice task.num_eval_prompts={num_eval} make "
            f"{wanted} prompts, but there are only {len(texts)} different ones. Ask for fewer."
        )
    order = np.random.default_rng(seed).permutation(len(texts))
    start, stop = {
        "train": (0, num_train),
        "validation": (num_train, num_train + num_eval),
        "test": (num_train + num_eval, wanted),
    }[split]
    return [
        Prompt(id=f"{task}/{split}/{row}", text=texts[index]) for row, index in enumerate(order[start:stop])
    ]
