"""Tools: the registry, and one tool's card with all that operators can do about it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from starlette.responses import Response
from starlette.routing import Route

from counterseal.accounts import Role
from counterseal.contract.effects import Effect, RiskClass
from counterseal.errors import CountersealError, GrantError, RegistryError, StoreError
from counterseal.registry import Grant
from counterseal.registry.grants import Mode
from counterseal.views import (
    CallSearch,
    GrantRow,
    NotFoundError,
    RoleRequiredError,
    ToolPage,
    ToolRow,
)
from counterseal.views.tools import ChangeRow
from counterseal.web.console.contract_card import sections
from counterseal.web.console.definitions import shown
from counterseal.web.console.problems import understood
from counterseal.web.console.rendering import address
from counterseal.web.console.searching import moment
from counterseal.web.console.visit import House, Visit

__all__ = ["back", "card", "done", "routes"]

_AT_ONCE: Final = 50
_COUNTED: Final = 100
"""Calls of one tool that are counted for the list; more are `100+`."""
_DAY: Final = 86_400.0
_STATUSES: Final = ("active", "deprecated", "disabled", "killed", "sunset", "quarantined")
_WHY: Final = {
    "changed": "Its server describes it otherwise than when it was accepted.",
    "new": "Nobody has looked at it yet.",
    "gone": "Its server does not offer it any more.",
    "shadowed": "Another server offers a tool by the same name.",
}
_DID: Final = {
    "kill": "Stopped",
    "enable": "Enabled",
    "disable": "Disabled",
    "grant": "Granted to",
    "revoke": "Taken back from",
    "rollout": "Rolled out",
    "deprecate": "Deprecated",
}
_DONE: Final = {
    "enabled": "It can be used again.",
    "disabled": "It is out of use.",
    "granted": "The grant is in force.",
    "revoked": "The grant is taken back.",
    "accepted": "It is let in, exactly as it was shown.",
    "refused": "It stays out, and that is on record.",
    "rolled_out": "New runs get it as shown; those that have begun keep what they have.",
}


def routes(house: House) -> list[Route]:
    """The registry, and what each form of a tool's card leads to."""
    return [
        house.get("/tools", listed),
        house.get("/tools/{name}", show),
        house.post("/tools/{name}/use", switch),
        house.post("/tools/{name}/grant", grant),
        house.post("/tools/{name}/revoke", revoke),
        house.post("/tools/{name}/quarantine", quarantine),
        *(
            house.get(f"/tools/{{name}}/{one}", back)
            for one in ("use", "grant", "revoke", "quarantine")
        ),
    ]


# --- the registry ---------------------------------------------------------------------------------


async def listed(visit: Visit) -> Response:
    """Tools by name; what is kept out first, because somebody has to look at it."""
    chosen = {name: visit.asked(name) or "" for name in ("text", "status", "effect", "risk")}
    rows = [row for row in visit.view.tools.rows() if _matches(row, chosen)]
    rows.sort(key=lambda row: (row.status != "quarantined", row.name))
    with understood():
        first = max(0, int(visit.asked("from") or 0))
    some = rows[first : first + _AT_ONCE]
    rest = first + _AT_ONCE < len(rows)
    return await visit.render(
        "tools.html",
        title="Tools",
        shows=address("v1", "tools"),
        rows=[{"row": row, "use": await _used(visit, row)} for row in some],
        count=len(rows),
        held=sum(row.status == "quarantined" for row in rows),
        chosen=chosen,
        narrowed=any(chosen.values()),
        done=_done(visit),
        more=address("tools", **chosen, **{"from": str(first + _AT_ONCE)}) if rest else None,
        statuses=_STATUSES,
        effects=[one.value for one in Effect],
        risks=[one.value for one in RiskClass],
    )


def _matches(row: ToolRow, chosen: dict[str, str]) -> bool:
    text = chosen["text"].lower()
    exact = (("status", row.status), ("effect", row.effect), ("risk", row.risk))
    fits = all(chosen[name] in ("", value) for name, value in exact)
    return fits and (text in row.name.lower() or text in row.owner.lower())


async def _used(visit: Visit, row: ToolRow) -> dict[str, Any]:
    """How often it was called in a day, and how often that did not go well."""
    since = visit.house.clock() - _DAY
    page = await visit.view.calls.search(CallSearch(tool=row.name, since=since, limit=_COUNTED))
    failed = sum(one.code not in ("SUCCESS", None) for one in page.items)
    count = f"{_COUNTED}+" if page.next else str(len(page.items))
    return {"count": count, "failed": failed, "any": bool(page.items)}


# --- one tool -------------------------------------------------------------------------------------


async def show(visit: Visit) -> Response:
    """Its card."""
    return await card(visit)


async def back(visit: Visit) -> Response:
    """Whoever reloads a form that was wrong gets the page that it is on."""
    return visit.go(address("tools", _name(visit)))


