"""Names of the metrics of baseline players, which play the same held-out prompts as the model."""

from collections.abc import Mapping
from typing import Literal, get_args

Player = Literal["random", "expert"]
BASELINE = "baseline"
PLAYERS = get_args(Player)


def of_player(player: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return a baseline's metrics from an evaluation's metrics, without the baseline's prefix.

    >>> of_player("random", {"reward/mean": 1.0, "baseline/random/reward/mean": 0.25})
    {'reward/mean': 0.25}
    """
    prefix = f"{BASELINE}/{player}/"
    return {key.removeprefix(prefix): value for key, value in metrics.items() if key.startswith(prefix)}
