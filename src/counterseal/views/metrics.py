"""The twenty metrics: their values over a window, over time, and as Prometheus reads them.

The store adds up events by the facts they count for (`audit.events`); `formulas` says which sums a
metric divides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pydantic import Field

from counterseal.audit.events import read_tally
from counterseal.ledger.requests import TallyCount
from counterseal.storage.store import Store
from counterseal.views.base import (
    Moment,
    NotFoundError,
    Number,
    RowModel,
    TenantSection,
    utc,
    window_seconds,
)
from counterseal.views.calls import CallSearch
from counterseal.views.formulas import METRICS, Formula, Sum, Sums

_MAX_BUCKETS: Final = 500

# --- rows -----------------------------------------------------------------------------------------


class MetricLinks(RowModel):
    """The events behind the numbers, as parameters of `/v1/calls`; null where there is no list."""

    numerator: dict[str, str]
    denominator: dict[str, str] | None
    rest: dict[str, str] | None = Field(description="The denominator without the numerator.")


class MetricRow(RowModel):
    """One metric over a window."""

    name: str
    title: str
    formula: str
    meaning: str
    unit: str
    window: str
    since: Moment
    until: Moment
    numerator: Number
    denominator: Number
    value: float | None
    link: MetricLinks


class MetricSeries(RowModel):
    """One metric over time, oldest first."""

    metric: str
    window: str
    values: list[float | None]


# --- the section ----------------------------------------------------------------------------------


class MetricViews(TenantSection):
    """Metrics of a tenant, for every viewer."""

    async def rows(self, window: str = "24h") -> list[MetricRow]:
        """Return all metrics over a window that ends now. Raises ValueError for another window."""
        return await metric_rows(self.runtime.store, self.tenant, window, self.runtime.clock())

    async def series(self, metric: str, window: str = "24h", buckets: int = 24) -> MetricSeries:
        """Return one metric in equal parts of a window that ends now.

        Raises NotFoundError for an unknown metric, ValueError for an invalid window or number of
        parts.
        """
        formula = METRICS.get(metric)
        if formula is None:
            raise NotFoundError("metric")
        if not 0 < buckets <= _MAX_BUCKETS:
            raise ValueError(f"buckets: expected 1 to {_MAX_BUCKETS}, got {buckets}")
        until = self.runtime.clock()
        since = until - window_seconds(window)
        parts: defaultdict[int, list[TallyCount]] = defaultdict(list)
        for row in await self.runtime.store.tallies(self.tenant, since, until, buckets):
            parts[row.part].append(row)
        sums = [_sums(parts[part]) for part in range(buckets)]
        values = [_ratio(formula.numerator(one), formula.denominator(one)) for one in sums]
        return MetricSeries(metric=metric, window=window, values=values)


async def metric_rows(store: Store, tenant: str, window: str, until: float) -> list[MetricRow]:
    """Return all metrics of a tenant over a window that ends at `until`."""
    since = until - window_seconds(window)
    return metric_rows_from(await store.tallies(tenant, since, until), window, since, until)


def metric_rows_from(
    tallies: Iterable[TallyCount], window: str, since: float, until: float
) -> list[MetricRow]:
    """Return all metrics of what a store has added up."""
    sums = _sums(tallies)
    return [_row(name, formula, sums, window, since, until) for name, formula in METRICS.items()]


def _row(
    name: str, formula: Formula, sums: Sums, window: str, since: float, until: float
) -> MetricRow:
    def link(part: str) -> dict[str, str] | None:
        if formula.part(part) is None:
            return None
        search = CallSearch(
            metric=name, part=None if part == "numerator" else part, since=since, until=until
        )
        return search.query()

    numerator, denominator = formula.numerator(sums), formula.denominator(sums)
    return MetricRow(
        name=name,
        title=formula.title,
        formula=formula.words,
        meaning=formula.meaning,
        unit=formula.unit,
        window=window,
        since=utc(since),
        until=utc(until),
        numerator=numerator,
        denominator=denominator,
        value=_ratio(numerator, denominator),
        link=MetricLinks(
            numerator=link("numerator") or {}, denominator=link("denominator"), rest=link("rest")
        ),
    )


def _sums(tallies: Iterable[TallyCount]) -> Sums:
    return [Sum(*read_tally(row.tally), row.times, row.cost) for row in tallies]


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


# --- Prometheus -----------------------------------------------------------------------------------

_ESCAPES: Final = {"\\": r"\\", '"': r"\"", "\n": r"\n"}


def prometheus(metrics: Sequence[tuple[str, Sequence[MetricRow]]]) -> str:
    """Return metrics of several tenants in Prometheus' text format.

    `metrics` are pairs of a tenant and its rows. A metric without a value has lines for its
    numerator and denominator only.
    """
    return "".join(f"{line}\n" for line in _lines(metrics))


def _lines(metrics: Sequence[tuple[str, Sequence[MetricRow]]]) -> Iterator[str]:
    for name, formula in METRICS.items():
        rows = [
            (tenant, row)
            for tenant, tenant_rows in metrics
            for row in tenant_rows
            if row.name == name
        ]
        for suffix, part, help_text in (
            ("", "value", f"{formula.words}: {formula.meaning}"),
            ("_numerator", "numerator", f"The numerator of {name}."),
            ("_denominator", "denominator", f"The denominator of {name}."),
        ):
            samples = [
                (tenant, row.window, value)
                for tenant, row in rows
                if (value := getattr(row, part)) is not None
            ]
            if not samples:
                continue
            yield f"# HELP counterseal_{name}{suffix} {help_text}"
            yield f"# TYPE counterseal_{name}{suffix} gauge"
            for tenant, window, value in samples:
                labels = f'tenant="{_label(tenant)}",window="{_label(window)}"'
                yield f"counterseal_{name}{suffix}{{{labels}}} {value:.17g}"


def _label(text: str) -> str:
    """Escape a label's value, so that a tenant's name cannot end the label or the line."""
    shown = "".join(_ESCAPES.get(char, char if char.isprintable() else "\ufffd") for char in text)
    return shown.encode(errors="replace").decode()
