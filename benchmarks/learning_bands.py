"""Lower bounds of unchanged learning, from the seeds of the registered orderings.

`python -m benchmarks.learning_bands` writes tests/learning_bands.json from the orderings' results.
tests/test_learning_bands.py trains each arm with three other seeds, and fails if their mean is below the
band. After an intended change of learning, run the orderings again, and rewrite the bands.
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
LEAST_DEVIATION = 0.002  # a seed's deviation counts as at least this: eight seeds may agree by chance
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
    """Return the lowest allowed mean of new seeds for each arm of an ordering.

    It is below the arm's mean by Student's quantile of FALSE_ALARM times s √(1/n + 1/m), the prediction
    interval of the mean of m more runs after n. s is the arm's deviation between seeds.

    >>> round(bands_of({"a": [0.4, 0.5, 0.6]})["a"], 3)  # 22.327 · 0.1 · √(1/3 + 1/3) below 0.5
    -1.323
    """
    return {name: statistics.fmean(seeds) - _allowed(seeds) for name, seeds in rewards.items()}


def _allowed(rewards: Sequence[float]) -> float:
    from scipy.stats import t

    deviation = max(statistics.stdev(rewards), LEAST_DEVIATION)
    quantile = float(t.ppf(1 - FALSE_ALARM, len(rewards) - 1))
    return quantile * deviation * math.sqrt(1 / len(rewards) + 1 / len(NEW_SEEDS))


def read_bands() -> dict[str, Any]:
    """Return, by ordering, the measured rewards and the bounds: `{"nlpo": {"at_least": …}}`."""
    bands: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return bands


def main() -> None:
    bands = {}
    for ordering, measure in MEASURES.items():
        rewards = {
            name: [reward_of(arm, seed, measure) for seed in read_registry().seeds]
            for name, arm in banded(ordering).items()
        }
        bands[ordering] = {"rewards": rewards, "at_least": bands_of(rewards)}
    FILE.write_text(json.dumps(bands, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
