"""Leases played by programs, in a worker with a real engine: misbehaviour costs one episode alone."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import EpisodeError
from contracts.rollout import FinishReason, Lease, Prompt, Rollout, Sampling
from rollout_workers.environments.program import Program
from rollout_workers.programs.process import KEEPER
from rollout_workers.settings import RolloutSettings
from rollout_workers.worker import RolloutWorker
from tests.chat_templates import TEMPLATES, make_chat_model
from tests.until import until

AGENT = Path(__file__).with_name("agents.py")
PATIENCE_S = 120.0
STOCK_AGENT = """
import json, os
from openai import OpenAI

client = OpenAI()
talk = [{"role": "user", "content": json.load(open(os.environ["WHETSTONE_PROMPT_FILE"]))["text"]}]
for _ in range(2):
    answer = client.chat.completions.create(model="gpt-4o", messages=talk)
    talk += [answer.choices[0].message, {"role": "user", "content": "Sure?"}]
open(os.environ["WHETSTONE_REWARD_FILE"], "w").write("1")
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_chat_model(tmp_path_factory.mktemp("model"), TEMPLATES["default_system"]))


@pytest.fixture
def make(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make a worker whose programs' folders lie in `tmp_path`; afterwards nothing may be left there."""
    folders = tmp_path / "folders"
    folders.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folders))
    made: list[RolloutWorker] = []

    def start(**options: Any) -> RolloutWorker:
        options_of_program = {"command": f"{sys.executable} {AGENT} {{prompt}}", "num_parallel": 8, **options}
        settings = RolloutSettings(max_tokens=6, max_concurrent=64, dtype="float32")
        made.append(
            RolloutWorker(
                model, model, None, "transformers", settings, environment=Program(**options_of_program)
            )
        )
        made[-1].ready()
        return made[-1]

    yield start
    for worker in made:
        worker.close()
    assert list(folders.iterdir()) == []


def leases(*texts: str) -> list[Lease]:
    return [
        Lease(number, Prompt(f"p/{number}", text), (1,), number, number, Sampling(max_tokens=6))
        for number, text in enumerate(texts)
    ]


def play(worker: RolloutWorker, leases: list[Lease]) -> list[Rollout]:
    worker.submit(leases)
    rollouts: list[Rollout] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(rollouts) < len(leases) and time.monotonic() < deadline:
        rollouts += worker.poll(1.0).rollouts
    assert sorted(rollout.lease_id for rollout in rollouts) == sorted(lease.id for lease in leases)
    return sorted(rollouts, key=lambda rollout: rollout.lease_id)


