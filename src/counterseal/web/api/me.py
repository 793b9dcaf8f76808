"""The route for the caller's own identity."""

from __future__ import annotations

from fastapi import APIRouter

from counterseal.views import Me
from counterseal.web.api.dependencies import Caller

router = APIRouter()


@router.get("/v1/me", tags=["me"])
async def show_me(caller: Caller) -> Me:
    """Show the caller's own identity."""
    principal, person = caller.principal, caller.person
    return Me(
        kind="person" if principal is None else "agent",
        tenant=person.tenant,
        agent=None if principal is None else principal.agent,
        user=person.name if principal is None else principal.user,
        roles=sorted(person.roles if principal is None else principal.roles),
        scopes=[] if principal is None else sorted(principal.scopes),
        everywhere=sorted(person.everywhere),
    )
