"""Start one program for one lease, wait for its end, and read its reward."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import psutil

from contracts.errors import EpisodeError
from contracts.network.access import TOKEN, TOKEN_FILE
from contracts.processes.gpus import hidden_unless
from contracts.processes.working_folder import working_folder
from contracts.rollout import Lease
from rollout_workers.programs.reward import MOST_REWARD_BYTES, REWARD_FILE, Reward, read_reward

KEEPER = Path(__file__).with_name("keeper.py")
KEEPER_S = 10.0  # seconds for a keeper to end a program; the program gets one of them
PROMPT_FILE = "WHETSTONE_PROMPT_FILE"
OURS = ("RAY_", "VLLM_", "MLFLOW_TRACKING_")  # prefixes of variables that programs must not see
TOKENS = (TOKEN, TOKEN_FILE, "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


class ProgramProcess:
    """Process of one program with a separate folder; `close` removes both.

    Args:
        address: the base URL of the gateway.
        key: the lease's key.

    Raises:
        EpisodeError: the program can't be started with these words; nothing of it remains.
    """

    def __init__(self, words: Sequence[str], lease: Lease, address: str, key: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="whetstone-program-"))
        try:
            self._start(words, lease, address, key)
        except BaseException as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            if isinstance(error, OSError | ValueError):  # a word is too long or has forbidden characters
                raise EpisodeError(
                    f"the program can't be started ({error}); expected words without NUL or half a surrogate "
                    f"pair, each below 128 KiB; the file of {PROMPT_FILE} takes any prompt"
                ) from None
            raise

    def _start(self, words: Sequence[str], lease: Lease, address: str, key: str) -> None:
        self._reward_file = self._folder / "reward.json"
        prompt_file = self._folder / "prompt.json"
        prompt_file.write_text(json.dumps({**asdict(lease.prompt), "seed": lease.seed}, default=str))
        places = {
            "TMPDIR": str(self._folder),
            PROMPT_FILE: str(prompt_file),
            REWARD_FILE: str(self._reward_file),
        }
        self._launch(words, variables(os.environ, address, key) | places)

    def _launch(self, words: Sequence[str], environment: dict[str, str]) -> None:
        self._keeper = keeper_of(self._folder, words, environment)

    def _last_line(self) -> bytes:
        assert self._keeper.stdout is not None
        return self._keeper.stdout.readline()

    def wait(self) -> None:
        """Wait until the program ends by itself or by `end`.

        Raises:
            EpisodeError: the program failed; the message has its last output.
        """
        line = self._last_line()
        ended = json.loads(line) if line else {"code": -9, "output": "it was ended"}
        if ended["code"]:
            output = str(ended["output"]).strip()[-500:]
            raise EpisodeError(
                f"the program ended with exit code {ended['code']}: {output or 'it said nothing'}"
            )

    def reward(self) -> Reward | None:
        """Return the reward that the program has written; None without a file.

        Raises:
            EpisodeError: the file has other content.
        """
        try:
            with self._reward_file.open("rb") as file:
                content = file.read(MOST_REWARD_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise EpisodeError(f"the file of {REWARD_FILE} can't be read: {error.strerror}") from None
        return read_reward(content)

    def end(self) -> None:
        """End the program and its processes, so that `wait` returns. Any thread may call this."""
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError):
            self._keeper.stdin.close()

    def close(self) -> None:
        """Wait until no process of the program remains.

        If its keeper hangs, kill the keeper and its child processes, and remove the folder.
        """
        self.end()
        try:
            self._keeper.wait(KEEPER_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(psutil.Error):
                for process in psutil.Process(self._keeper.pid).children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        process.kill()
            self._keeper.kill()
            self._keeper.wait()
            shutil.rmtree(self._folder, ignore_errors=True)
        assert self._keeper.stdout is not None
        self._keeper.stdout.close()


def keeper_of(
    folder: Path, words: Sequence[str], environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Start a program under a keeper, in the folder in which Whetstone was started."""
    started_in = working_folder()
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(KEEPER), str(folder), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        cwd=started_in if started_in and Path(started_in).is_dir() else None,
        start_new_session=True,
    )


def variables(environment: Mapping[str, str], address: str, key: str) -> dict[str, str]:
    """Return a program's environment variables: the worker's without the run's secrets, and the address.

    >>> found = variables({"HOME": "/home/ada", "HF_TOKEN": "…"}, "http://127.0.0.1:4711/v1", "k")
    >>> found["HOME"], found["OPENAI_BASE_URL"], "HF_TOKEN" in found
    ('/home/ada', 'http://127.0.0.1:4711/v1', False)
    """
    kept = {
        name: value for name, value in environment.items() if not name.startswith(OURS) and name not in TOKENS
    }
    direct = ",".join(filter(None, (kept.get("no_proxy") or kept.get("NO_PROXY"), "127.0.0.1,localhost")))
    return {
        **kept,
        **hidden_unless(0),
        "OMP_NUM_THREADS": "1",
        "no_proxy": direct,
        "NO_PROXY": direct,
        "OPENAI_BASE_URL": address,
        "OPENAI_API_KEY": key,
    }
