"""One program's start and reward: each fault is an error of its episode, and leaves no trace."""

import signal
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from contracts.errors import EpisodeError
from contracts.rollout import Lease, Prompt, Sampling
from rollout_workers.programs import process
from rollout_workers.programs.process import ProgramProcess
from rollout_workers.programs.reward import MOST_REWARD_BYTES, Reward, read_reward

LEASE = Lease(1, Prompt("p", "x"), (1,), 1, 1, Sampling(max_tokens=1))


@pytest.mark.parametrize("word", ["x" * 2**17, "a\0b", "\ud83d"])
def test_a_program_that_can_not_start_leaves_no_folder(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(EpisodeError, match=r"can't be started .* below 128 KiB"):
        ProgramProcess(["echo", word], LEASE, "http://127.0.0.1:1/v1", "k")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        *(b"NaN", b"Infinity", b"1e999", b"1" + b"0" * 400, b"[" * 60_000, b"true", b"", b"{}", b"\xff"),
        *(b'{"reward": 1, "steps": NaN}', b'{"steps": 1}', b'{"reward": {}}', b'{"reward": {"policy": "1"}}'),
    ],
)
def test_what_is_no_reward_is_the_episodes_failure(content: bytes) -> None:
    with pytest.raises(EpisodeError, match="expected a number such as"):
        read_reward(content)


def test_roles_have_rewards_and_further_numbers() -> None:
    content = b'{"reward": {"policy/pro": 1, "policy": -1}, "rounds": 3}'
    info = {"rounds": 3.0, "reward_pro": 1.0, "reward_policy": -1.0}
    assert read_reward(content) == Reward(0.0, info, {"policy/pro": 1.0, "policy": -1.0})


def test_a_long_reward_file_is_told() -> None:
    assert read_reward(b" " * (MOST_REWARD_BYTES - 1) + b"1").value == 1
    with pytest.raises(EpisodeError, match="more than 65536 bytes"):
        read_reward(b" " * MOST_REWARD_BYTES + b"1")


def test_a_keeper_that_hangs_is_ended_with_all_that_it_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(process, "KEEPER_S", 1.0)
    tree = f"setsid sleep 3600 & echo > {tmp_path}/up; wait"
    program = ProgramProcess(["sh", "-c", tree], LEASE, "http://127.0.0.1:1/v1", "k")
    while not (tmp_path / "up").exists():
        time.sleep(0.01)
    kept = psutil.Process(program._keeper.pid).children(recursive=True)
    assert len(kept) >= 2
    program._keeper.send_signal(signal.SIGSTOP)
    program.close()
    assert psutil.wait_procs(kept, timeout=10)[1] == []
    assert [path.name for path in tmp_path.iterdir()] == ["up"]
