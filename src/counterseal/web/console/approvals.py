"""Pages about approvals: the inbox, one request, the decision, and what follows from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, NamedTuple

from starlette.responses import Response
from starlette.routing import Route

from counterseal.approvals.display import Part, name_of, shown_status, shown_text, stored_status
from counterseal.approvals.packet import Packet
from counterseal.approvals.packet_formats import WHOLE, PacketLine, PacketRow, RowKey, outline
from counterseal.approvals.terms import Choice, Objection
from counterseal.contract.approval_terms import Then
from counterseal.contract.effects import RiskClass
from counterseal.ledger.records import HeldStatus
from counterseal.operations.approver import ApprovalError
from counterseal.proposal import folded
from counterseal.views.approvals import ApprovalRow, confirmation
from counterseal.web.console.page_request import ConsoleState, PageRequest
from counterseal.web.console.rendering import address
from counterseal.web.problems import RequestProblemError


def routes(state: ConsoleState) -> list[Route]:
    """Return the pages about approvals."""
    return [
        state.get("/", inbox),
        state.get("/approvals", inbox),
        state.get("/approvals/{approval_id}", show),
        *state.form("/approvals/{approval_id}/decision", decide),
        state.get("/approvals/{approval_id}/result", result),
    ]


# --- the inbox ------------------------------------------------------------------------------------

_FILTERS: Final = ("tool", "agent", "risk", "text")
_ENDED: Final = ("approved", "spent", "rejected", "expired", "void")


async def inbox(request: PageRequest) -> Response:
    """Show requests that wait, in the order in which they expire; or decided ones."""
    status = stored_status(request.parameter("status") or "waiting")
    if status not in ("waiting", "decided", *_ENDED):
        known = ", ".join(map(shown_status, _ENDED))
        detail = f"status: expected waiting, decided, {known}"
        raise RequestProblemError("invalid-request", detail)
    filters = {name: request.parameter(name) for name in _FILTERS}
    query: dict[str, Any] = {**filters, "cursor": request.parameter("cursor")}
    page = await request.view.approvals.search(status, **query)
    kept = {"status": None if status == "waiting" else status, **filters}
    return await request.render(
        "approvals.html",
        title="Approvals",
        shows=address("v1", "approvals", status=status, **filters),
        status_shown=status,
        rows=page.items,
        more=None if page.next is None else address("approvals", **kept, cursor=page.next),
        chosen=filters,
        filtered=any(filters.values()),
        further=request.parameter("cursor") is not None,
        risks=[risk.value for risk in RiskClass],
        ended=_ENDED,
        names={
            "tool": sorted({row.tool for row in page.items}),
            "agent": sorted({row.agent for row in page.items}),
        },
    )


# --- one request ----------------------------------------------------------------------------------

_TOO_LATE: Final = frozenset({"decided", "expired", "voted"})
"""Reasons for which a vote comes too late."""
_MAX_TITLE: Final = 80


async def show(request: PageRequest, error: ApprovalError | None = None) -> Response:
    """Show everything that an approver needs, and the two forms."""
    approval_id = request.segment("approval_id")
    shows = address("v1", "approvals", approval_id)
    status = 200 if error is None else 409 if error.why in _TOO_LATE else 422
    values: dict[str, Any] = {
        "approval_id": approval_id,
        "error": str(error) if error else "",
        "wrong": error.why if error else "",
        "form": request.form,
        "choice": request.form_value("choice"),
    }
    try:
        packet = await request.view.approvals.packet(approval_id)
    except ApprovalError as unreadable:
        row = await request.view.approvals.row(approval_id)
        values |= {"row": row, "unreadable": str(unreadable)}
        return await request.render(
            "approval_unreadable.html",
            title="Cannot be shown",
            shows=shows,
            status=status,
            **values,
        )
    row, approvals = await request.view.approvals.row(approval_id), request.view.approvals
    expired = packet.status == HeldStatus.EXPIRED
    given = {vote.approver for vote in packet.votes if vote.decision is Choice.APPROVE}
    return await request.render(
        "approval.html",
        title=packet.consequence[:_MAX_TITLE],
        shows=shows,
        status=status,
        packet=packet,
        card=packet_card(packet, now=request.state.clock()),
        objection=Objection.EXPIRED.text if expired else approvals.objection(packet),
        unable=approvals.objection(packet, Choice.APPROVE),
        stopped=approvals.stop_reason(packet),
        needed=row.needed,
        **await _outcome(request, row, packet),
        word=confirmation(packet),
        progress=[number < len(given) for number in range(packet.demand.approvers)],
        **values,
    )


# --- the decision ---------------------------------------------------------------------------------


async def decide(request: PageRequest) -> Response:
    """Take the vote and go to its result; or show the page again with what was wrong."""
    approval_id = request.segment("approval_id")
    try:
        await request.view.approvals.decide(
            approval_id,
            request.form_value("choice"),
            comment=request.form_value("comment"),
            justification=request.form_value("justification"),
            typed=request.form_value("typed"),
        )
    except ApprovalError as error:
        return await show(request, error)
    return request.redirect(address("approvals", approval_id, "result"))


async def result(request: PageRequest) -> Response:
    """Show the state after a vote, what follows, and the next request."""
    approval_id = request.segment("approval_id")
    row = await request.view.approvals.row(approval_id)
    packet = None
    with suppress(ApprovalError):
        packet = await request.view.approvals.packet(approval_id)
    votes, me = packet.votes if packet else (), folded(request.person.name)
    return await request.render(
        "approval_result.html",
        title="Decided" if row.status != "waiting" else "Vote recorded",
        shows=address("v1", "approvals", approval_id),
        row=row,
        packet=packet,
        sentence=_unquoted(packet.sentence) if packet else (),
        mine=next((vote.decision.value for vote in votes if folded(vote.approver) == me), None),
        **await _outcome(request, row, packet),
        next_row=await _next_request(request, approval_id),
    )


async def _outcome(request: PageRequest, row: ApprovalRow, packet: Packet | None) -> dict[str, Any]:
    """Return the call that was made with an approval, or what follows, and whether it goes on."""
    call = await request.view.calls.with_approval(row)
    failed = await request.view.approvals.failure(row.approval_id)
    follows = _next_step(row, packet)
    if failed is not None:
        follows = f"The call could not be executed: {failed}. An operator has to look at it."
    executes = packet is not None and packet.demand.then is Then.EXECUTE
    to_come = row.status == "waiting" or (row.status == "approved" and executes)
    going_on = to_come and call is None and failed is None
    return {"call": call, "follows": follows, "going_on": going_on}


def _next_step(row: ApprovalRow, packet: Packet | None) -> str:
    """Return what happens now, in a sentence."""
    missing = row.approvers - row.approved
    match row.status:
        case "waiting":
            people = "one more approval is" if missing == 1 else f"{missing} more approvals are"
            return f"Nothing is executed yet: {people} needed. {row.needed}".rstrip()
        case "approved" if packet is not None and packet.demand.then is Then.EXECUTE:
            return "The call is being executed, exactly as shown."
        case "approved":
            return "The agent can make exactly this call now. Other calls need their own approval."
        case "rejected":
            return packet.if_rejected if packet else "Nothing is executed."
        case "spent":
            return "The call was executed, exactly as shown."
        case "expired":
            return "The request was not decided in time. Nothing is executed."
    return "Nothing is executed."


async def _next_request(request: PageRequest, approval_id: str) -> ApprovalRow | None:
    """Return the most urgent other request that this person can vote on."""
    approvals = request.view.approvals
    for row in (await approvals.search(limit=10)).items:
        if row.approval_id == approval_id or row.consequence is None:
            continue
        if approvals.objection(await approvals.packet(row.approval_id)) is None:
            return row
    return None


# --- the layout of a packet -----------------------------------------------------------------------

_STYLE: Final = WHOLE._replace(quoted=False)
"""Values have a ground of their own on the page, so texts need no quotes."""
_FACTS: Final = (
    *(RowKey.ACTION, RowKey.TARGET, RowKey.AMOUNT, RowKey.REVERSES, RowKey.REVERSIBLE),
    *(RowKey.IF_REJECTED,),
)
_PEOPLE: Final = (RowKey.REQUESTER, RowKey.REASON, RowKey.APPROVERS, RowKey.DATA_CLASS)
_IDS: Final = (RowKey.FINGERPRINT, RowKey.APPROVAL_ID, RowKey.TRACE_ID, RowKey.CONTRACT)
_ELSEWHERE: Final = (
    *(RowKey.CONSEQUENCE, RowKey.ARGUMENTS, RowKey.CONFIG, RowKey.BEFORE, RowKey.AFTER),
    *(RowKey.VOTES, RowKey.EXPIRES),
)
"""Rows of the outline that have a place of their own on the page."""


class ShownDifference(NamedTuple):
    """A place in the state, before the call and as expected after it."""

    name: str
    before: tuple[Part, ...]
    after: tuple[Part, ...]


class ShownField(NamedTuple):
    """A place in the state that is not expected to change."""

    name: str
    parts: tuple[Part, ...]
    stated: bool
    """False: the contract does not say what becomes of it."""


class PacketCard(NamedTuple):
    """A packet's outline, sorted into the sections of the page. Nothing is left out."""

    title: str
    risk: str
    sentence: tuple[Part, ...]
    facts: tuple[PacketRow, ...]
    arguments: tuple[PacketLine, ...]
    config: tuple[PacketLine, ...]
    differences: tuple[ShownDifference, ...]
    others: tuple[ShownField, ...]
    """The rest of the present state."""
    expected: tuple[PacketLine, ...]
    """The expected state, where the present one is not known."""
    votes: tuple[PacketLine, ...]
    people: tuple[PacketRow, ...]
    ids: tuple[PacketRow, ...]
    more: tuple[PacketRow, ...]
    """Rows of the outline that no section names."""


