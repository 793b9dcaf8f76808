"""The operator's list: what no machine will settle, and the buttons that do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response
from starlette.routing import Route

from counterseal.accounts import Role
from counterseal.errors import CountersealError, StoreError
from counterseal.views import AttentionRow, NotFoundError, RoleRequiredError
from counterseal.web.console.problems import understood
from counterseal.web.console.rendering import address
from counterseal.web.console.visit import House, Visit

__all__ = ["routes"]

_KINDS: Final = {
    "unknown": (
        "Nobody knows whether it happened",
        "The call was sent and no answer came. Look at the destination, then say what you found.",
    ),
    "verify": (
        "It did not take effect as expected",
        "The call succeeded, but what was looked at afterwards is not as it should be.",
    ),
    "compensate": (
        "Its reversal failed",
        "What the call did was to be reversed, and that did not work. It still stands.",
    ),
    "execute": (
        "It was approved and could not be carried out",
        "People approved the call, and carrying it out failed.",
    ),
    "notify": ("Nobody could be told", "A message about the call could not be delivered."),
}
_ACTIONS: Final = {
    "happened": ("It happened", "Whoever asks again is told that it succeeded. Nothing is sent."),
    "did_not_happen": (
        "It did not happen",
        "Its key is free again, and so is its approval: the agent may make the call anew.",
    ),
    "compensate": ("Reverse it", "What it did is reversed, through the same gates as any call."),
    "again": ("Try again", "What failed is tried once more."),
    "dismiss": ("Dismiss", "It is taken off the list: somebody has seen to it."),
}
_DONE: Final = {
    "happened": "It is on record as done.",
    "did_not_happen": "It is on record as not done.",
    "compensate": "Its reversal has been asked for.",
    "again": "It will be tried again.",
    "dismiss": "It is off the list.",
}
"""What the page says afterwards, by what the URL says."""


def routes(house: House) -> list[Route]:
    """The list, and its one form."""
    return [house.get("/operator", show), house.post("/operator", act)]


async def show(visit: Visit) -> Response:
    """What waits for a person, oldest first."""
    return await _page(visit)


async def _page(visit: Visit, error: str = "", status: int = 200) -> Response:
    cursor = visit.asked("cursor")
    with understood():
        page = await visit.view.attention.rows(cursor=cursor)
    return await visit.render(
        "operator.html",
        title="Operator's list",
        shows=address("v1", "concerns"),
        status=status,
        rows=[_told(row) for row in page.items],
        more=None if page.next is None else address("operator", cursor=page.next),
        further=cursor is not None,
        may=visit.person.may(Role.OPERATOR),
        error=error,
        form=visit.form,
        done=_DONE.get(visit.asked("done") or "", ""),
    )


def _told(row: AttentionRow) -> dict[str, Any]:
    title, meaning = _KINDS.get(row.kind, (row.kind, ""))
    actions = [(name, *_ACTIONS.get(name, (name, ""))) for name in row.actions]
    return {"row": row, "title": title, "meaning": meaning, "actions": actions}


async def act(visit: Visit) -> Response:
    """Do what was chosen; or the list again, with what was wrong."""
    action = visit.said("action")
    try:
        await visit.view.attention.act(
            visit.form.get("kind", ""),
            visit.form.get("key", ""),
            action,
            reason=visit.said("reason"),
            data=_data(visit.said("data")) if action == "happened" else None,
        )
    except ValueError as error:
        return await _page(visit, str(error), 422)
    except (NotFoundError, RoleRequiredError, StoreError):
        raise
    except CountersealError as error:
        return await _page(visit, str(error), 409)
    return visit.go(address("operator", done=action))


def _data(text: str) -> Mapping[str, Any] | None:
    """What the call returned, as far as the person knows it."""
    if not text:
        return None
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise ValueError('data: write a JSON object, such as {"id": 7}, or leave it out')
    return read
