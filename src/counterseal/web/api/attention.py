"""Routes for what needs attention. On the wire the list is called `concerns`."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from counterseal.views import AttentionRow, Page
from counterseal.views.base import JsonObject
from counterseal.web.api.dependencies import (
    Cursor,
    ForPeople,
    Limit,
    Reason,
    Requested,
    open_cursor,
    sealed,
)
from counterseal.web.api.problems import RequestBody

router = APIRouter(tags=["concerns"])

Kind = Literal["unknown", "verify", "compensate", "execute", "notify"]
Act = Literal["happened", "did_not_happen", "again", "compensate", "dismiss"]


class AttentionBody(RequestBody):
    """An operator's reason, and the result of a call that happened."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"reason": "the bank says that it was paid"}]}
    )

    reason: Reason
    data: JsonObject | None = Field(None, description="The call's result, for `happened`.")


@router.get("/v1/concerns")
async def list_concerns(
    view: ForPeople, context: Requested, cursor: Cursor = None, limit: Limit = 50
) -> Page[AttentionRow]:
    """List what waits for a person, oldest first."""
    position = open_cursor(context, "concerns", cursor)
    return sealed(context, "concerns", await view.attention.rows(limit=limit, cursor=position))


@router.post("/v1/concerns/{kind}/{key:path}/{action}", status_code=204)
async def act_on_concern(
    view: ForPeople, kind: Kind, key: str, action: Act, body: AttentionBody
) -> None:
    """Carry out one of an item's `actions`. Requires the role operator."""
    await view.attention.act(kind, key, action, reason=body.reason, data=body.data)
