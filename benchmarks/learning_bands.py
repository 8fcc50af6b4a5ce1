"""Bands below which an algorithm learns worse than it did, from the seeds of the registered orderings.

`python -m benchmarks.learning_bands` writes tests/learning_bands.json from what the orderings have left.
tests/test_learning_bands.py trains each arm with three other seeds, and fails where their mean is below the
band. After a change that is meant to alter learning, run the orderings again, and write the bands anew.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.orderings.arms import found, run
from benchmarks.orderings.registry import Arm, read_registry

FILE = Path(__file__).parents[1] / "tests" / "learning_bands.json"
NEW_SEEDS = (20, 21, 22)
FALSE_ALARM = 1e-3  # chance that an unchanged algorithm falls below its band
LEAST_DEVIATION = 0.002  # of a seed: eight seeds that agree by chance promise no narrower band
MEASURES = {"nlpo": "last", "critic": "test", "offline clean": "sampled"}  # orderings that have bands


def banded(ordering: str) -> dict[str, Arm]:
    """Return the arms of an ordering, each of which has a band."""
    return read_registry().orderings[ordering].arms


def reward_of(arm: Arm, seed: int, measure: str) -> float:
    """Train, unless it is done; return the measure."""
    run(read_registry(), arm, seed)
    whole = found(arm, seed) or {}
    return float(whole["measures"][measure])


def bands_of(rewards: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return for each arm of an ordering the least mean that the new seeds may have.

    It is below the arm's mean by Student's quantile of FALSE_ALARM times s √(1/n + 1/m): the prediction
    interval of the mean of m more runs after n. s is the arm's own deviation from seed to seed.

    >>> round(bands_of({"a": [0.4, 0.5, 0.6]})["a"], 3)  # 22.327 · 0.1 · √(1/3 + 1/3) below 0.5
    -1.323
    """
    return {name: statistics.fmean(own) - _allowed(own) for name, own in rewards.items()}


def _allowed(own: Sequence[float]) -> float:
    from scipy.stats import t

    deviation = max(statistics.stdev(own), LEAST_DEVIATION)
    quantile = float(t.ppf(1 - FALSE_ALARM, len(own) - 1))
    return quantile * deviation * math.sqrt(1 / len(own) + 1 / len(NEW_SEEDS))


def read_bands() -> dict[str, Any]:
    """Return, by ordering, the rewards that were measured and what follows: `{"nlpo": {"at_least": …}}`."""
    told: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return told


def main() -> None:
    told = {}
    for ordering, measure in MEASURES.items():
        rewards = {
            name: [reward_of(arm, seed, measure) for seed in read_registry().seeds]
            for name, arm in banded(ordering).items()
        }
        told[ordering] = {"rewards": rewards, "at_least": bands_of(rewards)}
    FILE.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
