"""`whetstone annotate` over a cluster, killed with -9: no row is scored twice but those under way."""

import contextlib
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from reward_servers.user_rewards.trial import TEXTS
from services.commands.annotate import run
from tests.runs import PATIENCE_S

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(600)]

HERE = "tests.services.annotated_rows"
ROOT = Path(__file__).parents[4]
ROWS, PART, IN_FLIGHT = 2000, 32, 4
# Results wait for a process that does not take them: lost with it, if nobody else keeps them.
DEAF = """
import time
from services.commands.annotate import run
from services.runs.tracking.progress import Progress

Progress.advance = lambda *_: time.sleep(3600)
run({arguments!r})
"""


def arguments(folder: Path, *more: str) -> list[str]:
    rewards = [f"{{name: '{HERE}:Ledger', label: {label}, file: '{folder / label}'}}" for label in "ab"]
    return [
        f"task={{name: '{HERE}:Pairs', num: {ROWS // 2}}}",
        f"reward=[{', '.join(rewards)}]",
        f"output={folder / 'out'}",
        f"rows_per_part={PART}",
        f"num_in_flight={IN_FLIGHT}",
        *more,
    ]


def scored(folder: Path, label: str) -> Counter[str]:
    """How often each response was scored; the texts on which a reward is tried before the start are none."""
    file = folder / label
    lines = file.read_text().splitlines() if file.exists() else []
    return Counter(line for line in lines if not line.endswith(TEXTS))


def kill_when_half_is_scored(folder: Path) -> None:
    """The process that gives out the parts; its cluster ends with it."""
    code = DEAF.format(arguments=arguments(folder))
    with (folder / "said").open("w") as log:
        process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=log, stderr=log)
    family: list[psutil.Process] = []
    try:
        deadline = time.monotonic() + PATIENCE_S
        while min(scored(folder, label).total() for label in "ab") < ROWS // 2:
            assert process.poll() is None and time.monotonic() < deadline, (folder / "said").read_text()
            time.sleep(0.2)
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
        psutil.wait_procs(family, timeout=60)
    finally:
        for left in (process, *family):
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()


def test_a_killed_cluster_has_kept_what_it_scored(tmp_path: Path) -> None:
    kill_when_half_is_scored(tmp_path)
    before = {label: scored(tmp_path, label) for label in "ab"}
    kept = len(list((tmp_path / "out" / "rewards").glob("part-*.parquet"))) * PART
    assert all(set(counts.values()) == {1} for counts in before.values())

    run(arguments(tmp_path, "executor=here"))

    for label in "ab":
        counts = scored(tmp_path, label)
        twice = sum(times - 1 for times in counts.values())
        assert len(counts) == ROWS - 2 and twice == before[label].total() - kept <= IN_FLIGHT * PART
    whole = tmp_path / "whole"
    whole.mkdir()
    run(arguments(whole, "executor=here"))
    left, right = ((folder / "out" / "annotated.parquet").read_bytes() for folder in (tmp_path, whole))
    assert left == right
