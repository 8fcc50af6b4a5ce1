"""The fault matrix: one run that writes ahead, with real vLLM and Serve, in which one part after the other is
killed or stopped. It goes on each time, and in the end each prompt was trained on once.

FAULTS_PAGE=docs/results/faults.md writes the table of what was measured there.
"""

import contextlib
import os
import platform
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from tests.lease_log import expected
from tests.models import make_tiny_model
from tests.runs import Run

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1500)]

PROMPTS = 32  # an iteration
SAVE_EVERY = 2
STALL_S = 30
BETWEEN = 2  # iterations in peace before the next fault


@dataclass(frozen=True, slots=True)
class Fault:
    """What befalls which process, and whether another one has to take its place."""

    part: str
    title: str  # of its process, as Ray names it; empty: the driver
    signal: signal.Signals
    for_s: float = 0.0  # stopped that long, and then let go on: slow, and not lost

    @property
    def name(self) -> str:
        return f"{self.part}, {f'slow: stopped for {self.for_s:.0f} s' if self.for_s else self.signal.name}"


FAULTS = (
    Fault("rollout worker", "ray::RolloutWorker", signal.SIGKILL),
    Fault("rollout worker", "ray::RolloutWorker", signal.SIGSTOP),
    Fault("reward replica", "ray::ServeReplica:reward-fickle", signal.SIGKILL),
    Fault("reward replica", "ray::ServeReplica:reward-fickle", signal.SIGSTOP),
    Fault("Serve's controller", "ray::ServeController", signal.SIGKILL),
    Fault("learner", "ray::Learner", signal.SIGKILL),
    Fault("learner", "ray::Learner", signal.SIGSTOP),
)
if PAGE := os.environ.get("FAULTS_PAGE"):  # tests/test_training.py has it, too
    slow = [replace(fault, for_s=5.0) for fault in FAULTS if fault.signal == signal.SIGSTOP]
    FAULTS = (*FAULTS, *slow, Fault("driver", "", signal.SIGKILL))
ITERATIONS = (BETWEEN + 2) * len(FAULTS) + SAVE_EVERY


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one fault cost."""

    fault: Fault
    seconds: float  # until an iteration was done that was not before
    iterations_again: int


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("faults")
    made = Run(folder, "run", *options(make_tiny_model(folder / "model")), f"iterations={ITERATIONS}")
    yield made.start()
    made.end()


def options(model: Path) -> tuple[str, ...]:
    """Of a run that writes ahead and whose patience is short."""
    return (
        f"model.path={model}",
        "rollout.deterministic=false",
        "rollout.max_staleness=1",
        "rollout.num_workers=2",
        f"rollout.stall_timeout_s={STALL_S}",
        f"learner.stall_timeout_s={STALL_S}",
        "reward={name: 'tests.fickle_reward:Fickle', label: fickle, never: none}",
        "reward_servers.default.timeout_s=3",
        "reward_servers.retries=10",
        "measures=[tests.lease_log:Leases]",
        "metrics=[]",
        "tracking.enabled=false",
        "evaluate_every=0",
        "evaluation.num_prompts=1",
        f"save_every={SAVE_EVERY}",
    )


def test_whatever_dies_or_hangs_every_prompt_is_trained_on_once(run: Run) -> None:
    run.wait_for_iteration(BETWEEN)
    found = [befall(run, fault) for fault in FAULTS]

    assert run.finish() == 0, run.output
    rows = run.folder.rollout_info()
    assert [row["iteration"] for row in rows] == list(range(1, ITERATIONS + 1))
    for row in rows:
        assert {key: row[key] for key in row if key.startswith("lease/")} == expected(
            row["iteration"], PROMPTS
        )
    assert max(row["mismatch/max"] for row in rows if not row["staleness/max"]) < 1e-4
    assert all(0 <= row["staleness/mean"] <= row["staleness/max"] <= 1 for row in rows)
    assert all(outcome.iterations_again <= SAVE_EVERY for outcome in found)
    if PAGE:
        Path(PAGE).write_text(table(found))


def befall(run: Run, fault: Fault) -> Outcome:
    """Let it happen, wait until the run goes on, then leave it in peace for a while."""
    before, started = len(run.folder.rollout_info()), time.monotonic()
    if fault.title:
        victim = processes(run, fault.title)[0]
        victim.send_signal(fault.signal)
        if fault.for_s:
            time.sleep(fault.for_s)
            victim.send_signal(signal.SIGCONT)
        else:
            run.wait_for(f"another {fault.part}", lambda: set(processes(run, fault.title)) - {victim})
    else:
        run.signal(fault.signal)
        run.process.wait()
        for process in run.left_over():
            process.kill()
        started = time.monotonic()
        run.start()
    least = before
    while (now := len(run.folder.rollout_info())) <= before:
        least = min(least, now)
        assert run.process.poll() is None, run.output
        assert time.monotonic() - started < 300, f"{fault.name}: no iteration for 300 s\n{run.output}"
        time.sleep(0.02)
    outcome = Outcome(fault, time.monotonic() - started, before - least)
    run.wait_for_iteration(now + BETWEEN - 1)
    return outcome


def processes(run: Run, title: str) -> list[psutil.Process]:
    found = []
    for process in run.children():
        with contextlib.suppress(psutil.Error):
            named = process.cmdline()[:1]
            found += [process] if named and named[0].startswith(title) and process.is_running() else []
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


def table(found: list[Outcome]) -> str:
    lines = [
        "# What a fault costs",
        "",
        "One run (`tests/test_faults.py`): two vLLM workers that write an iteration ahead, a reward on",
        f"Serve, a learner, {PROMPTS} prompts an iteration, a checkpoint every {SAVE_EVERY}. One part after",
        "the other is killed (SIGKILL) or stopped without dying (SIGSTOP). Seconds are from the fault to the",
        "end of an iteration that had not been done before; of the driver, from its being started again by",
        "hand. What hangs is noticed after",
        f"`stall_timeout_s={STALL_S}` (workers, learner) and `timeout_s=3` (rewards), which are shorter than",
        "the defaults. Each prompt was trained on once: none was lost, none was trained on twice.",
        "",
        f"{os.cpu_count()} CPU cores, Python {platform.python_version()}; other work ran on the machine.",
        "Elsewhere: environments (`tests/test_environments.py`), a node (`tests/test_node_loss.py`), rewards",
        "that raise (`tests/test_survival.py`), one of a learner's processes",
        "(`tests/learner/test_group.py`).",
        "",
        "| fault | seconds to go on | iterations done again |",
        "|---|---|---|",
    ]
    lines += [f"| {o.fault.name} | {o.seconds:.1f} | {o.iterations_again} |" for o in found]
    again = "FAULTS_PAGE=docs/results/faults.md python -m pytest tests/test_faults.py"
    return "\n".join([*lines, "", f"`{again}`", ""])
