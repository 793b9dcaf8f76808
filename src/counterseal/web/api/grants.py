"""Grants: who may use what in this tenant."""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from counterseal.canonical import canonical
from counterseal.registry import Grant
from counterseal.views import NotThere
from counterseal.web.api.asking import Seat, Sought, answer
from counterseal.web.api.shapes import tools as shapes
from counterseal.web.api.shapes.base import Items, Reason

__all__ = ["grant_record", "router"]

router = APIRouter(tags=["grants"])


def grant_record(grant: Grant) -> dict[str, Any]:
    """A grant with an id: two that say the same are the same."""
    told = grant.export()
    return {"id": f"grant_{sha256(canonical(told)).hexdigest()[:24]}", **told}


@router.get("/v1/grants", response_model=Items[shapes.Grant])
async def list_grants(desk: Seat, tool: Sought = None, agent: Sought = None) -> Response:
    """Those that count in this tenant."""
    return answer({"items": [grant_record(one) for one in desk.grants(tool=tool, agent=agent)]})


@router.post("/v1/grants", response_model=shapes.Grant, status_code=201)
async def give_grant(desk: Seat, given: shapes.GrantGiven) -> Response:
    """Let an agent use a tool. Takes the role operator."""
    grant = Grant(
        tenant=None if given.everywhere else desk.tenant,
        **given.model_dump(exclude={"everywhere", "reason"}),
    )
    await desk.grant(grant, reason=given.reason)
    return answer(grant_record(grant), 201)


@router.delete("/v1/grants/{grant_id}", response_model=shapes.Change)
async def revoke_grant(desk: Seat, grant_id: str, reason: Annotated[Reason, Query()]) -> Response:
    """Take a grant back. Takes the role operator."""
    found = next((one for one in desk.grants() if grant_record(one)["id"] == grant_id), None)
    if found is None:
        raise NotThere("grant")
    return answer((await desk.revoke(found, reason=reason)).export())
