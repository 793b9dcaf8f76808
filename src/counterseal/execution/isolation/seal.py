"""The last restrictions of a sandbox, applied by the sandboxed process before it loads a tool.

A runtime that runs as root has every kernel capability, and so have its children. All of them are
dropped for good: afterwards the process has an ordinary user's rights.

Landlock restricts TCP only in `bind` and `connect`: other protocols, a listening socket that was
never bound, and data in the first packet are not covered. So a seccomp filter refuses all sockets,
except for pairs within the process, sending open files through a pair, and setting the limits of
other processes. No file can grow beyond a limit. All of this holds for every process that this one
starts, too.
"""

from __future__ import annotations

import ctypes
import platform
import resource
from typing import Final, NamedTuple


class _Machine(NamedTuple):
    """The kernel's number of a processor architecture, and the numbers of the filtered calls."""

    audit: int
    socket: int
    socketpair: int
    prlimit64: int
    sendmsg: int
    sendmmsg: int


MACHINES: Final = {
    "x86_64": _Machine(0xC000003E, 41, 53, 302, 46, 307),
    "aarch64": _Machine(0xC00000B7, 198, 199, 261, 211, 269),
}

_LARGEST_FILE = 64 * 1024 * 1024

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _MACHINE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000  # refused calls fail with EPERM
_OTHER_NUMBERS = 0x40000000
"""The beginning of a second set of call numbers, on architectures that have one."""
_AF_UNIX, _SELF = 1, 0
_PR_SET_SECCOMP, _FILTER = 22, 2

_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 23, 24, 38
_PR_CAP_AMBIENT, _CLEAR_ALL = 47, 4
_CAP_SETPCAP, _MOST_CAPABILITIES = 8, 64
_CAPABILITIES_3 = 0x20080522


class _Step(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_ushort),
        ("yes", ctypes.c_ubyte),
        ("no", ctypes.c_ubyte),
        ("value", ctypes.c_uint),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.POINTER(_Step)))


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint),
        ("permitted", ctypes.c_uint),
        ("inheritable", ctypes.c_uint),
    )


def seal() -> None:
    """Apply the restrictions. Raise OSError if the kernel refuses."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
    libc = ctypes.CDLL(None, use_errno=True)
    _give_up_capabilities(libc)
    steps = _steps(MACHINES[platform.machine()])
    array = (_Step * len(steps))(*(_Step(*step) for step in steps))
    program = _Program(len(steps), array)
    _done(libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0))


def _done(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), "the sandbox could not be sealed")


def _give_up_capabilities(libc: ctypes.CDLL) -> None:
    """Drop all capabilities, and every way to regain one: by uid 0, file or inheritance."""
    header, sets = _Header(_CAPABILITIES_3, 0), (_Sets * 2)()
    _done(libc.capget(ctypes.byref(header), sets))
    if sets[0].effective & 1 << _CAP_SETPCAP:  # only root has capabilities to drop
        for number in range(_MOST_CAPABILITIES):
            if libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) == 1:
                _done(libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0))
    _done(libc.prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0))
    _done(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _done(libc.capset(ctypes.byref(header), (_Sets * 2)()))


def _steps(machine: _Machine) -> list[tuple[int, int, int, int]]:
    """A filter instruction: code, steps to skip if true, steps to skip if false, value."""
    return [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_EQUAL, 1, 0, machine.audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _OTHER_NUMBERS),
        (_RETURN, 0, 0, _REFUSE),
        *_never(machine.socket),
        # They could keep open files on their way, where no limit counts them.
        *_never(machine.sendmsg),
        *_never(machine.sendmmsg),
        *_only_with(machine.socketpair, _AF_UNIX),
        *_only_with(machine.prlimit64, _SELF),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _never(number: int) -> list[tuple[int, int, int, int]]:
    return [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]


def _only_with(number: int, argument: int) -> list[tuple[int, int, int, int]]:
    """Refuse a call unless its first argument is this one."""
    return [
        (_EQUAL, 0, 4, number),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_EQUAL, 0, 1, argument),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