async def card(
    visit: Visit,
    error: str = "",
    status: int = 200,
    *,
    wrong: str = "",
    rollout: Mapping[str, Any] | None = None,
    shows: str | None = None,
) -> Response:
    """A tool's card: with what is wrong with a form on it, or what a rollout would do."""
    name, view = _name(visit), visit.view
    page = view.tools.page(name)
    operator = visit.person.may(Role.OPERATOR)
    used = await view.tools.use(name) if page.version else None
    return await visit.render(
        "tool.html",
        title=name,
        path="/tools",
        shows=shows or address("v1", "tools", name),
        status=status,
        page=page,
        row=page,
        used=used,
        chapters=sections(page.contract),
        grants=[{"grant": one, "may": _may_take(visit, one)} for one in page.grant_list],
        changes=[_changed(one) for one in page.changes],
        quarantine=_held(page),
        operator=operator,
        everywhere=visit.person.may_everywhere(Role.OPERATOR),
        refusal=_refusal(page, operator=operator),
        modes=[mode.value for mode in Mode],
        risks=[risk.value for risk in RiskClass],
        rollout=rollout,
        error=error,
        wrong=wrong,
        form=visit.form,
        done=_done(visit),
    )


def _held(page: ToolPage) -> dict[str, Any] | None:
    held = page.quarantine
    if held is None:
        return None
    return {
        "held": held,
        "why": _WHY.get(held.why, held.why),
        "changes": shown(page.definition_changes),
    }


def _changed(change: ChangeRow) -> dict[str, Any]:
    extra = change.model_extra or {}
    given, percentage = extra.get("grant") or {}, extra.get("percentage")
    rollout = None if percentage is None else f"{percentage} %"
    details = (given.get("agent"), extra.get("version"), rollout)
    return {
        "did": _DID.get(change.op, change.op),
        "what": ", ".join(one for one in details if one),
        "by": change.by,
        "reason": change.reason,
        "at": change.at,
    }


def _refusal(page: ToolPage, *, operator: bool) -> str:
    """Why this person can't change it; empty where they can."""
    return "" if page.may_operate else str(RoleRequiredError(Role.OPERATOR, everywhere=operator))


def _may_take(visit: Visit, grant: GrantRow) -> bool:
    everywhere = visit.person.may_everywhere(Role.OPERATOR)
    return everywhere or (grant.tenant is not None and visit.person.may(Role.OPERATOR))


def _name(visit: Visit) -> str:
    named: str = visit.request.path_params["name"]
    return named


# --- what operators do ----------------------------------------------------------------------------


async def switch(visit: Visit) -> Response:
    """Enable or disable a version, or all of them."""
    name, version, reason = _name(visit), visit.said("version") or None, visit.said("reason")
    enable = visit.said("action") == "enable"
    try:
        await (visit.view.tools.enable if enable else visit.view.tools.disable)(
            name, version, reason=reason
        )
    except RegistryError as error:
        return await card(visit, str(error), 422, wrong="use")
    return done(visit, "enabled" if enable else "disabled")


async def grant(visit: Visit) -> Response:
    """Give an agent a grant, in this tenant unless all were asked for."""
    try:
        await visit.view.tools.grant(_given(visit), reason=visit.said("reason"))
    except (RegistryError, GrantError, ValueError) as error:
        return await card(visit, str(error), 422, wrong="grant")
    return done(visit, "granted")


def _given(visit: Visit) -> Grant:
    calls, ends = (
        visit.said("max_calls_per_run"),
        moment("expires_at", visit.said("expires_at") or None),
    )
    if calls and not calls.isdecimal():
        raise GrantError("max_calls_per_run: takes a whole number from 0 on")
    return Grant(
        agent=visit.said("agent"),
        tool=_name(visit),
        version=visit.said("version") or "*",
        mode=visit.said("mode") or Mode.EXECUTE,
        max_calls_per_run=int(calls) if calls else None,
        risk_limit=visit.said("risk_limit") or None,
        expires_at=None if ends is None else datetime.fromtimestamp(ends, UTC),
        tenant=None if visit.said("everywhere") else visit.person.tenant,
    )


async def revoke(visit: Visit) -> Response:
    """Take one back."""
    try:
        await visit.view.tools.revoke(visit.said("grant"), reason=visit.said("reason"))
    except RegistryError as error:
        return await card(visit, str(error), 422, wrong="revoke")
    return done(visit, "revoked")


async def quarantine(visit: Visit) -> Response:
    """Let in exactly what was shown; or say that it stays out."""
    name, accept = _name(visit), visit.said("action") == "accept"
    try:
        if accept:
            await visit.view.tools.accept(name, visit.said("definition"))
        else:
            await visit.view.tools.refuse(name, reason=visit.said("reason"))
    except (NotFoundError, RoleRequiredError, StoreError):
        raise
    except CountersealError as error:
        return await card(visit, str(error), 409, wrong="quarantine")
    return done(visit, "accepted" if accept else "refused")


def _done(visit: Visit) -> str:
    return _DONE.get(visit.asked("done") or "", "")


def done(visit: Visit, what: str) -> Response:
    """Back to the card, which says so; or to the list, where the tool is not offered any more."""
    known = any(row.name == _name(visit) for row in visit.view.tools.rows())
    return visit.go(address("tools", *([_name(visit)] if known else []), done=what))
