"""Processes in /proc: their descendants, memory and deleted files, and how to end a whole family.

Every process that a tool started has to end with it: in its process group, outside the group, and
those whose parent has ended. On systems without /proc only the group is known.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from counterseal.execution.isolation.messages import OWN_MB

MARK = "COUNTERSEAL_WORKER"
"""The environment variable of a worker and its descendants, with one value per worker."""

_MOST = 64
"""The limit for a worker and its descendants together."""
_PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGESIZE") if hasattr(os, "sysconf") else 4096
_ROUNDS = 100


def family(pid: int) -> set[int]:
    """Return all descendants of a process."""
    descendants: set[int] = set()
    waiting = [pid]
    while waiting:
        new = _children(waiting.pop()) - descendants
        descendants |= new
        waiting += new
    return descendants


def _children(pid: int) -> set[int]:
    """Return the children of all threads of a process."""
    children: set[int] = set()
    with suppress(OSError):
        for task in (_PROC / str(pid) / "task").iterdir():
            children.update(map(int, (task / "children").read_text().split()))
    return children


def end(pid: int, mark: str, *, running: bool) -> None:
    """Kill the leader of a session and its descendants, or what is left of them."""
    if running:
        _end_family(pid)
    # The pid may be reused by now, so only processes with the mark or in the session are killed.
    known: set[int] = set()
    for _ in range(_ROUNDS):
        strays = set(_strays(pid, mark)) - known
        if not strays:
            break
        for stray in strays:
            _signal(stray, signal.SIGKILL)
        known |= strays


def _end_family(pid: int) -> None:
    stopped: set[int] = set()
    new = {pid}
    # Stopped first, so that no process starts another one while the list is made.
    for _ in range(_ROUNDS):
        for member in new:
            _signal(member, signal.SIGSTOP)
        stopped |= new
        new = family(pid) - stopped
        if not new:
            break
    for member in stopped:
        _signal(member, signal.SIGKILL)
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(OSError):
        os.kill(pid, number)


def _strays(pid: int, mark: str) -> Iterator[int]:
    """Yield processes of the family whose parent has ended, by their mark or session."""
    line, session = f"{MARK}={mark}".encode(), str(pid).encode()
    with suppress(OSError):
        for entry in _PROC.iterdir():
            if entry.name.isdecimal():
                with suppress(OSError, IndexError):
                    fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                    marked = line in (entry / "environ").read_bytes().split(b"\0")
                    if fields[0] not in b"ZX" and (marked or fields[3] == session):
                        yield int(entry.name)


def excess(pid: int, memory_mb: int) -> str | None:
    """Return which limit a worker and its descendants exceed together, or None.

    The kernel has no such limits: RLIMIT_NPROC counts all processes of a user, and none for root.
    """
    pids = {pid} | family(pid)
    if len(pids) > _MOST:
        return f"it had started more than {_MOST} processes"
    # Of several processes, the memory that they share is counted once.
    memory = sum(map(_share, pids)) if len(pids) > 1 else _numbers(pid)[1] * _PAGE
    if memory > (memory_mb + OWN_MB) * 1024 * 1024:
        return f"it and its processes held more memory than its {memory_mb} MB"
    return None


def data_bytes(pid: int) -> int | None:
    """Return the writable memory of a process as RLIMIT_DATA counts it; None if unknown."""
    return _numbers(pid)[5] * _PAGE or None


def _numbers(pid: int) -> list[int]:
    """Return the numbers of /proc/PID/statm, in pages."""
    with suppress(OSError, ValueError):
        return [int(number) for number in (_PROC / str(pid) / "statm").read_text().split()]
    return [0] * 7


def hidden_files(pid: int, device: int) -> int:
    """Return the bytes on a device that a process and its descendants keep after deleting files.

    A file without a name exists as long as a process has it open, or mapped into its memory.
    """
    sizes: dict[int, int] = {}
    for member in {pid} | family(pid):
        # Each task, because a thread can have open files of its own.
        for place in (_PROC / str(member) / "task").glob("*/fd/*"):
            with suppress(OSError):
                info = place.stat()
                if info.st_nlink == 0 and info.st_dev == device:
                    sizes[info.st_ino] = info.st_blocks * 512
        with suppress(OSError):
            for line in (_PROC / str(member) / "maps").read_text(errors="replace").splitlines():
                if not line.endswith(" (deleted)"):
                    continue
                addresses, _, _, number, inode, *_ = line.split()
                major, minor = (int(part, 16) for part in number.split(":"))
                if os.makedev(major, minor) == device:
                    first, last = (int(address, 16) for address in addresses.split("-"))
                    sizes[int(inode)] = max(sizes.get(int(inode), 0), last - first)
    return sum(sizes.values())


def _share(pid: int) -> int:
    with suppress(OSError):
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def offer_to_oom_killer(pid: int) -> None:
    """Let the kernel end this process before the runtime when the machine runs out of memory."""
    with suppress(OSError):
        (_PROC / str(pid) / "oom_score_adj").write_text("500")
