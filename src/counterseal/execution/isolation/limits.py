"""How much one call may use of the machine, set by the process that runs it.

What several processes use together is watched from outside.
"""

from __future__ import annotations

import math
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["limited", "no_core_dumps"]


def no_core_dumps() -> None:
    """A dump would hold the call's secrets."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@contextmanager
def limited(memory: int | None, seconds: float) -> Iterator[None]:
    """Bound memory, in bytes altogether, and processor time, from now on. Lifted at the end.

    Memory is what the process may write to: on Linux that is what RLIMIT_DATA counts, while
    RLIMIT_AS would count libraries and what is merely set aside, and refuse threads long before
    memory is short. Processor time is counted over all threads, so that there is as much as all
    processors have until the deadline, and a second more: whoever watches the clock comes first.
    """
    wanted: dict[int, int] = {}
    if memory is not None:
        kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
        wanted[kind] = memory
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = used.ru_utime + used.ru_stime
    wanted[resource.RLIMIT_CPU] = math.ceil(spent + seconds * (os.cpu_count() or 1)) + 1
    before = {kind: resource.getrlimit(kind) for kind in wanted}
    try:
        for kind, value in wanted.items():
            _lower(kind, value, before[kind])
        yield
    finally:
        for kind, limits in before.items():
            resource.setrlimit(kind, limits)


def _lower(kind: int, value: int, before: tuple[int, int]) -> None:
    given = [limit for limit in (value, *before) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(kind, (min(given), before[1]))
