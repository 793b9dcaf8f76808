"""The numbers by which one sees whether contracts work."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from counterseal.web.api.asking import Seat, answer
from counterseal.web.api.shapes import record as shapes
from counterseal.web.api.shapes.base import Items
from counterseal.web.api.tools import Window

__all__ = ["router"]

router = APIRouter(tags=["metrics"])


@router.get("/v1/metrics", response_model=Items[shapes.Metric])
async def list_metrics(desk: Seat, window: Window = "24h") -> Response:
    """All of them over a window that ends now."""
    return answer({"items": [one.record() for one in await desk.metrics(window)]})


@router.get("/v1/metrics/{metric}/series", response_model=shapes.Series)
async def metric_series(
    desk: Seat,
    metric: str,
    window: Window = "24h",
    buckets: Annotated[int, Query(ge=1, le=500)] = 24,
) -> Response:
    """One of them, for each of so many equal parts of the window."""
    values = await desk.series(metric, window, buckets)
    return answer({"metric": metric, "window": window, "values": values})
