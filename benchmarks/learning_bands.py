"""Bands below which an algorithm learns worse than it did.

`python -m benchmarks.learning_bands` trains each with a few seeds in this process, and writes
tests/learning_bands.json. Algorithms that sample take 30 iterations of 64 texts with a GPT and the options of
`benchmarks.learning`; the others take 120 steps on the digits of `benchmarks.offline`.
tests/test_learning_bands.py trains each once more with another seed, and fails below its band. After a change
that is meant to alter learning, measure anew.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning import RUNS, algorithm_of
from benchmarks.orderings.arms import found, run
from benchmarks.orderings.registry import Arm, head, read_registry
from services.reproduction.places import in_hydra

FILE = Path(__file__).parents[1] / "tests" / "learning_bands.json"
SEEDS, NEW_SEED = (0, 1), 2
FALSE_ALARM = 1e-3  # chance that an unchanged algorithm falls below its band
GROUPS = ("rollout.prompts_per_iteration=8", "rollout.group_size=8")


def arms() -> dict[str, Arm]:
    """Return an arm for each algorithm of `benchmarks.learning` that samples, and for those of clean data."""
    online = {name: arm_of(name) for name in RUNS if algorithm_of(name).traits.online}
    return online | read_registry().orderings["offline clean"].arms


def arm_of(name: str, *more: str) -> Arm:
    """Return an algorithm's arm, with more overrides after its own."""
    kind, options = RUNS[name]
    own = [f"algorithm.{key}={in_hydra(value)}" for key, value in options.items()]
    groups = GROUPS if algorithm_of(name).traits.default_group_size else ()
    return Arm(train=(f"algorithm={kind}", *own, *groups, *more))


def reward_of(arm: Arm, seed: int) -> float:
    """Train, unless it is done; return the final model's reward on new prompts, for NLPO within its mask."""
    run(read_registry(), arm, seed)
    measures = (found(arm, seed) or {})["measures"]
    masked = "algorithm=nlpo" in arm.train
    return float(measures["sampled" if arm.offline else "last" if masked else "test"])


def bands_of(rewards: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the least reward of each algorithm that one more run may have.

    It is below the mean by Student's quantile of FALSE_ALARM times s √(1 + 1/n): the prediction interval of
    one more run. s is pooled over all algorithms, since few seeds tell an algorithm's own spread badly.

    >>> bands_of({"a": [0.4, 0.6], "b": [0.9, 0.9]})["b"] < 0.9 - 0.1 * 22  # √0.01, two degrees of freedom
    True
    """
    from scipy.stats import t

    freedom = sum(len(own) - 1 for own in rewards.values())
    squares = math.fsum((len(own) - 1) * statistics.variance(own) for own in rewards.values())
    allowed = float(t.ppf(1 - FALSE_ALARM, freedom)) * math.sqrt(squares / freedom)
    return {
        name: statistics.fmean(own) - allowed * math.sqrt(1 + 1 / len(own)) for name, own in rewards.items()
    }


def read_bands() -> dict[str, Any]:
    told: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return told


def main() -> None:
    rewards = {name: [reward_of(arm, seed) for seed in SEEDS] for name, arm in arms().items()}
    told = {"commit": head(), "rewards": rewards, "at_least": bands_of(rewards)}
    FILE.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(FILE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
