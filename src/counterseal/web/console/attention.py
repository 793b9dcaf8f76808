"""The page "Needs attention": what only a person can settle, and the buttons for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response
from starlette.routing import Route

from counterseal.accounts import Role
from counterseal.errors import CountersealError, StoreError
from counterseal.views.base import NotFoundError, RoleRequiredError
from counterseal.web.console.page_request import ConsoleState, PageRequest
from counterseal.web.console.rendering import WORDS, address

_WORDS: Final = WORDS["attention"]


def routes(state: ConsoleState) -> list[Route]:
    """Return the list, and its form."""
    return [state.get("/operator", show), state.post("/operator", act)]


async def show(request: PageRequest, error: str = "", status: int = 200) -> Response:
    """Show what waits for a person, oldest first."""
    cursor = request.parameter("cursor")
    page = await request.view.attention.rows(cursor=cursor)
    return await request.render(
        "attention.html",
        title="Needs attention",
        shows=address("v1", "concerns"),
        status=status,
        rows=page.items,
        kinds=_WORDS["kinds"],
        actions=_WORDS["actions"],
        more=None if page.next is None else address("operator", cursor=page.next),
        further=cursor is not None,
        may=request.person.may(Role.OPERATOR),
        error=error,
        form=request.form,
        done=_WORDS["actions"].get(request.parameter("done"), ("", "", ""))[2],
    )


async def act(request: PageRequest) -> Response:
    """Carry out the chosen action; or show the list again with what was wrong."""
    action = request.form_value("action")
    try:
        await request.view.attention.act(
            request.form.get("kind", ""),
            request.form.get("key", ""),
            action,
            reason=request.form_value("reason"),
            data=_data(request.form_value("data")) if action == "happened" else None,
        )
    except ValueError as error:
        return await show(request, str(error), 422)
    except (NotFoundError, RoleRequiredError, StoreError):
        raise
    except CountersealError as error:
        return await show(request, str(error), 409)
    return request.redirect(address("operator", done=action))


def _data(text: str) -> Mapping[str, Any] | None:
    """Return the call's result, as far as the person knows it. Raises ValueError."""
    if not text:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError('data: expected a JSON object such as {"id": 7}; or leave it empty')
    return value
