"""The overview: all metrics over a window, and the most important ones over time as charts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from math import floor, log10
from typing import Final, NamedTuple

from starlette.responses import Response
from starlette.routing import Route

from counterseal.approvals.display import clock
from counterseal.views.base import WINDOWS
from counterseal.web.console.page_request import ConsoleState, PageRequest
from counterseal.web.console.rendering import address

_DEFAULT_WINDOW: Final = "24h"
_BUCKETS: Final = {"15m": 15, "1h": 20, "6h": 24, "24h": 24, "7d": 28, "30d": 30}
"""The number of columns for each window."""
_DEFAULT_BUCKETS: Final = 24
_CHARTED: Final = (
    *("schema_valid_call_rate", "validation_failure_rate", "unauthorized_proposal_rate"),
    *("confirmation_required_rate", "retry_success_rate", "tool_cost_per_successful_action"),
)


def routes(state: ConsoleState) -> list[Route]:
    """Return the one page."""
    return [state.get("/overview", show)]


async def show(request: PageRequest) -> Response:
    """Show all metrics over the window that the URL names."""
    window = request.parameter("window") or _DEFAULT_WINDOW
    metrics = await request.view.metrics.rows(window)
    since, until = metrics[0].since, metrics[0].until
    buckets, charted = _BUCKETS.get(window, _DEFAULT_BUCKETS), []
    for row in metrics:
        if row.name in _CHARTED:
            series = await request.view.metrics.series(row.name, window, buckets)
            drawing = chart(series.values, since.timestamp(), until.timestamp(), row.unit)
            charted.append((row, drawing))
    return await request.render(
        "overview.html",
        title="Overview",
        shows=address("v1", "metrics", window=window),
        window=window,
        windows=WINDOWS,
        since=since,
        until=until,
        charted=charted,
        metrics=metrics,
        counted=any(row.denominator for row in metrics),
        amount=amount,
        count=count,
    )


# --- charts ---------------------------------------------------------------------------------------
# A drawing is 100 wide and 100 high, and is stretched to its place; texts stand around it. A part
# of the window without a value has no column, one whose value is 0 has a line.

_SIDE: Final = 100.0
_GAP: Final = 0.2
"""Share of a column's room."""
_MIN_HEIGHT: Final = 1.5
"""The height of 0, so that it differs from no value."""


class ChartColumn(NamedTuple):
    """One part of the window. `height` is None where there is no value."""

    x: float
    y: float
    width: float
    height: float | None
    begin: float
    text: str


class Chart(NamedTuple):
    """The columns, and the texts around them."""

    columns: tuple[ChartColumn, ...]
    top: str
    """The value at the upper edge."""
    begin: str
    end: str
    summary: str
    """For screen readers."""


def count(number: float) -> str:
    """Return a count; a fraction with two decimals."""
    return f"{number:,.0f}" if number == floor(number) else f"{number:,.2f}"


def amount(value: float | None, unit: str) -> str:
    """Return a metric's value. Only exactly 0 and 100 % are shown as such."""
    if value is None:
        return "—"
    if unit != "ratio":
        return f"{value:,.4f}".rstrip("0").rstrip(".") if value < 1 else f"{value:,.2f}"
    percent = round(value * 100, 6)
    if percent == floor(percent):
        return f"{percent:,.0f} %"
    return f"{min(max(percent, 0.1), 99.9) if value < 1 else percent:,.1f} %"


def chart(values: Sequence[float | None], since: float, until: float, unit: str) -> Chart:
    """Return the chart of the values of a window's equal parts, oldest first."""
    top = _ceiling(max((value for value in values if value is not None), default=0.0), unit)
    parts = max(1, len(values))
    room, length = _SIDE / parts, (until - since) / parts
    columns = []
    for number, value in enumerate(values):
        height = None if value is None else max(_MIN_HEIGHT, round(value / top * _SIDE, 2))
        column = ChartColumn(
            x=round((number + _GAP / 2) * room, 2),
            y=round(_SIDE - (height or 0), 2),
            width=round(room * (1 - _GAP), 2),
            height=height,
            begin=since + number * length,
            text=amount(value, unit),
        )
        columns.append(column)
    return Chart(
        columns=tuple(columns),
        top=amount(top, unit),
        begin=f"{datetime.fromtimestamp(since, UTC):%d %b %H:%M}",
        end=f"{datetime.fromtimestamp(until, UTC):%d %b %H:%M}",
        summary=_summary(values, since, until, unit),
    )


def _ceiling(highest: float, unit: str) -> float:
    """Return the next 1, 2 or 5 times a power of ten; for a ratio at most 1."""
    if highest <= 0:
        return 1.0
    power = 10.0 ** max(-300, floor(log10(highest)))  # smaller numbers have no such power
    ceiling = next(step * power for step in (1, 2, 5, 10) if highest <= step * power * 1.000001)
    return min(1.0, ceiling) if unit == "ratio" and highest <= 1 else ceiling


def _summary(values: Sequence[float | None], since: float, until: float, unit: str) -> str:
    known = [value for value in values if value is not None]
    window = f"{clock(since)} to {clock(until)}"
    if not known:
        return f"{window}: nothing to count."
    low, high, last = (amount(value, unit) for value in (min(known), max(known), known[-1]))
    return f"{window}: between {low} and {high}, {last} at the end."
