"""The built-in benchmarks by name."""

from services.studies.benchmarks.grue import GRUE
from services.studies.benchmarks.offline import OFFLINE

BENCHMARKS = {benchmark.name: benchmark for benchmark in (GRUE, OFFLINE)}
