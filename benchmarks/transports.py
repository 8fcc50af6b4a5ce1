"""(c) A weight push by each transport of CPUs, from learner to vLLM, beside a copy of its bytes.

One learner and one worker for each transport, one after the other; each push ends with the worker's probe.
"""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.models import gpt2_98m
from benchmarks.outcome import in_turns, publish, ratio, seconds
from benchmarks.weights import Found, pushed, settings, started
from services.cluster.ray_cluster import cluster

ROUNDS = 11
WAYS = ("objects", "gloo")


def main() -> None:
    times_of: Found = {}
    with cluster():
        for way in WAYS:
            num_bytes, times = beside_a_copy(gpt2_98m(), (f"learner.transport={way}",), in_memory)
            times_of |= {f"{way}: {name}": values for name, values in times.items()}
    rows = {f"{name}, ms": statistics.median(values) * 1000 for name, values in times_of.items()}
    rows |= {f"{way}: push / copy": ratio(times_of[f"{way}: push"], times_of[f"{way}: copy"]) for way in WAYS}
    rows["MB"] = num_bytes / 1e6
    publish("transports", "transports: a push, its probe included", rows, times_of)


def beside_a_copy(
    model: Path,
    options: Sequence[str],
    copier: Callable[[int], Callable[[], float]],
    rounds: int = ROUNDS,
) -> tuple[int, Found]:
    """Return a push's bytes, and the seconds of pushes and of copies.

    Args:
        copier: makes a copy of that many bytes, which returns its seconds.
    """
    learner, fleet = started(settings(f"model.path={model}", *options))
    num_bytes, _ = pushed(learner, fleet)
    sides = {"copy": copier(num_bytes), "push": lambda: seconds(lambda: pushed(learner, fleet))}
    times = in_turns(sides, rounds, warm_up=3)
    fleet.stop()
    learner.stop()
    return num_bytes, times


def in_memory(num_bytes: int) -> Callable[[], float]:
    source, target = np.ones(num_bytes, np.uint8), np.ones(num_bytes, np.uint8)
    return lambda: seconds(lambda: np.copyto(target, source))


if __name__ == "__main__":
    main()
