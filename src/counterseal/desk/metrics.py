"""The twenty numbers by which one sees whether contracts work, counted from the events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from counterseal.desk.base import Seat
from counterseal.desk.calls import CallSearch

__all__ = ["METRICS", "Metric", "MetricsDesk", "prometheus"]

METRICS: Sequence[str] = ()
"""Their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One number, and how it came about."""

    name: str
    """For programs: first_pass_schema_valid_rate."""
    title: str
    """For people: First-pass schema valid rate."""
    formula: str
    meaning: str
    unit: str
    """ratio, or cost."""
    window: str
    since: float
    until: float
    numerator: float
    denominator: float
    value: float | None
    """None where there is nothing to divide by."""
    calls: CallSearch | None
    """Which calls are behind the numerator, as a search of calls; None: `events` says it better."""
    events: Sequence[str] = ()
    """Which types of events are behind it, as a search of the record."""

    def record(self) -> dict[str, Any]:
        raise NotImplementedError


class MetricsDesk(Seat):
    async def metrics(self, window: str = "24h") -> list[Metric]:
        """All twenty over a window that ends now: 15m, 1h, 24h, 7d. ValueError for another."""
        raise NotImplementedError

    async def series(
        self, metric: str, window: str = "24h", buckets: int = 24
    ) -> list[float | None]:
        """One of them, for each of so many equal parts of the window, oldest first."""
        raise NotImplementedError


def prometheus(metrics: Sequence[tuple[str, Sequence[Metric]]]) -> str:
    """As Prometheus reads it: (tenant, its metrics) for every tenant that may be told."""
    raise NotImplementedError
