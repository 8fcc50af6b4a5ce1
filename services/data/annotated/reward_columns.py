"""Reward columns of an annotated data set."""

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from contracts.errors import InputError, did_you_mean
from reward_servers.settings import Part
from reward_servers.shaping import contribution

REWARD = "reward."  # column prefix before the reward's label
GRADES = "grades"  # column of grades with more than numbers, as JSON


def totals(table: pa.Table, rewards: Sequence[Part], where: str) -> NDArray[np.float64]:
    """Return the weighted sum of each row's rewards, (rows,); NaN if the row was not scored.

    A reward that gives no value for a row is left out of its sum.

    Raises:
        InputError: the table has no column of a reward.
    """
    sums = np.zeros(table.num_rows)
    failed_M = np.array([error is not None for error in _column(table, "error")])
    silent_M = np.full(table.num_rows, bool(rewards))
    for part in rewards:
        if REWARD + part.label not in table.column_names:
            there = [name.removeprefix(REWARD) for name in table.column_names if name.startswith(REWARD)]
            raise InputError(
                f"reward: {where} has no column of '{part.label}'{did_you_mean(part.label, there)}"
            )
        values = table[REWARD + part.label].to_pylist()
        sums += [0.0 if value is None else contribution(part, value) for value in values]
        silent_M &= [value is None for value in values]
        sums[failed_M & [value is None for value in values]] = math.nan
    sums[silent_M] = math.nan
    return sums


def _column(table: pa.Table, name: str) -> list[object]:
    """Return a column; None for each row if the table lacks the column."""
    values: list[object] = table[name].to_pylist() if name in table.column_names else [None] * table.num_rows
    return values
