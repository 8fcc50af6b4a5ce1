"""Episodes as forks of a warm parent: each alone in what it does, says, breaks and leaves."""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from contracts.errors import EpisodeError
from contracts.rollout import Lease, Prompt, Sampling
from rollout_workers.programs.reward import Reward
from rollout_workers.programs.warm_parent import ForkedProgram, WarmParent

SCRIPT = """
import json, os, random, subprocess, sys, tempfile, time

def prepare(argument):
    with open(argument, "a") as file:
        file.write("loaded\\n")
    if os.path.exists(argument + ".broken"):
        raise RuntimeError("no data")
    time.sleep(0.5)
    print("said while it loads", flush=True)
    os.environ["PYTHONPATH"] = "prepared:" + os.environ["PYTHONPATH"]
    kept = []
    return lambda: play(kept)

def play(kept):
    mood = json.load(open(os.environ["WHETSTONE_PROMPT_FILE"]))["text"]
    kept.append(mood)
    if mood == "hangs":
        time.sleep(3600)
    if mood == "leaves":
        subprocess.Popen(["sleep", "3600"], start_new_session=True)
    if mood == "dies":
        raise RuntimeError("the tool broke")
    if mood == "exits":
        sys.exit("no such task")
    if mood == "crashes":
        os.abort()
    told = {"reward": random.random(), "kept": len(kept), "process": os.getpid()}
    assert os.environ["PYTHONPATH"] == "prepared:of-the-user" and os.environ["OPENAI_API_KEY"] == "k"
    assert os.path.dirname(os.environ["WHETSTONE_REWARD_FILE"]) == tempfile.gettempdir()
    open(os.environ["WHETSTONE_REWARD_FILE"], "w").write(json.dumps(told))
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WarmParent]:
    """Make a parent whose folders lie in `tmp_path`; afterwards nothing may be left there, or run."""
    folders = tmp_path / ("long" * 40) / "folders"  # longer than a socket's name may be
    folders.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(folders))
    monkeypatch.setenv("PYTHONPATH", "of-the-user")
    monkeypatch.setenv("OPENAI_API_KEY", "the-users")
    (tmp_path / "script.py").write_text(SCRIPT)
    made = WarmParent([sys.executable, str(tmp_path / "script.py"), str(tmp_path / "log")], 30.0)
    before = set(psutil.Process().children(recursive=True))
    yield made
    made.close()
    assert list(folders.iterdir()) == []
    assert set(psutil.Process().children(recursive=True)) <= before


def started(parent: WarmParent, mood: str) -> ForkedProgram:
    lease = Lease(1, Prompt("p", mood), (1,), 1, 1, Sampling(max_tokens=1))
    return ForkedProgram(parent, lease, "http://127.0.0.1:1/v1", "k")


def played(parent: WarmParent, mood: str = "good") -> Reward:
    program = started(parent, mood)
    try:
        program.wait()
        reward = program.reward()
        assert reward is not None
        return reward
    finally:
        program.close()


def server(parent: WarmParent) -> psutil.Process:
    assert parent._starting is not None
    return psutil.Process(parent._starting.result()._keeper.pid).children()[0]


def test_episodes_share_one_load_and_nothing_else(parent: WarmParent, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        rewards = list(threads.map(lambda _: played(parent), range(16)))
    assert (tmp_path / "log").read_text() == "loaded\n"
    assert {reward.info["kept"] for reward in rewards} == {1.0}
    assert len({reward.info["process"] for reward in rewards}) == 16
    assert len({reward.value for reward in rewards}) == 16  # chance is not the parent's


def test_an_episode_fails_alone(parent: WarmParent) -> None:
    hanging = started(parent, "hangs")
    with pytest.raises(EpisodeError, match=r"exit code 1: Traceback[\s\S]*RuntimeError: the tool broke"):
        played(parent, "dies")
    with pytest.raises(EpisodeError, match="exit code 1: no such task"):
        played(parent, "exits")
    with pytest.raises(EpisodeError, match="exit code -6: it said nothing"):
        played(parent, "crashes")
    one = server(parent)
    assert played(parent, "leaves").info["kept"] == 1
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(hanging.wait)
        hanging.end()  # as its deadline does
        assert isinstance(waiting.exception(10), EpisodeError)
    hanging.close()
    assert server(parent) == one and played(parent).info["kept"] == 1


def test_a_parent_that_dies_is_followed_by_another(parent: WarmParent, tmp_path: Path) -> None:
    hanging = started(parent, "hangs")
    server(parent).send_signal(signal.SIGKILL)
    with pytest.raises(EpisodeError, match="code -9"):
        hanging.wait()
    hanging.close()
    assert played(parent).info["kept"] == 1
    assert (tmp_path / "log").read_text() == "loaded\n" * 2


def test_a_script_that_does_not_load_says_why_and_is_tried_again(parent: WarmParent, tmp_path: Path) -> None:
    (tmp_path / "log.broken").touch()
    with pytest.raises(EpisodeError, match=r"did not load, exit code 1: [\s\S]*RuntimeError: no data"):
        played(parent)
    (tmp_path / "log.broken").unlink()
    assert played(parent).info["kept"] == 1


def test_a_script_that_hangs_as_it_loads_ends_in_time(parent: WarmParent) -> None:
    parent._start_timeout_s = 0.1
    with pytest.raises(EpisodeError, match=r"did not load in 0\.1 s; raise environment\.start_timeout_s"):
        played(parent)


def test_nothing_grows_over_many_episodes(parent: WarmParent) -> None:
    played(parent)
    one = server(parent)
    before = (one.memory_info().rss, one.num_fds(), len(os.listdir("/proc/self/fd")))
    for _ in range(50):
        played(parent)
    grown_bytes = one.memory_info().rss - before[0]
    assert grown_bytes < 2**20
    assert (one.num_fds(), len(os.listdir("/proc/self/fd"))) == before[1:]
    time.sleep(1.5)  # it looks for ended forks each second
    assert one.children() == []
