"""Signing in and out, and changing the tenant."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response
from starlette.routing import Route

from counterseal.accounts import RefusalReason, SignInRefused
from counterseal.web.browser import drop_session_cookie, safe_next, set_session_cookie
from counterseal.web.console.problems import Problem
from counterseal.web.console.visit import House, Visit

__all__ = ["routes"]

_STATUS: Final = {RefusalReason.WRONG: 403, RefusalReason.LOCKED: 429, RefusalReason.BUSY: 503}
_LONGEST: Final = 4096
"""Of a name or a password that is looked at."""


def routes(house: House) -> list[Route]:
    """What stands at the door."""
    return [
        house.open_get("/sign-in", show),
        house.open_post("/sign-in", sign_in),
        house.post("/sign-out", sign_out),
        house.post("/tenant", change_tenant),
    ]


async def show(visit: Visit) -> Response:
    """The form; whoever is signed in goes on."""
    then = safe_next(visit.asked("next"))
    if visit.session is not None:
        return visit.go(then)
    return await _form(visit, then)


async def sign_in(visit: Visit) -> Response:
    """A new session, whatever the browser had before."""
    then, name = safe_next(visit.said("next")), visit.said("name")
    password = visit.form.get("password", "")
    if len(name) > _LONGEST or len(password) > _LONGEST:
        raise Problem(413, "No name and no password is that long.")
    client = visit.request.client
    people = visit.house.people
    found = await people.sign_in(name, password, source=client.host if client else "")
    if isinstance(found, SignInRefused):
        return await _form(visit, then, name=name, refused=found)
    if visit.session is not None:
        await people.sign_out(visit.session)
    secret, visit.session = found
    answer = visit.go(then)
    set_session_cookie(answer, secret, https=visit.house.https)
    return answer


async def sign_out(visit: Visit) -> Response:
    """End this session, or all that the person has."""
    people = visit.house.people
    if visit.session is not None:
        if visit.said("everywhere"):
            await people.sign_out_everywhere(visit.session)
        await people.sign_out(visit.session)
    answer = visit.go("/sign-in")
    drop_session_cookie(answer, https=visit.house.https)
    return answer


async def change_tenant(visit: Visit) -> Response:
    """Go on in another tenant. One without a role there is told what a stranger is."""
    session, people = visit.session, visit.house.people
    tenant = visit.said("tenant")
    if session is None or tenant not in await people.tenants(session.user):
        raise Problem(404, "There is no such tenant.")
    secret, visit.session = await people.sessions.switch(session, tenant)
    answer = visit.go("/")
    set_session_cookie(answer, secret, https=visit.house.https)
    return answer


async def _form(
    visit: Visit, then: str, *, name: str = "", refused: SignInRefused | None = None
) -> Response:
    answer = await visit.render(
        "sign_in.html",
        title="Sign in",
        status=200 if refused is None else _STATUS[refused.reason],
        then=then,
        name=name,
        refused=refused.message if refused else "",
        ended=refused is None and then != "/",
    )
    if refused is not None and refused.wait > 0:
        answer.headers["Retry-After"] = str(max(1, round(refused.wait)))
    return answer
