"""The twenty numbers, and the handful of them that an operator watches, over time."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response
from starlette.routing import Route

from counterseal.views import MetricRow
from counterseal.views.base import WINDOWS
from counterseal.views.formulas import PARTS
from counterseal.web.console.charts import BUCKETS, amount, chart, whole
from counterseal.web.console.problems import understood
from counterseal.web.console.rendering import address
from counterseal.web.console.visit import House, Visit

__all__ = ["routes"]

_USUAL: Final = "24h"
_SOME: Final = 24
_WATCHED: Final = (
    "schema_valid_call_rate",
    "validation_failure_rate",
    "unauthorized_proposal_rate",
    "confirmation_required_rate",
    "retry_success_rate",
    "tool_cost_per_successful_action",
)


def routes(house: House) -> list[Route]:
    """One page."""
    return [house.get("/overview", show)]


async def show(visit: Visit) -> Response:
    """All of them over one window, which the URL says."""
    window = visit.asked("window") or _USUAL
    with understood():
        metrics = await visit.view.metrics.rows(window)
    return await visit.render(
        "overview.html",
        title="Overview",
        shows=address("v1", "metrics", window=window),
        window=window,
        windows=WINDOWS,
        since=metrics[0].since.timestamp(),
        until=metrics[0].until.timestamp(),
        watched=[await _drawn(visit, one) for one in metrics if one.name in _WATCHED],
        metrics=[_told(one) for one in metrics],
        counted=any(one.denominator for one in metrics),
    )


async def _drawn(visit: Visit, metric: MetricRow) -> dict[str, Any]:
    buckets = BUCKETS.get(metric.window, _SOME)
    series = await visit.view.metrics.series(metric.name, metric.window, buckets)
    since, until = metric.since.timestamp(), metric.until.timestamp()
    return {**_told(metric), "chart": chart(series.values, since, until, metric.unit)}


def _told(metric: MetricRow) -> dict[str, Any]:
    return {
        "name": metric.name,
        "title": metric.title,
        "meaning": metric.meaning,
        "formula": metric.formula,
        "value": amount(metric.value, metric.unit),
        "numerator": whole(metric.numerator),
        "denominator": whole(metric.denominator),
        "window": metric.window,
        "links": {part: _link(metric, part) for part in PARTS},
        "left": whole(metric.denominator - metric.numerator),
    }


def _link(metric: MetricRow, part: str) -> str | None:
    """What is behind a part of the number; None where no list is just that."""
    query: dict[str, str] | None = getattr(metric.link, part)
    return None if query is None else address("calls", **query)
