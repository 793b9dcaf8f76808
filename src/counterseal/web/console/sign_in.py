"""Signing in and out, and changing the tenant."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response
from starlette.routing import Route

from counterseal.accounts import RefusalReason, SignInRefused
from counterseal.views.base import NotFoundError
from counterseal.web.console.page_request import ConsoleState, PageRequest
from counterseal.web.identity import drop_session_cookie, safe_next, set_session_cookie
from counterseal.web.problems import RequestProblemError

_STATUS: Final = {RefusalReason.WRONG: 403, RefusalReason.LOCKED: 429, RefusalReason.BUSY: 503}
_MAX_LENGTH: Final = 4096
"""Characters of a name or a password."""


def routes(state: ConsoleState) -> list[Route]:
    """Return the pages for signing in and out."""
    return [
        state.get("/sign-in", show, open_to_all=True),
        state.post("/sign-in", sign_in, open_to_all=True),
        state.post("/sign-out", sign_out),
        state.post("/tenant", change_tenant),
    ]


async def show(request: PageRequest) -> Response:
    """Show the form; go on if the person is signed in."""
    then = safe_next(request.parameter("next"))
    if request.session is not None:
        return request.redirect(then)
    return await _form(request, then)


async def sign_in(request: PageRequest) -> Response:
    """Start a new session, and end the browser's earlier one."""
    then, name = safe_next(request.form_value("next")), request.form_value("name")
    password = request.form.get("password", "")
    if len(name) > _MAX_LENGTH or len(password) > _MAX_LENGTH:
        detail = f"Name and password have at most {_MAX_LENGTH} characters."
        raise RequestProblemError("too-large", detail)
    client = request.http.client
    people = request.state.people
    answer = await people.sign_in(name, password, source=client.host if client else "")
    if isinstance(answer, SignInRefused):
        return await _form(request, then, name=name, refused=answer)
    if request.session is not None:
        await people.sessions.end(request.session)
    secret, request.session = answer
    response = request.redirect(then)
    set_session_cookie(response, secret, https=request.state.https)
    return response


async def sign_out(request: PageRequest) -> Response:
    """End this session, or all sessions of the person."""
    people = request.state.people
    if request.session is not None:
        if request.form_value("everywhere"):
            await people.sign_out_everywhere(request.session)
        await people.sessions.end(request.session)
    response = request.redirect("/sign-in")
    drop_session_cookie(response, https=request.state.https)
    return response


async def change_tenant(request: PageRequest) -> Response:
    """Continue in another tenant, if the person has a role there."""
    session, people = request.session, request.state.people
    tenant = request.form_value("tenant")
    if session is None or tenant not in await people.tenants(session.user):
        raise NotFoundError("tenant")
    secret, request.session = await people.sessions.switch(session, tenant)
    response = request.redirect("/")
    set_session_cookie(response, secret, https=request.state.https)
    return response


async def _form(
    request: PageRequest, then: str, *, name: str = "", refused: SignInRefused | None = None
) -> Response:
    response = await request.render(
        "sign_in.html",
        title="Sign in",
        status=200 if refused is None else _STATUS[refused.reason],
        then=then,
        name=name,
        refused=refused.message if refused else "",
        ended=refused is None and then != "/",
    )
    if refused is not None and refused.wait > 0:
        response.headers["Retry-After"] = str(max(1, round(refused.wait)))
    return response
