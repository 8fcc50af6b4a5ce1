"""Samples a second of the reward code_tests: pairs, calls of a function, and unit tests.

    python -m benchmarks.studies.code_tests [SAMPLES]

Run it in two checkouts one after the other, on the same machine, to compare them.
"""

import json
import sys
import time

from contracts.scores import Sample
from reward_servers.graders.code_tests import CodeTests

ADD = "def add(a, b):\n    return a + b\n"
SUMS = "print(sum(map(int, input().split())))\n"
ASSERTIONS = [f"assert add({n}, 1) == {n + 1}" for n in range(3)]
CASES: dict[str, tuple[str, dict[str, object]]] = {
    "pairs, 3 a sample": (SUMS, {"tests": [{"input": f"{n} 1", "output": str(n + 1)} for n in range(3)]}),
    "calls, 3 a sample": (ADD, {"tests": {"fn_name": "add", "inputs": [[1, 2]] * 3, "outputs": [3] * 3}}),
    "unit tests, 3 a sample": (ADD, {"tests": ASSERTIONS}),
    "unit tests, 1000 calls a sample": (ADD, {"tests": ["for n in range(1000): assert add(n, 1) == n + 1"]}),
}
ROUNDS = 3


def rate(program: str, meta: dict[str, object], samples: int) -> float:
    """Return samples a second, in the fastest of three rounds."""
    reward = CodeTests()
    texts = [Sample(program, meta=meta)] * samples
    assert reward.score(texts[:2]) == [1.0, 1.0]
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        assert reward.score(texts) == [1.0] * samples
        seconds.append(time.perf_counter() - start)
    return samples / min(seconds)


def main() -> None:
    samples = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print(json.dumps({name: round(rate(*case, samples), 1) for name, case in CASES.items()}, indent=1))


if __name__ == "__main__":
    main()
