"""The twenty numbers by which one sees whether contracts work, counted from the events.

The store adds up events by what they count as (`audit.facts`), by index and within a window; here
the sums are put into proportion, as `formulas` says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from counterseal.audit.facts import read_tally
from counterseal.storage.base import Store, Tallied
from counterseal.views.base import NotThere, Seat, iso
from counterseal.views.calls import CallSearch
from counterseal.views.formulas import METRICS, PARTS, Sum, Sums
from counterseal.views.windows import seconds_of

__all__ = ["METRICS", "Metric", "MetricsDesk", "measure", "measured"]

_MOST_BUCKETS: Final = 500


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

    def behind(self, part: str = "numerator") -> CallSearch | None:
        """The rows of a part of it, as a search of calls; None where no list is that part."""
        if METRICS[self.name].part(part) is None:
            return None
        named = None if part == "numerator" else part
        return CallSearch(metric=self.name, part=named, since=self.since, until=self.until)

    def record(self) -> dict[str, Any]:
        links = {part: self.behind(part) for part in PARTS}
        return {
            **{name: getattr(self, name) for name in self.__slots__},
            "since": iso(self.since),
            "until": iso(self.until),
            "link": {part: one and one.query() for part, one in links.items()},
        }


class MetricsDesk(Seat):
    """Numbers of this tenant, for every viewer."""

    async def metrics(self, window: str = "24h") -> list[Metric]:
        """All twenty over a window that ends now, such as 15m, 24h or 7d. ValueError else."""
        return await measured(self.runtime.store, self.tenant, window, self.runtime.clock())

    async def series(
        self, metric: str, window: str = "24h", buckets: int = 24
    ) -> list[float | None]:
        """One of them, for each of so many equal parts of the window, oldest first. NotThere."""
        formula = METRICS.get(metric)
        if formula is None:
            raise NotThere("metric")
        if not 0 < buckets <= _MOST_BUCKETS:
            raise ValueError(f"buckets: takes 1 to {_MOST_BUCKETS}")
        until = self.runtime.clock()
        since = until - seconds_of(window)
        found = await self.runtime.store.tallies(self.tenant, since, until, buckets)
        parts: defaultdict[int, list[Tallied]] = defaultdict(list)
        for one in found:
            parts[one.part].append(one)
        sums = [_read(parts[part]) for part in range(buckets)]
        return [_ratio(formula.numerator(one), formula.denominator(one)) for one in sums]


async def measured(store: Store, tenant: str, window: str, until: float) -> list[Metric]:
    """All metrics of a tenant over a window that ends at a moment. ValueError for the window."""
    since = until - seconds_of(window)
    return measure(await store.tallies(tenant, since, until), window, since, until)


def measure(found: Iterable[Tallied], window: str, since: float, until: float) -> list[Metric]:
    """All metrics of what was counted."""
    sums = _read(found)
    made = []
    for name, formula in METRICS.items():
        numerator, denominator = formula.numerator(sums), formula.denominator(sums)
        made.append(
            Metric(
                name=name,
                title=formula.title,
                formula=formula.words,
                meaning=formula.meaning,
                unit=formula.unit,
                window=window,
                since=since,
                until=until,
                numerator=numerator,
                denominator=denominator,
                value=_ratio(numerator, denominator),
            )
        )
    return made


def _read(found: Iterable[Tallied]) -> Sums:
    return [Sum(*read_tally(one.tally), one.times, one.cost) for one in found]


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None
