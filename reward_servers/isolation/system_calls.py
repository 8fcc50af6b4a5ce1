"""Seccomp: forbid system calls of a confined process.

A rule must compare only the bits that the kernel reads. Most arguments are 32 bits of a 64-bit register; a
rule on all 64 would pass a number whose upper half the kernel ignores.
"""

import ctypes
import errno
import fcntl
import importlib.util
import os
import tempfile
import termios
from collections.abc import Iterable, Iterator
from ctypes.util import find_library
from functools import cache
from typing import Any

UNKNOWN = -1
ALL_BITS = 0xFFFFFFFF  # all that the kernel reads of an int
CLONE_THREAD = 0x10000
PR_SET_PDEATHSIG, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 1, 22, 2
INSTRUCTION = 8  # bytes
EMPTIES = 3  # version of Landlock that knows a right to empty a file
O_ASYNC = 0o20000  # signals the owner of a file when it can be read

# Calls that start processes, reach the network or another process, or change more than a file's text.
PROCESSES = "fork vfork execve execveat"
# asyncio needs socketpair.
NETWORK = "socket connect bind sendmsg sendmmsg io_uring_setup io_uring_enter io_uring_register"
OTHERS = (
    "tkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open pidfd_getfd pidfd_send_signal ptrace kcmp "
    "process_vm_readv process_vm_writev process_madvise process_mrelease setpriority sched_setscheduler "
    "sched_setparam sched_setattr sched_setaffinity ioprio_set migrate_pages move_pages setrlimit setsid "
    "setpgid fanotify_init inotify_init inotify_init1"
)
MACHINE = (
    "mount umount2 mount_setattr move_mount open_tree fsopen fsmount fspick pivot_root chroot unshare setns "
    "bpf perf_event_open userfaultfd keyctl add_key request_key init_module finit_module kexec_load reboot "
    "swapon settimeofday clock_settime syslog personality memfd_create memfd_secret shmget shmat shmctl "
    "semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink mq_notify mq_timedsend "
    "mq_timedreceive name_to_handle_at open_by_handle_at lookup_dcookie quotactl acct vhangup iopl ioperm"
)
ATTRIBUTES = (
    "chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat setxattr lsetxattr fsetxattr removexattr "
    "lremovexattr fremovexattr utime utimes utimensat futimesat truncate mknod mknodat"
)
WRITES = (
    "creat openat2 rename renameat renameat2 unlink unlinkat rmdir mkdir mkdirat link linkat symlink "
    "symlinkat"
)
# Every other request or command of these two is refused: some change a file's owner, whom the kernel signals.
REQUESTS = (  # arguments of ioctl
    termios.TCGETS,
    termios.TIOCGWINSZ,
    termios.FIONREAD,
    termios.FIONBIO,
    termios.FIOCLEX,
    termios.FIONCLEX,
)
COMMANDS = (  # arguments of fcntl
    fcntl.F_DUPFD,
    fcntl.F_DUPFD_CLOEXEC,
    fcntl.F_GETFD,
    fcntl.F_SETFD,
    fcntl.F_GETFL,
    fcntl.F_SETFL,
    fcntl.F_GETLK,
    fcntl.F_SETLK,
    fcntl.F_SETLKW,
    fcntl.F_OFD_GETLK,
    fcntl.F_OFD_SETLK,
    fcntl.F_OFD_SETLKW,
    1032,  # F_GETPIPE_SZ
)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


@cache
def has_seccomp() -> bool:
    """Return whether this machine can forbid system calls."""
    return importlib.util.find_spec("pyseccomp") is not None and find_library("seccomp") is not None


