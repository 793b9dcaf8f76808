"""The kill switch: what it would stop, why, and the way back. Nothing is stopped unseen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from starlette.responses import Response
from starlette.routing import Route

from counterseal.accounts import Role
from counterseal.contract.effects import EFFECTS, Effect
from counterseal.errors import RegistryError
from counterseal.views import RoleRequiredError
from counterseal.views.tools import StoppedTool
from counterseal.web.console.rendering import address
from counterseal.web.console.visit import House, Visit

__all__ = ["routes"]

_EVERYTHING: Final = "everything"
_DONE: Final = {"stopped": "It is stopped.", "restored": "It is restored."}


class Scope(NamedTuple):
    """What is to be stopped: a tool, an effect, or with neither everything."""

    tool: str | None = None
    effect: str | None = None
    everything: bool = False

    def __bool__(self) -> bool:
        return bool(self.tool or self.effect or self.everything)


def routes(house: House) -> list[Route]:
    """The switch."""
    return [
        house.get("/kill", show),
        house.post("/kill", stop),
        house.post("/kill/restore", restore),
        house.get("/kill/restore", back),
    ]


async def show(visit: Visit) -> Response:
    """What is stopped now; and what a kill would stop, where one is chosen."""
    scope = Scope(visit.asked("tool"), visit.asked("effect"), visit.asked("scope") == _EVERYTHING)
    return await _page(visit, scope)


async def _page(visit: Visit, scope: Scope, error: str = "", status: int = 200) -> Response:
    view, may = visit.view, visit.person.may(Role.OPERATOR)
    refusal = "" if may else str(RoleRequiredError(Role.OPERATOR))
    stopped: list[tuple[str, list[str]]] = []
    if scope and may:
        stopped = _by_name(await view.tools.preview_kill(tool=scope.tool, effect=scope.effect))
        refusal = _refusal(visit, scope)
    return await visit.render(
        "kill.html",
        title="Kill switch",
        path="/tools",
        shows=address("v1", "kills"),
        status=status,
        scope=scope,
        stopped=stopped,
        refusal=refusal,
        may=may,
        effects=[(one.value, EFFECTS[one].disclosure) for one in Effect],
        names=[row.name for row in view.tools.rows() if row.version],
        error=error,
        form=visit.form,
        everything=_EVERYTHING,
        done=_DONE.get(visit.asked("done") or "", ""),
    )


def _by_name(records: Sequence[StoppedTool]) -> list[tuple[str, list[str]]]:
    """Each tool once, with its versions."""
    found: dict[str, list[str]] = {}
    for record in records:
        found.setdefault(record.tool, []).append(record.version)
    return sorted(found.items())


def _refusal(visit: Visit, scope: Scope) -> str:
    """Why this person can't stop it; empty where they can."""
    if visit.person.may_everywhere(Role.OPERATOR):
        return ""
    if scope.tool is not None and visit.view.tools.page(scope.tool).may_operate:
        return ""
    return str(RoleRequiredError(Role.OPERATOR, everywhere=True))


async def stop(visit: Visit) -> Response:
    """Pull it."""
    everything = visit.said("scope") == _EVERYTHING
    scope = Scope(visit.said("tool") or None, visit.said("effect") or None, everything)
    if not scope:
        return await _page(visit, scope, "Choose what to stop.", 422)
    try:
        await visit.view.tools.kill(
            tool=scope.tool, effect=scope.effect, reason=visit.said("reason")
        )
    except RegistryError as error:
        return await _page(visit, scope, str(error), 422)
    return visit.go(address("kill", done="stopped"))


async def restore(visit: Visit) -> Response:
    """Undo one."""
    try:
        await visit.view.tools.restore(visit.said("kill"), reason=visit.said("reason"))
    except RegistryError as error:
        return await _page(visit, Scope(), str(error), 422)
    return visit.go(address("kill", done="restored"))


async def back(visit: Visit) -> Response:
    """Whoever reloads a form that was wrong gets the page that it is on."""
    return visit.go("/kill")
