"""Score an answer like reasoning_gym."""

import importlib
import warnings
from collections.abc import Mapping
from typing import Any

from contracts.literals import unpacked


def prepare() -> None:
    """Import reasoning_gym, which takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SyntaxWarnings of packages that it brings
        importlib.import_module("reasoning_gym")


def perform(payload: Mapping[str, Any]) -> float:
    """Return the score of the answer for the entry."""
    from reasoning_gym import create_dataset

    data = create_dataset(payload["dataset"], **payload["options"], size=1, seed=0)
    return float(data.score_answer(payload["answer"], unpacked(payload["entry"])))
