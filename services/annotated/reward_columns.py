"""Reward columns of an annotated data set."""

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from contracts.errors import InputError, did_you_mean
from reward_servers.settings import Part
from reward_servers.shaping import contribution

REWARD = "reward."  # a column's name before the reward's label


def totals(table: pa.Table, rewards: Sequence[Part], where: str) -> NDArray[np.float64]:
    """Return the weighted sum of each row's rewards, (rows,); NaN if one of them is missing.

    Raises:
        InputError: the table has no column of a reward.
    """
    sums = np.zeros(table.num_rows)
    for part in rewards:
        if REWARD + part.label not in table.column_names:
            there = [name.removeprefix(REWARD) for name in table.column_names if name.startswith(REWARD)]
            raise InputError(
                f"reward: {where} has no column of '{part.label}'{did_you_mean(part.label, there)}"
            )
        values = table[REWARD + part.label].to_pylist()
        sums += [math.nan if value is None else contribution(part, value) for value in values]
    return sums
