"""The built-in benchmarks by name."""

from services.benchmarks.grue import GRUE
from services.benchmarks.offline import OFFLINE

BENCHMARKS = {benchmark.name: benchmark for benchmark in (GRUE, OFFLINE)}
