"""The worker's end of a warm parent: started when a lease first needs it, and again after it dies.

Each lease has a socket to its keeper, a fork of the warm parent (`warm.py`).
"""

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from contracts.errors import EpisodeError
from contracts.rollout import Lease
from rollout_workers.programs.process import KEEPER_S, ProgramProcess, keeper_of, variables
from rollout_workers.programs.warm import near

SCRIPT = Path(__file__).with_name("warm.py")
LOOK_S = 0.02
CONNECT_S = 10.0
NOWHERE = ("http://127.0.0.1:1/v1", "none")  # address and key of the parent, which calls no model


class WarmParent:
    """Parent of one worker's programs; any of the worker's threads may request a fork.

    Args:
        words: a Python, a script that `warm.py` loads, and an argument for its `prepare`.
        start_timeout_s: until the script has loaded.
    """

    def __init__(self, words: Sequence[str], start_timeout_s: float) -> None:
        self._words, self._start_timeout_s = words, start_timeout_s
        self._lock = threading.Lock()
        self._starting: Future[_Server] | None = None  # all waiting threads share the result
        self._is_closed = False

    def line(self) -> socket.socket:
        """Return a connection to a new fork.

        Raises:
            EpisodeError: the parent can't be started.
        """
        while True:
            with self._lock:
                starting, is_first = self._starting or Future(), self._starting is None
                self._starting = starting
            if is_first:
                self._start(starting)
            server = starting.result()
            try:
                return server.connect()
            except OSError:  # the parent has died
                self._forget(starting)
                server.close()

    def close(self) -> None:
        """End the parent and all its forks."""
        self._is_closed = True
        self.end_all()

    def end_all(self) -> None:
        """End all forks; the next lease starts another parent."""
        with self._lock:
            starting, self._starting = self._starting, None
        if starting is not None and starting.done() and starting.exception() is None:
            starting.result().close()

    def _start(self, starting: "Future[_Server]") -> None:
        server = _Server(self._words)
        try:
            self._wait_for(server)
        except BaseException as error:
            server.close()
            self._forget(starting)  # the next attempt starts another one
            starting.set_exception(error)
        else:
            starting.set_result(server)

    def _wait_for(self, server: "_Server") -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while not server.answers():
            if self._is_closed:
                raise EpisodeError("the worker ends")
            if time.monotonic() > deadline:
                raise EpisodeError(
                    f"the environment did not load in {self._start_timeout_s:g} s; "
                    "raise environment.start_timeout_s"
                )

    def _forget(self, starting: "Future[_Server]") -> None:
        with self._lock:
            if self._starting is starting:
                self._starting = None


class _Server:
    """Process of the warm parent, under a keeper, with a folder for its socket."""

    def __init__(self, words: Sequence[str]) -> None:
        python, *rest = words
        self.folder = Path(tempfile.mkdtemp(prefix="whetstone-warm-"))
        self._address = str(self.folder / "door")
        places = {"TMPDIR": str(self.folder)}
        self._keeper = keeper_of(
            self.folder,
            [python, str(SCRIPT), self._address, *rest],
            variables(os.environ, *NOWHERE) | places,
        )

    def connect(self) -> socket.socket:
        line = socket.socket(socket.AF_UNIX)
        try:
            line.settimeout(CONNECT_S)
            with near(self._address) as name:
                line.connect(name)
            line.settimeout(None)
        except OSError:
            line.close()
            raise
        return line

    def answers(self) -> bool:
        """Check for a moment whether it takes connections.

        Raises:
            EpisodeError: the parent has ended.
        """
        assert self._keeper.stdout is not None
        if select.select([self._keeper.stdout], [], [], LOOK_S)[0]:
            ended = json.loads(self._keeper.stdout.readline() or '{"code": -9, "output": ""}')
            output = str(ended["output"]).strip()[-500:] or "it said nothing"
            raise EpisodeError(f"the environment did not load, exit code {ended['code']}: {output}")
        with contextlib.suppress(OSError):
            self.connect().close()
            return True
        return False

    def close(self) -> None:
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        with contextlib.suppress(OSError):
            self._keeper.stdin.close()
        try:
            self._keeper.wait(KEEPER_S)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._keeper.stdout.close()


class ForkedProgram(ProgramProcess):
    """One lease's program as a fork of a warm parent."""

    def __init__(self, parent: WarmParent, lease: Lease, address: str, key: str) -> None:
        self._parent = parent
        super().__init__([], lease, address, key)

    def _launch(self, words: Sequence[str], environment: dict[str, str]) -> None:
        del words
        self._line = self._parent.line()
        # The parent has the others, and what its script made of them, such as PYTHONPATH.
        others = variables(os.environ, *NOWHERE)
        of_lease = {name: text for name, text in environment.items() if others.get(name) != text}
        order = {"folder": str(self._folder), "variables": of_lease}
        try:
            self._line.sendall(json.dumps(order).encode() + b"\n")
        except OSError as error:
            self._line.close()
            raise EpisodeError(f"the environment's process died: {error}") from None

    def _last_line(self) -> bytes:
        read = b""
        with contextlib.suppress(OSError):
            while not read.endswith(b"\n") and (piece := self._line.recv(2**16)):
                read += piece
        return read if read.endswith(b"\n") else b""

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Wait until the fork's keeper has gone; if the keeper hangs, end all forks."""
        self.end()
        deadline, gone = time.monotonic() + KEEPER_S, select.poll()
        gone.register(self._line, select.POLLIN | select.POLLHUP)
        with contextlib.suppress(OSError):
            while (left_s := deadline - time.monotonic()) > 0:
                if gone.poll(left_s * 1000) and not self._line.recv(2**16):
                    break
            else:
                self._parent.end_all()
        self._line.close()
        shutil.rmtree(self._folder, ignore_errors=True)
