"""Limits that the kernel keeps for one process: no new processes, no network, no writes outside of a folder.

    resource limits    CPU time, memory, size of a file, open files     always
    seccomp            processes, network, signals, other settings      Linux with libseccomp
    Landlock           writes outside of the folder                     Linux 5.13 or newer, where switched on

Where Landlock is missing, seccomp forbids all writes. None of this needs to be root, and root keeps no
privileges. Reading files isn't limited.
"""

import ctypes
import errno
import fcntl
import importlib.util
import math
import os
import resource
from ctypes.util import find_library
from functools import cache
from typing import Any

OPEN_FILES = 64
UNKNOWN = -1
GIB, MIB = 2**30, 2**20
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, SIGKILL = 1, 38, 9
CLONE_THREAD = 0x10000
CAPABILITY_VERSION_3 = 0x20080522
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446  # the same numbers on all machines
LANDLOCK_ABI = ctypes.c_uint32(1)  # asks for the version
WRITE_FILE, REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_FILE, MAKE_LINK = (
    1 << bit for bit in (1, 4, 5, 7, 8, 12)
)
MAKE_SPECIAL = 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11  # devices, sockets, pipes
MOVE, TRUNCATE = 1 << 13, 1 << 14  # since versions 2 and 3

# System calls that start processes, reach the network or another process, or change more than a file's text.
PROCESSES = "fork vfork execve execveat"
NETWORK = "socket connect bind sendmsg sendmmsg io_uring_setup"  # asyncio needs socketpair
OTHERS = (
    "tkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open pidfd_getfd pidfd_send_signal ptrace kcmp "
    "process_vm_readv process_vm_writev process_madvise setpriority sched_setscheduler sched_setparam "
    "sched_setattr sched_setaffinity ioprio_set migrate_pages move_pages setrlimit setsid setpgid"
)
MACHINE = (
    "mount umount2 mount_setattr move_mount open_tree fsopen fsmount fspick pivot_root chroot unshare setns "
    "bpf perf_event_open userfaultfd keyctl add_key request_key init_module finit_module kexec_load reboot "
    "swapon settimeofday clock_settime syslog personality memfd_create memfd_secret shmget semget msgget "
    "mq_open"
)
ATTRIBUTES = (
    "chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat setxattr lsetxattr fsetxattr removexattr "
    "lremovexattr fremovexattr utime utimes utimensat futimesat truncate mknod mknodat"
)
WRITES = (
    "creat openat2 rename renameat renameat2 unlink unlinkat rmdir mkdir mkdirat link linkat symlink "
    "symlinkat"
)


@cache
def has_seccomp() -> bool:
    """Return whether system calls can be forbidden here."""
    return importlib.util.find_spec("pyseccomp") is not None and find_library("seccomp") is not None


@cache
def landlock_version() -> int:
    """Return the kernel's version of Landlock; 0 without it."""
    found = _libc().syscall(ctypes.c_long(LANDLOCK_CREATE), None, ctypes.c_size_t(0), LANDLOCK_ABI)
    return max(0, int(found))


def prepare() -> None:
    """Look up and import what `confine` needs, once for all forks."""
    landlock_version()
    if has_seccomp():
        importlib.import_module("pyseccomp")


def confine(home: str, cpu_s: float, memory_gib: float, file_mib: float) -> None:
    """Limit this process for good; it must have been forked for one sample, and have a single thread.

    Args:
        home: the only folder to which it may write.
        memory_gib: address space beyond what it has now.

    Raises:
        OSError: the kernel refused a limit that it has.
    """
    libc = _libc()
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL)
    _limit_resources(cpu_s, memory_gib, file_mib)
    _checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    may_write = landlock_version() > 0
    if may_write:
        _landlock(home)
    _drop_capabilities()
    if has_seccomp():
        _seccomp(may_write)


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


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def _landlock(home: str) -> None:
    """Allow writing to the files of `home` and to /dev/null, and to no others."""
    version = landlock_version()
    more = (MOVE if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    own = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_FILE | MAKE_LINK | more
    ruleset = _Ruleset(own | MAKE_SPECIAL)
    size = ctypes.c_size_t(ctypes.sizeof(ruleset))
    rules = _checked(_syscall(LANDLOCK_CREATE, ctypes.byref(ruleset), size, 0))
    for path, allowed in ((home, own), (os.devnull, WRITE_FILE | (more & TRUNCATE))):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        _checked(_syscall(LANDLOCK_ADD, rules, 1, ctypes.byref(_Beneath(allowed, place)), 0))
        os.close(place)
    _checked(_syscall(LANDLOCK_RESTRICT, rules, 0))
    os.close(rules)


def _drop_capabilities() -> None:
    """Give up root's privileges; a user without any loses nothing."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    _checked(_libc().capset(ctypes.byref(header), ctypes.byref(none)))


def _seccomp(may_write: bool) -> None:
    import pyseccomp as seccomp

    refuse = seccomp.ERRNO(errno.EPERM)
    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    names = f"{PROCESSES} {NETWORK} {OTHERS} {MACHINE} {ATTRIBUTES} {'' if may_write else WRITES}"
    for name in names.split():
        _add(rules, refuse, name)
    # The C library falls back to clone, whose flags can be looked at.
    _add(rules, seccomp.ERRNO(errno.ENOSYS), "clone3")
    _add(rules, refuse, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, CLONE_THREAD, 0))
    for name in ("kill", "tgkill"):
        _add(rules, refuse, name, seccomp.Arg(0, seccomp.NE, os.getpid()))
    _add(rules, refuse, "sendto", seccomp.Arg(4, seccomp.NE, 0))  # to an address
    _add(rules, refuse, "prlimit64", seccomp.Arg(2, seccomp.NE, 0))
    for command in (fcntl.F_SETOWN, fcntl.F_SETSIG, 15):  # 15: F_SETOWN_EX; each can signal another process
        _add(rules, refuse, "fcntl", seccomp.Arg(1, seccomp.EQ, command))
    if not may_write:
        for name, place in (("open", 1), ("openat", 2)):
            for flag in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC):
                _add(rules, refuse, name, seccomp.Arg(place, seccomp.MASKED_EQ, flag, flag))
    rules.load()


def _add(rules: Any, action: int, name: str, *conditions: Any) -> None:
    """Add a rule; a call that the library doesn't know needs none."""
    import pyseccomp as seccomp

    if seccomp.resolve_syscall(seccomp.Arch.NATIVE, name) != UNKNOWN:
        rules.add_rule(action, name, *conditions)


def _syscall(number: int, *arguments: Any) -> int:
    given = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return int(_libc().syscall(ctypes.c_long(number), *given))


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"the kernel refused a limit: {os.strerror(code)}")
    return result


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)
