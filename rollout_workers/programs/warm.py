"""A parent that loads a script once and forks for each lease: an episode starts in milliseconds.

    worker ─ socket ─▶ fork: keeper ─▶ fork: episode ─▶ its children        one pair for each lease
                 └ warm parent, which plays nothing itself

Run as `python warm.py SOCKET SCRIPT ARGUMENT` by any Python. This file needs only the standard library; the
script may need more. The script's `prepare(ARGUMENT)` returns a function that plays one episode. Each
connection begins with a line of JSON, the lease's folder and variables; then it is the pipe of the lease's
keeper. The parent never runs an episode, so no episode can harm the next one, and memory does not grow.
"""

import contextlib
import gc
import importlib.util
import json
import os
import select
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BACKLOG = 4096
REAP_S = 1.0


def main(address: str, script: str, argument: str) -> None:
    """Serve until the parent's keeper ends it."""
    keep = loaded(str(Path(__file__).with_name("keeper.py"))).keep
    play = loaded(script).prepare(argument)
    sys.stdout.flush()  # otherwise each fork prints it again
    gc.collect()
    gc.freeze()  # collections in a fork then leave shared memory untouched
    with socket.socket(socket.AF_UNIX) as door:
        with near(address) as name:
            door.bind(name)
        door.listen(BACKLOG)
        while True:
            if select.select([door], [], [], REAP_S)[0]:
                line, _ = door.accept()
                with line:
                    if os.fork() == 0:
                        door.close()
                        serve(line, play, keep)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def loaded(script: str) -> Any:
    """Return a file's module."""
    specification = importlib.util.spec_from_file_location(f"whetstone_{Path(script).stem}", script)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@contextlib.contextmanager
def near(address: str) -> Iterator[str]:
    """Name a socket by its open folder, because a socket's name has at most 107 bytes."""
    folder = os.open(Path(address).parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{Path(address).name}"
    finally:
        os.close(folder)


def serve(line: socket.socket, play: Callable[[], None], keep: Callable[..., None]) -> None:
    """Act as the keeper of one episode."""
    code = 1
    try:
        os.setsid()
        for number in (0, 1):
            os.dup2(line.fileno(), number)
        line.close()
        order = json.loads(first_line())
        keep(order["folder"], lambda: become(play, order["variables"]))
        code = 0
    finally:
        os._exit(code)


def first_line() -> bytes:
    read = b""
    while not read.endswith(b"\n"):
        piece = os.read(0, 2**16)
        if not piece:
            raise EOFError("the worker has gone")
        read += piece
    return read


def become(play: Callable[[], None], variables: dict[str, str]) -> None:
    """Play one episode like a fresh Python, with separate variables, folder and random numbers."""
    code = 1
    try:
        os.environ.update(variables)
        tempfile.tempdir = None  # read anew
        for library, seed in (("numpy.random", "seed"), ("torch", "seed")):  # Python reseeds its `random`
            if library in sys.modules:
                getattr(sys.modules[library], seed)()
        play()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
