"""Windows of time: the last so many minutes, hours or days."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["WINDOWS", "seconds_of"]

WINDOWS: Final = ("15m", "1h", "6h", "24h", "7d", "30d")
"""Those that are offered; any other of the kind will do."""

_FORM: Final = re.compile(r"(\d{1,4})([mhd])")
_UNITS: Final = {"m": 60, "h": 3600, "d": 86_400}
_LONGEST: Final = 366 * 86_400


def seconds_of(window: str) -> float:
    """How long it is. ValueError says how one is written."""
    found = _FORM.fullmatch(window)
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < seconds <= _LONGEST:
        raise ValueError("window: write 15m, 24h or 7d, up to 366d")
    return float(seconds)
