"""Who asks."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from counterseal.web.api.asking import Asked, answer
from counterseal.web.api.callers import Agent, Human
from counterseal.web.api.problems import ProblemError
from counterseal.web.api.shapes.record import Me

__all__ = ["router"]

router = APIRouter(tags=["me"])


@router.get("/v1/me", response_model=Me)
async def show_me(exchange: Asked) -> Response:
    """Who this server takes you for."""
    caller = exchange.caller
    if isinstance(caller, Agent):
        who = caller.principal
        return answer(_me("agent", who.tenant, who.agent, who.user, who.roles, who.scopes))
    if isinstance(caller, Human):
        person = caller.person
        told = _me("person", person.tenant, None, person.name, person.roles, ())
        return answer({**told, "everywhere": sorted(person.everywhere)})
    raise ProblemError("unauthenticated", "Who asks is not known.")


def _me(
    kind: str,
    tenant: str,
    agent: str | None,
    user: str | None,
    roles: frozenset[str],
    scopes: frozenset[str] | tuple[()],
) -> dict[str, object]:
    return {
        "kind": kind,
        "tenant": tenant,
        "agent": agent,
        "user": user,
        "roles": sorted(roles),
        "scopes": sorted(scopes),
        "everywhere": [],
    }
