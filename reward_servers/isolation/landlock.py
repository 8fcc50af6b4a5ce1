"""Landlock, which limits a process's files and signals. Linux 5.13 or newer.

https://docs.kernel.org/userspace-api/landlock.html. Rights unknown to this kernel are not requested; if
possible, seccomp (reward_servers/isolation/system_calls.py) forbids the same by other means.
"""

import ctypes
import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

CREATE, ADD, RESTRICT = 444, 445, 446  # the same numbers on all machines
ASKS_FOR_VERSION = ctypes.c_uint32(1)
BENEATH = 1  # kind of a rule
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_DIR, MAKE_FILE, MAKE_LINK = 1 << 7, 1 << 8, 1 << 12
MAKE_SPECIAL = 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11  # devices, sockets, pipes
MOVE, TRUNCATE, CONTROL_DEVICE = 1 << 13, 1 << 14, 1 << 15  # since versions 2, 3 and 5
LISTEN, CONNECT = 1 << 0, 1 << 1  # TCP, since version 4
ABSTRACT_SOCKETS, SIGNALS = 1 << 0, 1 << 1  # sockets and signals to processes outside, since version 6
SINCE = {MOVE: 2, TRUNCATE: 3, CONTROL_DEVICE: 5}
CHANGES = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_FILE | MAKE_LINK | MOVE | TRUNCATE
READS = READ_FILE | READ_DIR
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | CONTROL_DEVICE  # rights that a single file can have

OURS = Path(__file__).absolute().parents[2]
OUR_PACKAGES = ("contracts", "reward_servers")
# Libraries, time zones and the machine's shape; none holds what a user wrote.
OF_THE_SYSTEM = (
    "/lib /lib64 /usr/lib /usr/lib64 /usr/local/lib /usr/share/zoneinfo /etc/ld.so.cache /etc/localtime "
    "/dev/null /dev/zero /dev/urandom /dev/random /proc/cpuinfo /proc/meminfo /sys/devices/system/cpu"
)


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


@cache
def landlock_version() -> int:
    """Return the kernel's version of Landlock; 0 without it."""
    answer = _libc().syscall(ctypes.c_long(CREATE), None, ctypes.c_size_t(0), ASKS_FOR_VERSION)
    return max(0, int(answer))


@cache
def readable() -> tuple[str, ...]:
    """Return a program's necessary files and folders: Python, installed packages and libraries.

    The current folder and PYTHONPATH are excluded, because they hold data and keys.
    """
    installed = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    ours = [str(OURS / name) for name in OUR_PACKAGES]
    paths = [*installed, os.path.join(sys.base_prefix, "lib"), *ours, *OF_THE_SYSTEM.split()]
    return tuple(path for path in dict.fromkeys(map(os.path.realpath, paths)) if os.path.exists(path))


def restrict(home: str) -> None:
    """Permanently let this process read only `readable()`, change only `home`, and signal no other process.

    Raises:
        OSError: the kernel refused a right that it supports.
    """
    version = landlock_version()
    known = ~sum(right for right, since in SINCE.items() if version < since)
    handled = (EXECUTE | READS | CHANGES | MAKE_SPECIAL | CONTROL_DEVICE) & known
    ruleset = _Ruleset(
        handled,
        LISTEN | CONNECT if version >= 4 else 0,
        ABSTRACT_SOCKETS | SIGNALS if version >= 6 else 0,
    )
    rules = _checked(_syscall(CREATE, ctypes.byref(ruleset), ctypes.c_size_t(ctypes.sizeof(ruleset)), 0))
    for path, rights in _rules(home):
        _allow(rules, path, rights & handled)
    _checked(_syscall(RESTRICT, rules, 0))
    os.close(rules)


def _rules(home: str) -> Iterator[tuple[str, int]]:
    yield home, READS | CHANGES
    yield os.devnull, WRITE_FILE | TRUNCATE
    yield "/proc/self", READS
    for path in readable():
        yield path, READS


def _allow(rules: int, path: str, rights: int) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    if not os.path.isdir(path):
        rights &= OF_FILES
    _checked(_syscall(ADD, rules, BENEATH, ctypes.byref(_Beneath(rights, place)), 0))
    os.close(place)


def _syscall(number: int, *arguments: Any) -> int:
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return int(_libc().syscall(ctypes.c_long(number), *words))


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"the kernel refused a limit: {os.strerror(code)}")
    return result


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)
