"""Runs in a script's own process: a replica dies, Ctrl-C, a changed function, coroutines, causes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.runs.folder import RunFolder
from tests.models import make_tiny_model

SCRIPT = """
import os, signal, sys, threading, time
from pathlib import Path
import whetstone

LEAN = dict(
    model__path="model", task="increasing_numbers", task__num_prompts=64, task__num_eval_prompts=4,
    rollout__engine="transformers", rollout__prompts_per_iteration=8, rollout__max_tokens=8, metrics=[],
    evaluate_every=0, tracking__enabled=False, algorithm="grpo", rollout__group_size=2, save_every=1,
)
DIES = Path("died")

def dies_once(weight):
    def score(samples):
        if len(samples) > 2 and not DIES.exists():
            DIES.touch()
            os._exit(1)
        return [weight for _ in samples]
    return score

run = whetstone.train(reward=dies_once(3.0), run_name="dies", iterations=2, **LEAN)
assert DIES.exists() and list(run.metrics["reward/mean"]) == [3.0, 3.0]

async def later(completions):
    return [float(len(text)) for text in completions]

class Grader:
    def __init__(self, scale): self.scale = scale
    def grade(self, samples): return [self.scale for _ in samples]

def train(iterations=1000):
    return whetstone.train(
        reward={later: 0.0, Grader(5.0).grade: 2.0}, run_name="stopped", iterations=iterations, **LEAN
    )

def interrupt():
    while not list(Path("runs/stopped/checkpoints").glob("[0-9]*")):
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    train()
    sys.exit("it was not interrupted")
except KeyboardInterrupt:
    pass
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
saved = max(int(path.name) for path in Path("runs/stopped/checkpoints").glob("[0-9]*"))
run = train(saved + 1)
assert list(run.metrics["reward/mean"]) == [10.0] * (saved + 1), run.metrics["reward/mean"]

async def later(completions):
    return [0.0 for text in completions]

try:
    train(saved + 2)
except whetstone.InputError as error:
    print("changed:", error)

def divides(samples):
    return [1 / len(sample.text[:0]) for sample in samples]

try:
    whetstone.train(reward=divides, run_name="divides", iterations=1, **LEAN)
except whetstone.InputError as error:
    print("cause:", error.__cause__)
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("here")
    make_tiny_model(folder / "model")
    (folder / "job.py").write_text(SCRIPT)
    ran = subprocess.run([sys.executable, "job.py"], cwd=folder, capture_output=True, text=True, timeout=1500)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "another process" not in ran.stderr
    return folder, ran.stdout


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(1600)
def test_a_script_trains_in_its_own_process_and_goes_on(done: tuple[Path, str]) -> None:
    folder, printed = done
    (changed,) = [line for line in printed.splitlines() if line.startswith("changed:")]
    assert "holds a run with another configuration" in changed
    assert "reward: later, its code or a value that it uses, has changed" in printed
    assert "in divides" in printed and "ZeroDivisionError" in printed.partition("cause:")[2]
    first = json.loads((folder / "runs/dies/rollout_info.jsonl").read_text().splitlines()[0])
    assert first["reward/score/mean"] == 3.0


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(1600)
def test_the_command_line_says_that_the_reward_was_an_object(done: tuple[Path, str]) -> None:
    folder, _ = done
    source = (folder / "runs/dies/functions").glob("score@*.py")
    assert "os._exit(1)" in next(source).read_text()
    config: dict[str, Any] = RunFolder(folder / "runs/dies").config()
    assert config["reward"][0]["name"].startswith("object:score@")
    command = [sys.executable, "-P", "-m", "whetstone", "evaluate", "runs/dies"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 2 and "no command can find again" in ran.stderr
