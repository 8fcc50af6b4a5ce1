"""The fault matrix: whole runs in which one part after the other is killed, stopped, slow or raises. They go
on each time, and in the end each prompt was trained on once.

FAULTS_PAGE=docs/results/faults.md asks for all of it, and writes the table of what was measured there.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault_kit import (
    BETWEEN,
    CONTROLLER,
    DRIVER,
    ENVIRONMENT,
    KILLED,
    LEARNER,
    PAGE,
    PROMPTS,
    RAISES,
    RAISING,
    RANK,
    REPLICA,
    SAVE_EVERY,
    SLOW,
    STALL_S,
    STOPPED,
    WORKER,
    Fault,
    befall,
    num_iterations,
    options,
    record,
    writing_ahead,
)
from tests.lease_log import expected
from tests.models import make_tiny_model
from tests.runs import Run

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(1500)]

ALL = (KILLED, STOPPED, RAISES, SLOW)
IN_SINGLE_TURNS = (
    Fault(WORKER, KILLED),
    Fault(WORKER, STOPPED),
    Fault(REPLICA, KILLED),
    Fault(REPLICA, STOPPED),
    Fault(CONTROLLER, KILLED),
    Fault(LEARNER, KILLED),
    Fault(LEARNER, RAISES),
)
IN_EPISODES = (Fault(RANK, KILLED), Fault(ENVIRONMENT, KILLED), Fault(ENVIRONMENT, STOPPED))
if PAGE:
    IN_SINGLE_TURNS = (
        *(
            Fault(part, kind)
            for part in (WORKER, REPLICA, LEARNER)
            for kind in ALL
            if (part.work or kind != RAISES)
        ),
        *(Fault(CONTROLLER, kind) for kind in (KILLED, SLOW, STOPPED)),
        Fault(DRIVER, KILLED),
    )
    IN_EPISODES = tuple(Fault(part, kind) for part in (RANK, ENVIRONMENT) for kind in ALL)
SINGLE_TURNS, EPISODES = num_iterations(IN_SINGLE_TURNS, 4), num_iterations(IN_EPISODES, 1)
TURNS = 3


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Overrides of a run whose processes can be made to raise."""
    (tmp_path / "raise").mkdir()
    monkeypatch.setenv("WHETSTONE_TEST_RAISE", str(tmp_path / "raise"))
    monkeypatch.setenv("PYTHONPATH", str(RAISING), prepend=":")
    return tmp_path


@pytest.fixture
def single_turns(folder: Path) -> Iterator[Run]:
    model = make_tiny_model(folder / "model")
    made = Run(folder, "run", *writing_ahead(model), f"iterations={SINGLE_TURNS}")
    yield made.start()
    made.end()


@pytest.fixture
def episodes(folder: Path) -> Iterator[Run]:
    made = Run(
        folder,
        "run",
        *options(make_tiny_model(folder / "model")),
        f"iterations={EPISODES}",
        "environment={name: 'tests.test_environments:Countdown', num_parallel: 4, pause_s: 0.02}",
        f"environment.start_timeout_s={STALL_S - 2}",
        "environment.step_timeout_s=3",
        "rollout.max_tokens=12",
        "learner.num_processes=2",
    )
    yield made.start()
    made.end()


def test_whatever_dies_or_hangs_every_prompt_is_trained_on_once(single_turns: Run) -> None:
    rows = suffer(single_turns, IN_SINGLE_TURNS, SINGLE_TURNS)
    assert max(row["mismatch/max_ratio"] for row in rows if not row["staleness/max"]) < 1 + 1e-4
    assert all(0 <= row["staleness/mean"] <= row["staleness/max"] <= 1 for row in rows)


def test_so_is_every_episode_by_a_learner_of_two_processes(episodes: Run) -> None:
    rows = suffer(episodes, IN_EPISODES, EPISODES)
    # each was played to its end, whoever died meanwhile
    assert {row["turns/mean"] for row in rows} == {TURNS}
    assert {row["environment/failed"] for row in rows} == {0.0}
    assert sum(row["environment/restarts"] for row in rows) >= 2
    assert max(row["mismatch/max_ratio"] for row in rows) < 1 + 1e-4


def suffer(run: Run, faults: tuple[Fault, ...], iterations: int) -> list[dict[str, float]]:
    """One after the other; returns the lines of the iterations."""
    run.wait_for_iteration(BETWEEN)
    outcomes = [befall(run, fault) for fault in faults]
    assert run.finish() == 0, run.output
    rows = run.folder.rollout_info()
    assert [row["iteration"] for row in rows] == list(range(1, iterations + 1))
    for row in rows:
        leases = {key: row[key] for key in row if key.startswith("lease/")}
        assert leases == expected(row["iteration"], PROMPTS)
    assert all(outcome.iterations_again <= SAVE_EVERY for outcome in outcomes)
    if PAGE:
        record(Path(PAGE), outcomes)
    return rows
