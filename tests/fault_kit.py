"""Faults that befall a part of a run, and their costs."""

import contextlib
import os
import platform
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from rollout_workers.engines.choice import choose_engine
from tests.runs import Run

PROMPTS = 32  # an iteration
SAVE_EVERY = 2
SLOW_S = 5.0
BETWEEN = 2  # iterations in peace before the next fault
PATIENCE_S = 300.0
RAISING = Path(__file__).parent / "raising"
PAGE = os.environ.get("FAULTS_PAGE")
ENGINE = choose_engine("auto", is_encoder_decoder=False)  # that of models of usual size
STALL_S = 12 if PAGE else 30  # as impatient as one may be; a test that anybody runs may meet a busy machine


@dataclass(frozen=True, slots=True)
class Part:
    """A process of a run, by the title that Ray gives it; and what it does, for an exception in the midst."""

    name: str
    title: str = ""  # empty: the driver
    work: str = ""  # file.py:function, of the thread that is to raise


WORKER = Part("rollout worker", "ray::RolloutWorker", "rollout_workers/worker.py:_advance")
REPLICA = Part(
    "reward replica", "ray::ServeReplica:reward-fickle"
)  # tests/test_survival.py has one that raises
CONTROLLER = Part("Serve's controller", "ray::ServeController")
LEARNER = Part("learner", "ray::Learner", "learner/learner.py:update")
RANK = Part("one of the learner's two processes", "ray::Learner", "learner/learner.py:update")
ENVIRONMENT = Part("environment", "ray::EnvironmentHost", "tests/test_environments.py:step")
DRIVER = Part("driver")

KILLED, STOPPED, RAISES, SLOW = "SIGKILL", "SIGSTOP", "an exception", f"slow: stopped for {SLOW_S:.0f} s"


@dataclass(frozen=True, slots=True)
class Fault:
    part: Part
    kind: str

    @property
    def name(self) -> str:
        return f"{self.part.name}, {self.kind}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The cost of one fault."""

    name: str
    seconds: float  # until an iteration was done that was not before
    iterations_again: int


def options(model: Path) -> tuple[str, ...]:
    """Overrides of a run that writes ahead and whose patience is short."""
    return (
        f"model.path={model}",
        f"rollout.engine={ENGINE}",
        "rollout.deterministic=false",
        f"rollout.stall_timeout_s={STALL_S}",
        f"learner.stall_timeout_s={STALL_S}",
        f"rollout.prompts_per_iteration={PROMPTS}",
        "rollout.max_restarts=1000",
        "learner.max_restarts=1000",
        "measures=[tests.lease_log:Leases]",
        "metrics=[]",
        "tracking.enabled=false",
        "evaluate_every=0",
        "evaluation.num_prompts=1",
        f"save_every={SAVE_EVERY}",
    )


def writing_ahead(model: Path) -> tuple[str, ...]:
    """Two workers, and a reward that is scored by a server."""
    return (
        *options(model),
        "rollout.max_staleness=1",
        "rollout.num_workers=2",
        "reward={name: 'tests.fickle_reward:Fickle', label: fickle, never: none, pause_s: 0.1}",
        "reward_servers.default.timeout_s=3",
        "reward_servers.default.cache_size=0",  # what was scored before would spare the server its faults
        "reward_servers.retries=10",
        "reward_servers.fickle.replicas=1",  # on Serve; tests/reward_servers/test_beside.py has the others
    )


def num_iterations(faults: tuple[Fault, ...], meanwhile: int) -> int:
    """So many that no fault comes too late: some pass while another process takes a lost one's place."""
    return (BETWEEN + 2 + meanwhile) * len(faults) + SAVE_EVERY


def befall(run: Run, fault: Fault) -> Outcome:
    """Let it happen, wait until the run goes on, then leave it in peace for a while."""
    before = len(run.folder.rollout_info())
    started = _befall_driver(run) if fault.part is DRIVER else _befall_one(run, fault)
    outcome = go_on(run, fault.name, before, started)
    run.wait_for_iteration(len(run.folder.rollout_info()) + BETWEEN - 1)
    return outcome


