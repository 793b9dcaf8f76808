"""Processes as the kernel shows them: who descends from whom, what they use, and how to end them.

Whatever a tool started has to go with it: what stayed in its process group, what left the group,
and what lost its parent. On systems without /proc only the group is known.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["MARK", "data_bytes", "end", "family", "memory_bytes", "offer_to_oom_killer"]

MARK = "COUNTERSEAL_WORKER"
"""The variable that a worker's whole family has in its environment, each worker its own value."""

_PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGESIZE") if hasattr(os, "sysconf") else 4096
_ROUNDS = 100


def family(pid: int) -> set[int]:
    """Every descendant of a process."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        new = _children(waiting.pop()) - found
        found |= new
        waiting += new
    return found


def _children(pid: int) -> set[int]:
    """The kernel keeps a list for each thread that started some."""
    found: set[int] = set()
    with suppress(OSError):
        for task in (_PROC / str(pid) / "task").iterdir():
            found.update(map(int, (task / "children").read_text().split()))
    return found


def end(pid: int, mark: str, *, running: bool) -> None:
    """Kill the leader of a session and all that it started, or what it left when it ended."""
    if running:
        _end_family(pid)
    # By now its number may belong to somebody else: only who shows the mark, or its session.
    known: set[int] = set()
    for _ in range(_ROUNDS):
        strays = set(_strays(pid, mark)) - known
        if not strays:
            break
        for one in strays:
            _signal(one, signal.SIGKILL)
        known |= strays


def _end_family(pid: int) -> None:
    stopped: set[int] = set()
    new = {pid}
    # Stopped first, so that nobody starts another while the list is made.
    for _ in range(_ROUNDS):
        for one in new:
            _signal(one, signal.SIGSTOP)
        stopped |= new
        new = family(pid) - stopped
        if not new:
            break
    for one in stopped:
        _signal(one, signal.SIGKILL)
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(OSError):
        os.kill(pid, number)


def _strays(pid: int, mark: str) -> Iterator[int]:
    """Who lost its parent when that died: known by its environment, or by its session."""
    line, session = f"{MARK}={mark}".encode(), str(pid).encode()
    with suppress(OSError):
        for entry in _PROC.iterdir():
            if entry.name.isdecimal():
                with suppress(OSError, IndexError):
                    fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                    marked = line in (entry / "environ").read_bytes().split(b"\0")
                    if fields[0] not in b"ZX" and (marked or fields[3] == session):
                        yield int(entry.name)


def data_bytes(pid: int) -> int | None:
    """How much a process may write to, as RLIMIT_DATA counts it. None where nobody can tell."""
    return _numbers(pid)[5] * _PAGE or None


def _numbers(pid: int) -> list[int]:
    """In pages: what is mapped, what of it is in memory, three more, what may be written to."""
    with suppress(OSError, ValueError):
        return [int(number) for number in (_PROC / str(pid) / "statm").read_text().split()]
    return [0] * 7


def memory_bytes(pids: set[int]) -> int:
    """What processes hold together; what they share is counted once."""
    if len(pids) > 1:
        return sum(map(_share, pids))
    return sum(_numbers(pid)[1] * _PAGE for pid in pids)


def _share(pid: int) -> int:
    with suppress(OSError):
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def offer_to_oom_killer(pid: int) -> None:
    """When the machine runs out of memory, the kernel takes a tool before it takes the runtime."""
    with suppress(OSError):
        (_PROC / str(pid) / "oom_score_adj").write_text("500")
