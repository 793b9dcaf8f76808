"""The kill switch: what is stopped, what another pull would stop, and the way back."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from counterseal.registry import RegistryRecord
from counterseal.web.api.asking import Seat, answer
from counterseal.web.api.shapes import tools as shapes
from counterseal.web.api.shapes.base import Items, Reason

__all__ = ["router"]

router = APIRouter(tags=["kills"])


@router.get("/v1/kills", response_model=Items[shapes.Kill])
async def list_kills(desk: Seat) -> Response:
    """What is stopped here."""
    return answer({"items": [kill.export() for kill in desk.kills()]})


@router.post("/v1/kills/preview", response_model=Items[shapes.Stopped])
async def preview_kill(desk: Seat, given: shapes.KillScope) -> Response:
    """What such a kill would stop that runs now. Takes the role operator."""
    found = await desk.preview_kill(tool=given.tool, effect=given.effect)
    return answer({"items": [_stopped(record) for record in found]})


def _stopped(record: RegistryRecord) -> dict[str, Any]:
    told = record.export()
    return {name: told[name] for name in ("tool", "version", "effect", "risk_class")}


@router.post("/v1/kills", response_model=shapes.Kill, status_code=201)
async def kill(desk: Seat, given: shapes.KillGiven) -> Response:
    """Stop a tool, every tool of an effect, or everything. Takes the role operator."""
    made = await desk.kill(tool=given.tool, effect=given.effect, reason=given.reason)
    return answer(made.export(), 201)


@router.delete("/v1/kills/{kill_id}", response_model=shapes.Change)
async def restore(desk: Seat, kill_id: str, reason: Annotated[Reason, Query()]) -> Response:
    """Undo one kill. Takes the role operator."""
    return answer((await desk.restore(kill_id, reason=reason)).export())
