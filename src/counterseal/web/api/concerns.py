"""The operator's list: what no machine will settle, and what a person says about it."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from starlette.responses import Response

from counterseal.web.api.asking import Asked, Cursor, Limit, Seat, opened, page
from counterseal.web.api.shapes import record as shapes
from counterseal.web.api.shapes.base import Page

__all__ = ["router"]

router = APIRouter(tags=["concerns"])

Kind = Literal["unknown", "verify", "compensate", "execute", "notify"]
Action = Literal["happened", "did_not_happen", "again", "compensate", "dismiss"]


@router.get("/v1/concerns", response_model=Page[shapes.ConcernRow])
async def list_concerns(
    desk: Seat, exchange: Asked, cursor: Cursor = None, limit: Limit = 50
) -> Response:
    """What waits for a person, oldest first."""
    place = opened(exchange, "concerns", cursor)
    return page(exchange, "concerns", await desk.concerns(limit=limit, cursor=place))


@router.post("/v1/concerns/{kind}/{key:path}/{action}", status_code=204)
async def act_on_concern(
    desk: Seat, kind: Kind, key: str, action: Action, given: shapes.Act
) -> Response:
    """Do something about one, as its `actions` say. Takes the role operator."""
    await desk.act(kind, key, action, reason=given.reason, data=given.data)
    return Response(status_code=204)
