"""What a benchmark is: tasks and algorithms by name, and what is measured of each run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from services.run_folder import RunFolder

Measure = Callable[[RunFolder, int], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One of the benchmarks that there are.

    Each pair of a task and an algorithm is a file `conf/experiment/TASK_ALGORITHM.yaml`.

    Example: `GRUE.name == "grue"`: its tables are grue.md, grue.csv and grue.html, and it is asked for with
    `whetstone benchmark grue`.
    """

    name: str
    title: str
    about: str  # for --help
    tasks: tuple[str, ...]
    algorithms: tuple[str, ...]  # in the order in which they are run and shown
    measure: Measure  # of a run's folder, after so many iterations; 0: before training
    rows: Literal["metrics", "algorithms"] = "metrics"  # what goes down the page; the other goes across
    note: str = ""  # for the page, one sentence
