"""Kill -9 at instants that nobody chose: each time the run goes on, and ends as it would have ended.

KILLS=20 python -m pytest tests/test_any_instant.py runs it, a quarter of an hour; INSTANTS_PAGE=FILE
writes what happened into a page.
"""

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.models import make_tiny_model
from tests.runs import Run, results

KILLS = int(os.environ.get("KILLS", "0"))
pytestmark = [
    pytest.mark.ray,
    pytest.mark.long,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not KILLS, reason="KILLS=20 asks for it: a quarter of an hour"),
]

ITERATIONS = 40 + 12 * KILLS
LATEST_S = 60.0  # after a start; the parts are up after half of that
SPLITS = ("val", "test")


@dataclass(frozen=True, slots=True)
class Kill:
    """One of them: when it came, and what was there."""

    seconds: float  # after the start
    iterations: int
    checkpoint: int


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[tuple[Run, Run]]:
    """The one that nobody disturbs and the other, with one configuration."""
    options = (
        f"model.path={make_tiny_model(tmp_path / 'model')}",
        "rollout.engine=transformers",
        f"iterations={ITERATIONS}",
        "evaluate_every=20",
        "save_every=4",
        "metrics=[]",
        "tracking.enabled=false",
    )
    made = Run(tmp_path, "straight", *options), Run(tmp_path, "killed", *options)
    yield made
    for run in made:
        run.end()


def test_whenever_it_is_killed_a_run_ends_as_if_nothing_had_been(runs: tuple[Run, Run]) -> None:
    straight, run = runs
    assert straight.start().finish() == 0, straight.output

    drawn, kills = random.Random(0), []
    for _ in range(KILLS):
        instant = drawn.uniform(0, LATEST_S)
        kills.append(kill_after(run.start(), instant))
        print(kills[-1], flush=True)
        done = kills[-1].iterations
        assert results(run.folder.rollout_info()) == results(straight.folder.rollout_info()[:done])
    assert run.start().finish() == 0, run.output

    assert results(run.folder.rollout_info()) == results(straight.folder.rollout_info())
    assert results(run.folder.training_info()) == results(straight.folder.training_info())
    for split in SPLITS:
        assert evaluations(run, split) == evaluations(straight, split)
    trained, undisturbed = (load_file(r.folder.model / "model.safetensors") for r in (run, straight))
    assert trained.keys() == undisturbed.keys()
    assert all(trained[name].equal(undisturbed[name]) for name in undisturbed)
    if page := os.environ.get("INSTANTS_PAGE"):
        Path(page).write_text(table(kills))


def kill_after(run: Run, seconds: float) -> Kill:
    time.sleep(seconds)
    assert run.process.poll() is None, f"it ended before it was killed:\n{run.output}"
    run.signal(signal.SIGKILL, to_all=True)
    run.finish()
    assert run.left_over() == []
    checkpoints = run.folder.checkpoints() if run.folder.path.exists() else {}
    return Kill(seconds, len(run.folder.rollout_info()), max(checkpoints, default=0))


def evaluations(run: Run, split: str) -> list[tuple[int, float]]:
    return [(row["epoch"], row["metrics"]["reward/mean"]) for row in run.folder.evaluations(split)]


def table(kills: list[Kill]) -> str:
    lines = [
        "# Killed at any instant",
        "",
        f"A run of {ITERATIONS} iterations with `rollout.deterministic=true` and a checkpoint every fourth,",
        f"killed (`kill -9` of the driver and all that it started) {len(kills)} times at instants drawn",
        f"evenly from the {LATEST_S:.0f} seconds after each start, and started again with the same command.",
        "After every kill all finished iterations were those of a run that nobody disturbed; at the end so",
        "were rollouts, updates, evaluations and every weight of the model, bit by bit.",
        "",
        "| kill | seconds after the start | iterations done | goes on from |",
        "|---|---|---|---|",
    ]
    lines += [f"| {n} | {k.seconds:.1f} | {k.iterations} | {k.checkpoint} |" for n, k in enumerate(kills, 1)]
    page = "INSTANTS_PAGE=benchmarks/out/resume.md"
    again = f"KILLS={len(kills)} {page} python -m pytest tests/test_any_instant.py"
    return "\n".join([*lines, "", f"`{again}`", ""])
