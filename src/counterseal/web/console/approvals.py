"""The inbox, a request's page, and the decision."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response
from starlette.routing import Route

from counterseal.approvals.packet import Packet
from counterseal.approvals.terms import Then
from counterseal.approvals.votes import Choice, Objection
from counterseal.contract.effects import RiskClass
from counterseal.ledger.records import HeldStatus
from counterseal.operations.approver import ApprovalError
from counterseal.views import ApprovalRow, Page, confirmation
from counterseal.web.console.card import card
from counterseal.web.console.problems import Problem, understood
from counterseal.web.console.rendering import address
from counterseal.web.console.visit import House, Visit

__all__ = ["routes"]

_FILTERS: Final = ("tool", "agent", "risk", "text")
_ENDED: Final = ("approved", "rejected", "expired", "spent", "void")
_GONE: Final = frozenset({"decided", "expired", "voted"})
"""Why a vote comes too late."""
_LONGEST_TITLE: Final = 80
_FIELDS: Final = {"typed": "typed", "justification": "justification"}
"""Which field of the form an objection is about."""


def routes(house: House) -> list[Route]:
    """The pages about approvals."""
    return [
        house.get("/", inbox),
        house.get("/approvals", inbox),
        house.get("/approvals/{approval_id}", show),
        house.post("/approvals/{approval_id}/decision", decide),
        house.get("/approvals/{approval_id}/decision", back),
        house.get("/approvals/{approval_id}/result", result),
    ]


# --- the inbox ------------------------------------------------------------------------------------


async def inbox(visit: Visit) -> Response:
    """What waits, what ends first at the top; or what was decided."""
    status = visit.asked("status") or "waiting"
    if status not in ("waiting", "decided", *_ENDED):
        raise Problem(400, f"status: takes waiting, decided, {', '.join(_ENDED)}")
    chosen = {name: visit.asked(name) for name in _FILTERS}
    given: dict[str, Any] = {**chosen, "cursor": visit.asked("cursor")}
    with understood():
        if status == "waiting":
            page = await visit.view.approvals.waiting(**given)
        else:
            which = None if status == "decided" else status
            page = await visit.view.approvals.decided(status=which, **given)
    return await _list(visit, page, status, chosen)


async def _list(
    visit: Visit, page: Page[ApprovalRow], status: str, chosen: dict[str, str | None]
) -> Response:
    kept = {"status": None if status == "waiting" else status, **chosen}
    return await visit.render(
        "inbox.html",
        title="Approvals",
        shows=address("v1", "approvals", status=status, **chosen),
        status_shown=status,
        rows=page.items,
        more=None if page.next is None else address("approvals", **kept, cursor=page.next),
        chosen=chosen,
        narrowed=any(chosen.values()),
        further=visit.asked("cursor") is not None,
        risks=[risk.value for risk in RiskClass],
        ended=_ENDED,
        names={
            "tool": sorted({row.tool for row in page.items}),
            "agent": sorted({row.agent for row in page.items}),
        },
    )


# --- one request ----------------------------------------------------------------------------------


async def show(visit: Visit) -> Response:
    """Everything that is asked, and the two forms."""
    return await _packet_page(visit)


async def _packet_page(visit: Visit, error: ApprovalError | None = None) -> Response:
    approval_id = _approval_id(visit)
    shows = address("v1", "approvals", approval_id)
    status = 200 if error is None else 409 if error.why in _GONE else 422
    told: dict[str, Any] = {
        "approval_id": approval_id,
        "error": str(error) if error else "",
        "wrong": _FIELDS.get(error.why, "") if error else "",
        "form": visit.form,
        "choice": visit.said("choice"),
    }
    try:
        packet = await visit.view.approvals.packet(approval_id)
    except ApprovalError as unreadable:
        row = await visit.view.approvals.row(approval_id)
        told |= {"row": row, "unreadable": str(unreadable)}
        return await visit.render(
            "unreadable.html", title="Can't be shown", shows=shows, status=status, **told
        )
    return await visit.render(
        "packet.html",
        title=packet.consequence[:_LONGEST_TITLE],
        shows=shows,
        status=status,
        packet=packet,
        card=card(packet, now=visit.house.clock()),
        objection=_objection(visit, packet),
        word=confirmation(packet),
        progress=_progress(packet),
        **told,
    )


def _objection(visit: Visit, packet: Packet) -> str | None:
    """Why this person can't decide it, in a sentence."""
    if packet.status == HeldStatus.EXPIRED:
        return Objection.EXPIRED.text
    return visit.view.approvals.objection(packet)


def _progress(packet: Packet) -> list[bool]:
    """One for each person whom it takes: whether they have said yes."""
    said = {vote.approver for vote in packet.votes if vote.decision is Choice.APPROVE}
    needed = packet.demand.approvers
    return [number < len(said) for number in range(needed)]


def _approval_id(visit: Visit) -> str:
    named: str = visit.request.path_params["approval_id"]
    return named


# --- the decision ---------------------------------------------------------------------------------


async def decide(visit: Visit) -> Response:
    """Take the vote, and say what came of it; or the page again, with what was wrong."""
    approval_id = _approval_id(visit)
    try:
        await visit.view.approvals.decide(
            approval_id,
            visit.said("choice"),
            comment=visit.said("comment"),
            justification=visit.said("justification"),
            typed=visit.said("typed"),
        )
    except ApprovalError as error:
        return await _packet_page(visit, error)
    return visit.go(address("approvals", approval_id, "result"))


async def back(visit: Visit) -> Response:
    """Whoever reloads what came of a form that was wrong gets the page that it is on."""
    return visit.go(address("approvals", _approval_id(visit)))


async def result(visit: Visit) -> Response:
    """What became of it, what follows, and the way on."""
    approval_id = _approval_id(visit)
    row = await visit.view.approvals.row(approval_id)
    try:
        packet = await visit.view.approvals.packet(approval_id)
    except ApprovalError:
        packet = None
    return await visit.render(
        "result.html",
        title="Decided" if row.status != "waiting" else "Your vote is taken",
        shows=address("v1", "approvals", approval_id),
        row=row,
        packet=packet,
        mine=_vote_of(visit, packet),
        follows=_follows(row, packet),
        next_row=await _next(visit, approval_id),
    )


def _vote_of(visit: Visit, packet: Packet | None) -> str | None:
    votes = packet.votes if packet else ()
    mine = (one.decision.value for one in votes if one.approver == visit.person.name)
    return next(mine, None)


def _follows(row: ApprovalRow, packet: Packet | None) -> str:
    """What happens now, in a sentence."""
    left = row.approvers - row.approved
    match row.status:
        case "waiting":
            who = "one more person has" if left == 1 else f"{left} more people have"
            return f"Nothing is executed yet: {who} to approve it."
        case "approved" if packet is not None and packet.demand.then is Then.EXECUTE:
            return "The call is carried out now, exactly as it was shown."
        case "approved":
            return "The agent can make this very call now. Any other one is asked about anew."
        case "rejected":
            return packet.if_rejected if packet else "Nothing is executed."
        case "spent":
            return "The call was let through, exactly as it was shown."
        case "expired":
            return "Nobody decided in time. Nothing is executed."
    return "Nothing is executed."


async def _next(visit: Visit, approval_id: str) -> ApprovalRow | None:
    """The most urgent other request that this person can vote on."""
    page = await visit.view.approvals.waiting(limit=10)
    for row in page.items:
        if row.approval_id == approval_id or row.consequence is None:
            continue
        if (
            visit.view.approvals.objection(await visit.view.approvals.packet(row.approval_id))
            is None
        ):
            return row
    return None