def test_an_unmodified_program_with_the_stock_client_is_an_environment(make: Any, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(STOCK_AGENT)
    (made,) = play(make(command=f"{sys.executable} {tmp_path / 'agent.py'}"), leases("What is 3 + 4?"))
    assert made.error is None and made.finish_reason is FinishReason.STOP
    assert [turn.observation_text for turn in made.turns] == ["What is 3 + 4?", "Sure?"]
    assert [turn.reward for turn in made.turns] == [0, 1]
    assert made.info == {"calls": 2, "sequences": 1, "refused": 0}


def test_programs_that_misbehave_cost_their_episodes_alone(make: Any) -> None:
    worker = make(max_attempts=1, step_timeout_s=8.0)
    moods = ("good", "dies", "hangs", "floods", "silent", "odd", "good")
    rollouts = play(worker, leases(*moods))
    errors = {mood: made.error for mood, made in zip(moods, rollouts, strict=True)}
    failed = [
        mood for mood, made in zip(moods, rollouts, strict=True) if made.finish_reason is FinishReason.FAILED
    ]
    assert failed == ["dies", "hangs", "silent", "odd"]
    assert rollouts[0].total_reward == rollouts[-1].total_reward == 0.5
    assert rollouts[0].info == {"calls": 2, "sequences": 1, "refused": 0, "tools": 2}
    assert "RuntimeError: the tool broke" in str(errors["dies"])
    assert "made no call for 8 s" in str(errors["hangs"])
    flooded = rollouts[
        moods.index("floods")
    ]  # beyond its budget, so cut: another attempt would draw the same
    assert flooded.finish_reason is FinishReason.CUT and flooded.info["fault"] == 1
    assert "without an answer from the model" in str(errors["silent"])
    assert "much" in str(errors["odd"]) and "expected a number" in str(errors["odd"])
    assert all(isinstance(errors[mood], EpisodeError) for mood in failed)
    assert worker.poll(0.0).num_restarts == 5
    assert play(worker, leases("good"))[0].error is None  # and the worker goes on


def test_a_program_whose_calls_were_refused_is_said_to_have_called(make: Any, tmp_path: Path) -> None:
    (tmp_path / "deaf.py").write_text(
        "import openai\ntry:\n    openai.OpenAI().completions.create(model='any', prompt='a', n=50)\n"
        "except openai.APIError:\n    pass\n"
    )
    (made,) = play(make(command=f"{sys.executable} {tmp_path / 'deaf.py'}", max_attempts=1), leases("Hi"))
    assert str(made.error) == (
        "the program ended without an answer from the model; its refused calls: 1, the last one: n=50: "
        "expected at most 20, which environment.max_turns allows"
    )


def test_a_program_that_fails_is_tried_again(make: Any, tmp_path: Path) -> None:
    worker = make(step_timeout_s=8.0)
    queue = leases(*(f"once {tmp_path / mood} {mood}" for mood in ("dies", "hangs", "odd")))
    for made in play(worker, queue):
        assert made.error is None and made.total_reward == 0.5
        assert made.info["calls"] == 2  # those of the failed attempt are not among them


def test_a_fault_may_have_a_reward_of_its_own(make: Any) -> None:
    dead, silent = play(make(fault_reward=-1.0, max_attempts=1), leases("dies", "silent"))
    assert dead.error is None and dead.total_reward == -1 and dead.info["fault"] == 1
    assert silent.finish_reason is FinishReason.FAILED  # nothing was drawn, so nothing can be trained on


def test_an_episode_that_wants_more_than_its_budget_is_cut(make: Any) -> None:
    """The program does not expect a refusal, and ends with exit code 1."""
    worker = make(max_turns=1)
    (made,) = play(worker, leases("good"))
    assert made.error is None and made.finish_reason is FinishReason.CUT and len(made.turns) == 1
    assert made.total_reward == 0.0 and made.info["fault"] == 1
    assert worker.poll(0.0).num_restarts == 1  # another attempt would draw the same


def test_a_reward_file_is_expected_unless_a_reward_judges(make: Any, tmp_path: Path) -> None:
    script = tmp_path / "quiet.py"
    script.write_text(STOCK_AGENT.replace('open(os.environ["WHETSTONE_REWARD_FILE"], "w").write("1")', ""))
    (made,) = play(make(command=f"{sys.executable} {script}"), leases("Hi"))
    assert isinstance(made.error, EpisodeError) and "reward_file=false" in str(made.error)
    assert Program(command="x").rewards_itself
    assert not Program(command="x", reward_file=False).rewards_itself  # so that the run needs reward=
    (made,) = play(make(command=f"{sys.executable} {script}", reward_file=False), leases("Hi"))
    assert made.error is None and made.total_reward == 0


def test_a_pipe_between_programs_ends_as_a_shells_does(tmp_path: Path) -> None:
    words = [sys.executable, "-I", "-S", str(KEEPER), str(tmp_path / "gone"), "sh", "-c", "yes | head -1"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:
        assert keeper.stdout is not None
        assert json.loads(keeper.stdout.readline()) == {"code": 0, "output": "y\n"}
        keeper.communicate()


def test_what_a_program_leaves_behind_ends_with_it(make: Any, tmp_path: Path) -> None:
    (made,) = play(make(), leases(f"leaves {tmp_path / 'pid'}"))
    assert made.error is None
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_leases_that_are_given_up_end_their_programs_and_may_come_again(make: Any) -> None:
    others = children()  # servers of processes that earlier tests of this process have started
    worker = make(num_parallel=2)
    queue = leases("hangs", "hangs", "hangs", "good")
    worker.submit(queue)
    until(lambda: worker.poll(0.1).num_generated > 0)
    programs = children() - others
    assert programs
    worker.cancel_all()
    until(lambda: not children() & programs)
    assert play(worker, queue[3:])[0].total_reward == 0.5
    assert worker.poll(0.0).num_active == 0


@pytest.mark.slow
def test_64_programs_at_once(make: Any) -> None:
    rollouts = play(make(num_parallel=64), leases(*["good"] * 64))
    assert all(made.total_reward == 0.5 for made in rollouts)


def test_a_killed_worker_takes_its_programs_along(model: str, tmp_path: Path) -> None:
    """Its process is killed with SIGKILL, so that nothing of it can see to an end."""
    folders = tmp_path / "folders"
    folders.mkdir()
    script = tmp_path / "worker.py"
    script.write_text(
        "import sys, time\n"
        "from contracts.rollout import Lease, Prompt, Sampling\n"
        "from rollout_workers.programs.process import ProgramProcess\n"
        "lease = Lease(1, Prompt('p', 'x'), (1,), 1, 1, Sampling(max_tokens=1))\n"
        f"tree = 'setsid sleep 3600 & sleep 3600 & echo $! > {tmp_path}/pid; wait'\n"
        "program = ProgramProcess(['sh', '-c', tree], lease, 'http://127.0.0.1:1/v1', 'k')\n"
        "print('up', flush=True)\n"
        "time.sleep(3600)\n"
    )
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folders)}
    worker = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, env=variables)
    assert worker.stdout is not None and worker.stdout.readline() == b"up\n"
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    (folder,) = folders.iterdir()
    keepers = {pid for pid in processes() if str(folder) in command(pid)}
    pids = descendants(keepers) | keepers
    assert len(pids) >= 4 and int((tmp_path / "pid").read_text()) in pids
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    until(lambda: not any(map(is_alive, pids)))
    assert list(folders.iterdir()) == []


def processes() -> set[int]:
    return {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def descendants(pids: set[int]) -> set[int]:
    below: set[int] = set()
    for pid in pids:
        try:
            children = set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
        except OSError:
            continue
        below |= children | descendants(children)
    return below


def children() -> set[int]:
    """The processes that this one's threads have started."""
    children = {
        int(pid) for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()
    }
    return children | descendants(children)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
