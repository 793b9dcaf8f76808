"""A number over time as columns. The template draws them; here is where each one stands. Pure.

The drawing is a square of 0 to 100 both ways that is stretched to its place; words stand around it
as text. A part of the window without a value has no column; one whose value is nothing has a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from math import floor, log10
from typing import Final, NamedTuple

from counterseal.approvals.display import clock

__all__ = ["BUCKETS", "Chart", "Column", "amount", "chart", "whole"]

BUCKETS: Final = {"15m": 15, "1h": 20, "6h": 24, "24h": 24, "7d": 28, "30d": 30}
"""Into how many parts a window is cut."""
_SIDE: Final = 100.0
_GAP: Final = 0.2
"""Of a column's room."""
_LOWEST: Final = 1.5
"""What nothing is drawn as, so that it differs from not known."""


class Column(NamedTuple):
    """One part of the window. `height` None: nothing is known of it."""

    x: float
    y: float
    width: float
    height: float | None
    begin: float
    said: str
    """Its value, in words."""


class Chart(NamedTuple):
    columns: tuple[Column, ...]
    top: str
    """What the upper edge stands for."""
    begin: str
    end: str
    """When it begins and ends, in few words."""
    summary: str
    """For whoever does not see it."""


def whole(number: float) -> str:
    """A count; of what is no whole number, two places."""
    return f"{number:,.0f}" if number == floor(number) else f"{number:,.2f}"


def amount(value: float | None, unit: str) -> str:
    """A metric's value for people. What is not all is never shown as all, nor some as none."""
    if value is None:
        return "—"
    if unit != "ratio":
        return f"{value:,.4f}".rstrip("0").rstrip(".") if value < 1 else f"{value:,.2f}"
    percent = round(value * 100, 6)
    if percent == floor(percent):
        return f"{percent:,.0f} %"
    return f"{min(max(percent, 0.1), 99.9) if value < 1 else percent:,.1f} %"


def chart(values: Sequence[float | None], since: float, until: float, unit: str) -> Chart:
    """The values of equal parts of the window, oldest first."""
    top = _ceiling(max((value for value in values if value is not None), default=0.0), unit)
    parts = max(1, len(values))
    room, length = _SIDE / parts, (until - since) / parts
    columns = []
    for number, value in enumerate(values):
        height = None if value is None else max(_LOWEST, round(value / top * _SIDE, 2))
        column = Column(
            x=round((number + _GAP / 2) * room, 2),
            y=round(_SIDE - (height or 0), 2),
            width=round(room * (1 - _GAP), 2),
            height=height,
            begin=since + number * length,
            said=amount(value, unit),
        )
        columns.append(column)
    return Chart(
        columns=tuple(columns),
        top=amount(top, unit),
        begin=_short(since),
        end=_short(until),
        summary=_summary(values, since, until, unit),
    )


def _ceiling(highest: float, unit: str) -> float:
    """The next round number: 1, 2 or 5 times a power of ten. A share is at most the whole."""
    if highest <= 0:
        return 1.0
    power = 10.0 ** max(-300, floor(log10(highest)))  # what is next to nothing has no power
    found = next(step * power for step in (1, 2, 5, 10) if highest <= step * power * 1.000001)
    return min(1.0, found) if unit == "ratio" and highest <= 1 else found


def _short(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%d %b %H:%M}"


def _summary(values: Sequence[float | None], since: float, until: float, unit: str) -> str:
    known = [value for value in values if value is not None]
    time = f"{clock(since)} to {clock(until)}"
    if not known:
        return f"{time}: nothing to count."
    low, high, last = (amount(one, unit) for one in (min(known), max(known), known[-1]))
    return f"{time}: between {low} and {high}, {last} at the end."