def go_on(run: Run, name: str, before: int, started: float) -> Outcome:
    """Wait for an iteration beyond those that were done before."""
    least = before
    while (now := len(run.folder.rollout_info())) <= before:
        least = min(least, now)
        assert run.process.poll() is None, run.output
        seconds = time.monotonic() - started
        assert seconds < PATIENCE_S, f"{name}: no iteration for {seconds:.0f} s\n{run.output}"
        time.sleep(0.02)
    return Outcome(name, time.monotonic() - started, before - least)


def _befall_one(run: Run, fault: Fault) -> float:
    """Returns when it happened."""
    title = fault.part.title
    before, started = processes(run, title), time.monotonic()
    victim = before[0]  # the newest may be one that is still starting
    if fault.kind == RAISES:
        request = Path(os.environ["WHETSTONE_TEST_RAISE"]) / str(victim.pid)
        request.with_suffix(".new").write_text(fault.part.work)
        request.with_suffix(".new").rename(request)
        run.wait_for(f"{fault.name} to happen", lambda: not request.exists())
        return started
    victim.send_signal(signal.SIGKILL if fault.kind == KILLED else signal.SIGSTOP)
    if fault.kind == SLOW:
        time.sleep(SLOW_S)
        victim.send_signal(signal.SIGCONT)
    elif fault.part is not CONTROLLER or fault.kind == KILLED:  # a stopped one is not missed
        run.wait_for(f"another {fault.part.name}", lambda: set(processes(run, title)) - set(before))
    return started


def _befall_driver(run: Run) -> float:
    """It is killed and started again by hand; returns when that was."""
    run.signal(signal.SIGKILL)
    run.process.wait()
    for process in run.left_over():
        process.kill()
    started = time.monotonic()
    run.start()
    return started


def processes(run: Run, title: str) -> list[psutil.Process]:
    """Those that live and whose title begins so, by age."""
    titled = []
    for process in run.children():
        with contextlib.suppress(psutil.Error):
            named = process.cmdline()[:1]
            titled += [process] if named and named[0].startswith(title) and process.is_running() else []
    alive = [process for process in titled if process.status() != psutil.STATUS_ZOMBIE]
    return sorted(alive, key=lambda process: process.create_time())


def record(page: Path, outcomes: list[Outcome]) -> None:
    """Write the rows into the page's table in place of the old rows of these faults."""
    rows = dict(re.findall(r"^\| (.+?) \| (\d.*) \|$", page.read_text() if page.exists() else "", re.M))
    rows |= {o.name: f"{o.seconds:.1f} | {o.iterations_again}" for o in outcomes}
    lines = [
        "# What a fault costs",
        "",
        "Whole runs use real vLLM, Ray and Serve. In `tests/test_faults.py` one run has two vLLM workers",
        "that write an iteration ahead, a reward on Serve and a learner. Another has an environment of",
        "several turns and a learner of two processes. `tests/test_node_loss.py` has two nodes with a",
        "worker each. Each part in turn is killed (SIGKILL), suspended (SIGSTOP), made to raise an",
        "exception, or paused. Seconds count from the fault to the end of the next new iteration. The",
        "driver's seconds count from its restart by hand. Hangs are noticed after",
        f"`stall_timeout_s={STALL_S}` (workers, learner) and `timeout_s=3` (rewards, environments); the",
        f"defaults are longer. An iteration has {PROMPTS} prompts. Every {SAVE_EVERY} iterations the run",
        "saves a checkpoint.",
        "",
        "Each prompt was trained on exactly once. `tests/test_survival.py` has rewards that raise.",
        "Replicas keep working while a stopped Serve controller is replaced.",
        "",
        f"{os.cpu_count()} CPU cores, Python {platform.python_version()}.",
        "",
        "| fault | seconds to go on | iterations done again |",
        "|---|---|---|",
        *[f"| {name} | {cost} |" for name, cost in rows.items()],
        "",
        f"`FAULTS_PAGE={page} python -m pytest tests/test_faults.py tests/test_node_loss.py`",
        "",
    ]
    page.write_text("\n".join(lines))
