"""Kernel limits of one process: no new processes, no network, no foreign files.

    resource limits    CPU time, memory, size of a file, open files           always
    seccomp            processes, network, signals, other settings            Linux with libseccomp
    Landlock           reads and writes outside of the folder, signals        Linux 5.13 or newer

Without Landlock, seccomp forbids all writes, but nothing limits reading. None of this needs root, and root
keeps no privileges.
"""

import ctypes
import math
import resource
import signal
from functools import cache
from typing import Any

from reward_servers.isolation.landlock import landlock_version, readable, restrict
from reward_servers.isolation.system_calls import PR_SET_PDEATHSIG, fixed_rules, forbid, has_seccomp

OPEN_FILES = 64
GIB, MIB = 2**30, 2**20
PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 4, 38
CAPABILITY_VERSION_3 = 0x20080522


def prepare() -> None:
    """Prepare `confine` once for all forks."""
    readable()
    if has_seccomp():
        fixed_rules(landlock_version())


def close_memory() -> None:
    """Hide the memory and descriptors of this process and its forks from the user's other processes."""
    _libc().prctl(PR_SET_DUMPABLE, 0)


def confine(home: str, cpu_s: float, memory_gib: float, file_mib: float) -> None:
    """Limit this process permanently; it must be a fork for one sample with a single thread.

    Args:
        home: the only writable folder.
        memory_gib: address space beyond the current one.

    Raises:
        OSError: the kernel refused a limit that it supports.
    """
    prepare()
    libc = _libc()
    libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    _limit_resources(cpu_s, memory_gib, file_mib)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "the kernel refused to keep new privileges away")
    if landlock_version():
        restrict(home)
    _drop_capabilities()
    if has_seccomp():
        forbid(landlock_version())


def _limit_resources(cpu_s: float, memory_gib: float, file_mib: float) -> None:
    with open("/proc/self/statm", encoding="ascii") as file:
        has_now = int(file.read().split()[0]) * resource.getpagesize()
    seconds = math.ceil(cpu_s)
    for kind, soft, hard in (
        (resource.RLIMIT_AS, has_now + int(memory_gib * GIB), 0),
        (resource.RLIMIT_CPU, seconds, seconds + 1),  # the first can be caught, the second can't
        (resource.RLIMIT_FSIZE, math.ceil(file_mib * MIB), 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES, 0),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        _, highest = resource.getrlimit(kind)
        top = max(soft, hard) if highest == resource.RLIM_INFINITY else min(max(soft, hard), highest)
        resource.setrlimit(kind, (min(soft, top), top))


def _drop_capabilities() -> None:
    """Give up root's privileges; a user without any loses nothing."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    if _libc().capset(ctypes.byref(header), ctypes.byref(none)) < 0:
        raise OSError(ctypes.get_errno(), "the kernel refused to drop privileges")


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)
