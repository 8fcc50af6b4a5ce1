"""Run `whetstone train` as a user, in a separate process, and watch the files that it writes."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from services.runs.folder import RunFolder

ROOT = Path(__file__).parents[1]
PATIENCE_S = 300.0  # a start takes half a minute, and several times that on a busy machine

# Small, single-threaded, and slow enough for a signal to hit the middle of an iteration.
QUICK = (
    "task=increasing_numbers",
    "task.num_prompts=64",
    "task.num_eval_prompts=8",
    "rollout.prompts_per_iteration=32",
    "rollout.max_tokens=60",
    "rollout.deterministic=true",
    "rollout.num_threads=1",
    "rollout.kv_cache_gib=0.25",
    "learner.num_threads=1",
    "algorithm.learning_rate=1e-3",
)


class Run:
    """One run and its process, started as often as wanted with the same command."""

    def __init__(self, output_dir: Path, name: str, *overrides: str, cwd: Path = ROOT) -> None:
        self._cwd = cwd
        self.command = [
            *(sys.executable, "-P", "-m", "services.cli", "train"),
            *(f"output_dir={output_dir}", f"run_name={name}"),
            *QUICK,
            *overrides,
        ]
        self.folder = RunFolder(output_dir / name)
        self._screen = output_dir / f"{name}.out"
        self._family: list[psutil.Process] = []
        output_dir.mkdir(parents=True, exist_ok=True)

    def start(self) -> "Run":
        with self._screen.open("a") as screen:
            self.process = subprocess.Popen(
                self.command, cwd=self._cwd, stdout=screen, stderr=screen, start_new_session=True
            )
        return self

    def finish(self) -> int:
        """Wait for the end, as long as the logs grow; returns the exit code."""
        written, deadline = 0, time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            size = sum(path.stat().st_size for path in self.folder.jsonl_files() if path.exists())
            if size != written:
                written, deadline = size, time.monotonic() + PATIENCE_S
            assert time.monotonic() < deadline, f"wrote no log for {PATIENCE_S:.0f} s:\n{self.output}"
            time.sleep(0.1)
        return self.process.returncode

    def signal(self, number: int, *, to_all: bool = False) -> None:
        """Signal the driver, or all of its process group as a terminal's Ctrl-C does."""
        self._family = self.children()
        (os.killpg if to_all else os.kill)(self.process.pid, number)

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def left_over(self) -> list[psutil.Process]:
        """Return the driver's processes that still run 90 s after its end.

        Ray's agents try for 60 s to tell a head service that died with the raylet.
        """
        return psutil.wait_procs(self._family, timeout=90)[1]

    def wait_for(self, what: str, condition: Callable[[], Any]) -> Any:
        """Look until the condition gives something."""
        deadline = time.monotonic() + PATIENCE_S
        while not (outcome := condition()):
            assert self.process.poll() is None, f"ended before {what}:\n{self.output}"
            assert time.monotonic() < deadline, f"waited {PATIENCE_S:.0f} s for {what}:\n{self.output}"
            time.sleep(0.02)
        return outcome

    def wait_for_iteration(self, number: int) -> None:
        self.wait_for(f"iteration {number}", lambda: len(self.folder.rollout_info()) >= number)

    def end(self) -> None:
        """Whatever happened, leave nothing running."""
        if self.process.poll() is None:
            self._family = self.children()
            self.process.kill()
            self.process.wait()
        for process in self._family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    @property
    def output(self) -> str:
        return self._screen.read_text()


def results(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Lines of an info file without what depends on the clock."""
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "throughput/"))} for row in rows]
