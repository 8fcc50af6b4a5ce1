"""A soak: faults at random, one every half a minute, for as long as is asked for.

SOAK_MINUTES=30 python -m pytest tests/test_soak.py runs it; SOAK_PAGE=FILE writes what happened into a page.
"""

import os
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.fault_kit import (
    CONTROLLER,
    KILLED,
    LEARNER,
    PROMPTS,
    REPLICA,
    STOPPED,
    WORKER,
    processes,
    writing_ahead,
)
from tests.lease_log import expected
from tests.models import make_tiny_model
from tests.runs import Run

MINUTES = float(os.environ.get("SOAK_MINUTES", "0"))
pytestmark = [
    pytest.mark.ray,
    pytest.mark.long,
    pytest.mark.timeout(4 * 3600),
    pytest.mark.skipif(not MINUTES, reason="SOAK_MINUTES=30 asks for it"),
]

FAULTS = [
    (part, kind)
    for part in (WORKER, REPLICA, CONTROLLER, LEARNER)
    for kind in (KILLED, STOPPED)
    if (part, kind) != (CONTROLLER, STOPPED)  # Ray does not miss it
]
BETWEEN_S = 30.0
PER_MINUTE = int(os.environ.get("SOAK_PER_MINUTE", "40"))  # iterations that the machine does among faults
PATIENCE_S = 3600.0
TAIL = 20  # iterations, at the end, whose rewards are compared


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[tuple[Run, Run]]:
    """The one that nobody disturbs and the other."""
    model = make_tiny_model(tmp_path / "model")
    iterations = max(4, int(MINUTES * PER_MINUTE))
    shared = (
        *writing_ahead(model),
        f"iterations={iterations}",
        "rollout.start_timeout_s=180",
        "learner.start_timeout_s=180",
    )
    made = Run(tmp_path, "straight", *shared), Run(tmp_path, "soaked", *shared)
    yield made
    for run in made:
        run.end()


def test_a_run_under_random_faults_trains_on_every_prompt_once(runs: tuple[Run, Run]) -> None:
    straight, run = runs
    straight.start()  # beside the other: as busy a machine for both
    started = time.monotonic()
    befell = soak(run.start())
    minutes = (time.monotonic() - started) / 60

    assert run.finish() == 0, run.output
    assert straight.process.wait(PATIENCE_S) == 0, straight.output
    assert len(befell) >= MINUTES  # of two a minute: some processes are not there when it is their turn
    rows, undisturbed = run.folder.rollout_info(), straight.folder.rollout_info()
    assert [row["iteration"] for row in rows] == [row["iteration"] for row in undisturbed]
    for row in rows:
        assert {key: row[key] for key in row if key.startswith("lease/")} == expected(
            row["iteration"], PROMPTS
        )
    ends = [[row["reward/mean"] for row in lines[-TAIL:]] for lines in (rows, undisturbed)]
    if page := os.environ.get("SOAK_PAGE"):
        Path(page).write_text(table(befell, minutes, len(rows), ends))
    noise = (sum(statistics.variance(end) for end in ends) / TAIL) ** 0.5
    assert abs(statistics.fmean(ends[0]) - statistics.fmean(ends[1])) < max(0.05, 4 * noise)


def soak(run: Run) -> list[str]:
    """A fault every half a minute, of whichever process there is, until the run has ended."""
    drawn, befell = random.Random(0), []
    run.wait_for_iteration(2)
    while run.process.poll() is None:
        part, kind = drawn.choice(FAULTS)
        try:
            targets = processes(run, part.title)
            if targets and run.process.poll() is None:
                drawn.choice(targets).send_signal(signal.Signals[kind])
                befell.append(f"{part.name}, {kind}")
                print(f"{len(run.folder.rollout_info())} iterations done: {befell[-1]}", flush=True)
        except psutil.Error:
            pass  # it went in the meantime
        deadline = time.monotonic() + BETWEEN_S
        while run.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
    return befell


def table(befell: list[str], minutes: float, iterations: int, ends: list[list[float]]) -> str:
    soaked, straight = (
        f"{statistics.fmean(end):.3f} ± {statistics.stdev(end) / TAIL**0.5:.3f}" for end in ends
    )
    lines = [
        "# A soak",
        "",
        f"{minutes:.0f} minutes, a fault every {BETWEEN_S:.0f} s, of a part and a kind drawn at random,",
        f"{len(befell)} in all. Both the run and its twin that nobody disturbed trained on",
        f"{iterations * PROMPTS:,} prompts in {iterations} iterations, each once. Mean reward of the last",
        f"{TAIL} iterations: {soaked}, undisturbed {straight}.",
        "",
        "| fault | times |",
        "|---|---|",
        *[f"| {name} | {times} |" for name, times in sorted(Counter(befell).items())],
        "",
        "`SOAK_MINUTES=30 SOAK_PAGE=benchmarks/out/soak.md python -m pytest tests/test_soak.py`",
        "",
    ]
    return "\n".join(lines)