def packet_card(packet: Packet, *, now: float) -> PacketCard:
    """Return a packet as the page shows it."""
    shown = outline(packet, _STYLE, now=now)
    rows = {row.key: row for group in shown.groups for row in group}
    placed = {*_FACTS, *_PEOPLE, *_IDS, *_ELSEWHERE}
    return PacketCard(
        title=shown.title,
        risk=shown.risk,
        sentence=_unquoted(packet.sentence),
        facts=_named(rows, _FACTS),
        arguments=_lines(rows, RowKey.ARGUMENTS),
        config=_lines(rows, RowKey.CONFIG),
        differences=tuple(
            ShownDifference(
                name_of(change.pointer[1:]) if change.pointer else "",
                tuple(_STYLE.parts(change.before)),
                tuple(_STYLE.parts(change.after)),
            )
            for change in packet.changes
        ),
        others=tuple(
            ShownField(name_of(one.pointer[1:]), tuple(_STYLE.parts(one.value)), one.stated)
            for one in islice(packet.other_fields(), _STYLE.max_values)
        ),
        expected=() if packet.before is not None else _lines(rows, RowKey.AFTER),
        votes=_lines(rows, RowKey.VOTES)[1:],
        people=_named(rows, _PEOPLE),
        ids=_named(rows, _IDS),
        more=tuple(row for key, row in rows.items() if key not in placed),
    )


def _named(rows: dict[RowKey, PacketRow], keys: Sequence[RowKey]) -> tuple[PacketRow, ...]:
    return tuple(rows[key] for key in keys if key in rows)


def _lines(rows: dict[RowKey, PacketRow], key: RowKey) -> tuple[PacketLine, ...]:
    return rows[key].lines if key in rows else ()


def _unquoted(sentence: Sequence[Part]) -> tuple[Part, ...]:
    """Return a sentence whose values are shown as text: the page marks them in another way."""
    return tuple(
        Part(shown_text(json.loads(part.text)), value=True)
        if part.value and part.text.startswith('"')
        else part
        for part in sentence
    )
