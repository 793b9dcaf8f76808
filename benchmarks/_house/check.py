"""Did anything get worse? The ratios of a run beside those that were kept.

A ratio counts as worse only when it is so by more than the runs themselves waver. The median of n
rounds whose middle half is w wide is known to about 1.57 w / √n (the notch of a box plot); of two
runs, both uncertainties add up as independent ones do. On top of that, whole runs differ, since
memory lies elsewhere and neighbours come and go. How much has not been measured on a quiet machine;
until it is, less than a quarter is never told as worse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from benchmarks._house.rows import Result

FLOOR = 0.25
NOTCH = 1.57


class Change(NamedTuple):
    key: str
    what: str
    before: float
    now: float
    by: float
    """How much worse, as a part of what it was: 0.2 is a fifth; below 0 it is better."""
    tolerance: float

    @property
    def worse(self) -> bool:
        return self.by > self.tolerance

    def __str__(self) -> str:
        return (
            f"{self.key}: {self.before:g}x before, {self.now:g}x now: {self.by:.0%} worse, "
            f"where {self.tolerance:.0%} can be chance"
        )


def uncertainty(row: Result) -> float:
    """How far off its ratio may be, as a part of it."""
    return NOTCH * (row.high - row.low) / row.ratio / math.sqrt(row.rounds)


def compared(before: Mapping[str, Result], now: Mapping[str, Result]) -> list[Change]:
    """Every row that is in both."""
    changes = []
    for key, row in now.items():
        was = before.get(key)
        if was is None:
            continue
        by = was.ratio / row.ratio if row.better == "higher" else row.ratio / was.ratio
        tolerance = max(FLOOR, math.hypot(uncertainty(was), uncertainty(row)))
        changes.append(Change(key, row.what, was.ratio, row.ratio, by - 1, tolerance))
    return changes
