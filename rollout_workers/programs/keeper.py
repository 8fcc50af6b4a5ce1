"""The parent of one program: it ends all that the program started, even if the worker dies.

    worker ─ pipe ─▶ keeper ─▶ program ─▶ its children, and theirs

Run as `python -I -S keeper.py FOLDER WORD…`, with only the standard library, because a keeper starts for each
lease. When the pipe at its standard input ends, for example because the worker died, the keeper ends the
program and removes FOLDER. When the program ends by itself, the keeper ends its remaining processes and
writes one line to standard output: the exit code and the last output, as JSON. Orphans become the keeper's
children (PR_SET_CHILD_SUBREAPER), so no process escapes by a new session. `warm.py` also makes keepers: forks
of itself, whose program is a function.
"""

import ctypes
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_S = 1.0  # time between SIGTERM and SIGKILL
LAST = 4000  # bytes of output
NOT_FOUND = 127


def keep(folder: str, program_itself: Callable[[], None]) -> None:
    """Keep one program until the pipe at the standard input ends.

    Args:
        program_itself: runs in the new process; it never returns.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    output, inlet = os.pipe()
    program = os.fork()
    if program == 0:
        _become(inlet, libc)
        program_itself()
    os.close(inlet)
    last, is_asked = _wait(program, output)
    if is_asked:
        os.kill(program, signal.SIGTERM)
        _until_gone(program, time.monotonic() + GRACE_S)
    code = _sweep(program)
    if not is_asked:
        last = (last + _rest(output))[-LAST:]
        ending = json.dumps({"code": code, "output": last.decode(errors="replace")})
        try:
            os.write(1, ending.encode() + b"\n")
            os.read(0, 1)  # the worker reads the folder's files
        except OSError:
            pass
    shutil.rmtree(folder, ignore_errors=True)


def _become(output: int, libc: ctypes.CDLL) -> None:
    """Give this new process a session, and the program's inputs and outputs."""
    os.setsid()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and so would its children
        signal.signal(number, signal.SIG_DFL)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)


def _execute(words: list[str]) -> None:
    try:
        os.execvp(words[0], words)
    except OSError as error:
        os.write(2, f"{words[0]}: {error.strerror}".encode())
        os._exit(NOT_FOUND)


def _wait(program: int, output: int) -> tuple[bytes, bool]:
    """Wait for the end of the program or of the worker's pipe.

    Returns: the last output, and whether the pipe ended.
    """
    exit_of = os.pidfd_open(program)
    last, sources = b"", [0, exit_of, output]
    while True:
        ready, _, _ = select.select(sources, [], [])
        if output in ready:
            piece = os.read(output, 2**16)
            last = (last + piece)[-LAST:]
            if not piece:
                sources.remove(output)
        if 0 in ready:
            return last, True
        if exit_of in ready:
            return last, False


def _rest(output: int) -> bytes:
    os.set_blocking(output, False)
    rest = b""
    try:
        while piece := os.read(output, 2**16):
            rest = (rest + piece)[-LAST:]
    except BlockingIOError:
        pass
    return rest


def _until_gone(program: int, deadline: float) -> None:
    exit_of = os.pidfd_open(program)
    select.select([exit_of], [], [], max(0.0, deadline - time.monotonic()))


def _sweep(program: int) -> int:
    """Kill all descendants, including the program; return its exit code, negative for a signal."""
    code = 0
    while True:
        for child in _children():
            os.kill(child, signal.SIGKILL)  # not reaped yet, so the number is still the child's
        try:
            gone, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return code
        if gone == program:
            code = os.waitstatus_to_exitcode(status)


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(word) for word in file.read().split()]


if __name__ == "__main__":
    keep(sys.argv[1], lambda: _execute(sys.argv[2:]))
