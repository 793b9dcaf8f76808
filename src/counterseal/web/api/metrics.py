"""Routes for metrics."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from counterseal.views.base import Items
from counterseal.views.metrics import MetricRow, MetricSeries
from counterseal.web.api.dependencies import ForPeople, Window

router = APIRouter()


@router.get("/v1/metrics", tags=["metrics"])
async def list_metrics(view: ForPeople, window: Window = "24h") -> Items[MetricRow]:
    """List all metrics over a window that ends now."""
    return Items[MetricRow](items=await view.metrics.rows(window))


@router.get("/v1/metrics/{metric}/series", tags=["metrics"])
async def metric_series(
    view: ForPeople,
    metric: str,
    window: Window = "24h",
    buckets: Annotated[int, Query(ge=1, le=500)] = 24,
) -> MetricSeries:
    """Show one metric over time."""
    return await view.metrics.series(metric, window, buckets)