def forbid(landlock: int) -> None:
    """Permanently forbid this process the calls above, and all that this version of Landlock does not limit.

    Args:
        landlock: the kernel's version; 0 without it, which forbids writes. Below 3, files can't be emptied.

    Raises:
        OSError: the kernel refused the rules.
    """
    program = fixed_rules(landlock)
    length = len(program) // INSTRUCTION
    instructions = ctypes.create_string_buffer(program, len(program))
    header = _Program(length, ctypes.cast(instructions, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(header)) < 0:
        raise OSError(ctypes.get_errno(), "the kernel refused to forbid system calls")
    _rules_of_this_process().load()


@cache
def fixed_rules(landlock: int) -> bytes:
    """Return all processes' common rules as the kernel's program, which takes 3 ms to make."""
    import pyseccomp as seccomp

    refuse = seccomp.ERRNO(errno.EPERM)
    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    names = f"{PROCESSES} {NETWORK} {OTHERS} {MACHINE} {ATTRIBUTES} {'' if landlock else WRITES}"
    for name in names.split():
        _add(rules, refuse, name)
    # The C library falls back to clone, whose flags can be looked at.
    _add(rules, seccomp.ERRNO(errno.ENOSYS), "clone3")
    _add(rules, refuse, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, CLONE_THREAD, 0))
    _add(rules, refuse, "sendto", seccomp.Arg(4, seccomp.NE, 0))  # to an address
    _add(rules, refuse, "prlimit64", seccomp.Arg(2, seccomp.NE, 0))
    _add(rules, refuse, "prctl", _equal(0, PR_SET_PDEATHSIG))  # so it ends with the process that forked it
    for name, allowed in (("ioctl", REQUESTS), ("fcntl", COMMANDS)):
        for mask, value in all_others(allowed):
            _add(rules, refuse, name, seccomp.Arg(1, seccomp.MASKED_EQ, mask, value))
    is_async = seccomp.Arg(2, seccomp.MASKED_EQ, O_ASYNC, O_ASYNC)
    _add(rules, refuse, "fcntl", _equal(1, fcntl.F_SETFL), is_async)
    for name, place in (("open", 1), ("openat", 2)):
        for mask, flags in _refused_flags(landlock):
            _add(rules, refuse, name, seccomp.Arg(place, seccomp.MASKED_EQ, mask, flags))
    if 0 < landlock < EMPTIES:
        _add(rules, refuse, "openat2")
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _refused_flags(landlock: int) -> list[tuple[int, int]]:
    """Return pairs of mask and value of open's refused flags."""
    if not landlock:
        return [(flag, flag) for flag in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC)]
    if landlock < EMPTIES:  # it asks for a right to write, which these two modes do not need
        return [(os.O_TRUNC | os.O_ACCMODE, os.O_TRUNC | mode) for mode in (os.O_RDONLY, os.O_ACCMODE)]
    return []


def _rules_of_this_process() -> Any:
    import pyseccomp as seccomp

    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    for name in ("kill", "tgkill"):
        _add(rules, seccomp.ERRNO(errno.EPERM), name, seccomp.Arg(0, seccomp.NE, os.getpid()))
    return rules


def all_others(allowed: Iterable[int], bits: int = 32) -> Iterator[tuple[int, int]]:
    """Yield pairs of mask and value; `number & mask == value` for one of them, unless the number is allowed.

    Libseccomp can't express "none of these". So each pair covers the numbers that leave all allowed ones at
    one bit, and the pairs together cover all other numbers.

    >>> [(f"{mask:03b}", f"{value:03b}") for mask, value in all_others([0b101, 0b100], bits=3)]
    [('100', '000'), ('110', '110')]
    """
    whole = (1 << bits) - 1
    for length in range(1, bits + 1):
        rest = bits - length
        mask = whole & ~((1 << rest) - 1)
        beginnings = {number & mask for number in allowed}
        for value in sorted({beginning ^ (1 << rest) for beginning in beginnings} - beginnings):
            yield mask, value


def _equal(place: int, value: int) -> Any:
    import pyseccomp as seccomp

    return seccomp.Arg(place, seccomp.MASKED_EQ, ALL_BITS, value)


def _add(rules: Any, action: int, name: str, *conditions: Any) -> None:
    """Add a rule, unless the library does not know the call."""
    import pyseccomp as seccomp

    if seccomp.resolve_syscall(seccomp.Arch.NATIVE, name) != UNKNOWN:
        rules.add_rule(action, name, *conditions)
