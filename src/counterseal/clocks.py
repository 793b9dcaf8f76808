"""A clock for ages that must count the time in which the machine was suspended.

Python's monotonic clock stops while a Linux machine is suspended: a lease looks young to a process
that wakes up, though another machine may have taken it over.
"""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", None) or getattr(time, "CLOCK_MONOTONIC", None)
"""On macOS, CLOCK_MONOTONIC counts suspension. Windows has neither."""


def boottime() -> float:
    """Return the seconds since the machine started, suspended ones included."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
