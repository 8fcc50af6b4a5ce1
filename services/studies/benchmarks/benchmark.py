"""A benchmark's record: names of tasks and algorithms, and the measure of each run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from services.runs.folder import RunFolder

Measure = Callable[[RunFolder, int], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Benchmark over tasks and algorithms; each pair is the experiment `TASK_ALGORITHM`.

    Example: `GRUE.name == "grue"`: `whetstone benchmark grue` writes grue.md, grue.csv and grue.html.
    """

    name: str
    title: str
    about: str  # text for --help
    tasks: tuple[str, ...]
    algorithms: tuple[str, ...]  # names in the order of running and showing
    measure: Measure  # returns a run's metrics after a number of iterations; 0: before training
    rows: Literal["metrics", "algorithms"] = "metrics"  # the table's rows; the other are its columns
    note: str = ""  # one sentence for the page
