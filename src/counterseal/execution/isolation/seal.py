"""The last doors of a sandbox, shut by the sandboxed process itself before any tool is loaded.

A runtime that is started as root has every capability of the kernel, and so has what it starts. So
all of them are given up first, for good: from then on the process may do what any user may, with
the files that it owns, or that everybody may read.

Landlock watches over TCP only as far as `bind` and `connect` go: another protocol, a listening
socket that was never bound, or data sent with the first packet pass it by. So there are no sockets
at all, but for pairs within the process; and nobody else's limits are set. What is shut stays shut,
for every process that this one starts.
"""

from __future__ import annotations

import ctypes
import platform
from typing import Final, NamedTuple

__all__ = ["MACHINES", "seal"]


class _Machine(NamedTuple):
    """A processor's number in the kernel, and those of the system calls that are filtered."""

    audit: int
    socket: int
    socketpair: int
    prlimit64: int


MACHINES: Final = {
    "x86_64": _Machine(0xC000003E, 41, 53, 302),
    "aarch64": _Machine(0xC00000B7, 198, 199, 261),
}

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _MACHINE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000  # refused calls fail with EPERM
_OTHER_NUMBERS = 0x40000000
"""From here on the same calls go by a second set of numbers, on processors that have one."""
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
    """Shut them. OSError when the kernel does not let us."""
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
    """All of them, and every way to have one again: by root, by a program's file, by a parent."""
    header, sets = _Header(_CAPABILITIES_3, 0), (_Sets * 2)()
    _done(libc.capget(ctypes.byref(header), sets))
    if sets[0].effective & 1 << _CAP_SETPCAP:  # nobody else can, and has any to lose
        for number in range(_MOST_CAPABILITIES):
            if libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) == 1:
                _done(libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0))
    _done(libc.prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0))
    _done(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _done(libc.capset(ctypes.byref(header), (_Sets * 2)()))


def _steps(machine: _Machine) -> list[tuple[int, int, int, int]]:
    """A filter: code, how many steps to skip if so, how many if not, value."""
    return [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_EQUAL, 1, 0, machine.audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _OTHER_NUMBERS),
        (_RETURN, 0, 0, _REFUSE),
        (_EQUAL, 0, 1, machine.socket),
        (_RETURN, 0, 0, _REFUSE),
        *_only_with(machine.socketpair, _AF_UNIX),
        *_only_with(machine.prlimit64, _SELF),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _only_with(number: int, argument: int) -> list[tuple[int, int, int, int]]:
    """Refuse a call unless its first argument is this one."""
    return [
        (_EQUAL, 0, 4, number),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_EQUAL, 0, 1, argument),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
