"""A vote from the shell: what is shown before it, the question, and what it came to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict

import typer

from counterseal.cli.approvals_view import card
from counterseal.cli.output import fail, note, one_line, print_json

if TYPE_CHECKING:
    from counterseal.approvals.packet import Packet
    from counterseal.cli.approvals_desk import Desk, Person
    from counterseal.operations.approver import ApprovalError
    from counterseal.storage.base import Held

__all__ = [
    "EXIT_CODES",
    "Words",
    "check",
    "decide",
    "found",
    "located",
    "make_sure",
    "note_unsigned",
    "reject_unshown",
    "show_before",
    "shown_if_any",
]

REFUSED, UNKNOWN, TOO_LATE = 1, 2, 4
"""Exit codes."""
_CODES = {"unknown": UNKNOWN, "tenant": UNKNOWN, "expired": TOO_LATE, "decided": TOO_LATE}


_REJECTED = "It is rejected. The agent is told so, with your reason."


class Words(TypedDict):
    """What a voter says beside yes or no."""

    comment: str
    justification: str


EXIT_CODES = """\
\b
Exit codes:
  0  the vote was taken; it says what it came to
  1  the vote was refused, or taken back at the question
  2  wrong use: no such request, nobody who may approve, no store
  4  too late: it is decided already, or has expired
"""
_UNSIGNED = (
    "Approvals are not signed here; workers that have a key will refuse them.\n"
    "`counterseal keys new approval` makes one."
)


def located(
    desk: Desk,
    approval_id: str,
    tenant: str | None,
    person: Person | None = None,
    *,
    as_json: bool,
) -> Held:
    """The request of this id, among those that the person may see; or the end of the command."""
    from counterseal.operations.approver import ApprovalError

    try:
        return desk.do(desk.find(approval_id, tenant, person.tenants if person else None))
    except ApprovalError as error:
        refuse(error, approval_id, as_json=as_json)


def found(desk: Desk, held: Held, *, as_json: bool) -> Packet:
    """What is shown of the request; the end of the command where that can't be."""
    from counterseal.operations.approver import ApprovalError

    try:
        return desk.do(desk.runtime.approvals.get(held.tenant, held.approval_id))
    except ApprovalError as error:
        refuse(error, held.approval_id, as_json=as_json)


def shown_if_any(desk: Desk, held: Held) -> Packet | None:
    """The same for who rejects: that takes no more than the request itself."""
    from counterseal.operations.approver import ApprovalError

    try:
        return desk.do(desk.runtime.approvals.get(held.tenant, held.approval_id))
    except ApprovalError as error:
        note(f"It can't be shown here: {one_line(str(error))}")
        return None


def show_before(desk: Desk, packet: Packet, *, quiet: bool) -> None:
    """What is decided on, beside the result and not part of it."""
    from counterseal.views.approvals import current

    if not quiet:
        now = desk.runtime.clock()
        note(card(current(packet, now), now).rstrip())


def note_unsigned(desk: Desk) -> None:
    """Say what an approval from here is worth, where it has no signature."""
    if not desk.has_keys:
        note(_UNSIGNED)


def make_sure(packet: Packet, decision: str, *, yes: bool, confirm: str | None = None) -> None:
    """Ask whether it is meant; approving what is hard to undo takes more than a key press."""
    if decision == "approve" and packet.risk == "CRITICAL_MUTATION":
        _make_quite_sure(packet, yes=yes, confirm=confirm)
    elif not yes and confirm is None:
        typer.confirm(f"{decision.capitalize()}?", abort=True, err=True)


def _make_quite_sure(packet: Packet, *, yes: bool, confirm: str | None) -> None:
    words = (packet.tool, packet.approval_id, packet.approval_id.rpartition("_")[2])
    if confirm is None and yes:
        fail(
            "It is a CRITICAL_MUTATION: --yes alone does not approve it.",
            f"Give --confirm {packet.tool}, having read what happens.",
        )
    if confirm is not None:
        if confirm not in words:
            fail(f"--confirm does not say {packet.tool}.", "Nothing was decided.")
        return
    asked = f"Type {packet.tool} to approve it"
    typed: str = typer.prompt(asked, default="", show_default=False, err=True)
    if typed.strip() not in words:
        fail(f"That is not {packet.tool}.", "Nothing was decided.", code=REFUSED)


def check(
    desk: Desk, packet: Packet, person: Person, decision: str, said: Words, *, as_json: bool
) -> None:
    """End the command where the vote would not be taken: nobody types a name for nothing."""
    from counterseal.approvals.votes import Choice, Objection, PendingApproval, cast
    from counterseal.operations.approver import ApprovalError

    request = PendingApproval(
        tenant=packet.tenant,
        agent=packet.agent,
        user=packet.user,
        expires_at=packet.expires_at,
        votes=packet.votes,
        decided=packet.status != "waiting",
    )
    voter, now = person.voter(packet.tenant), desk.runtime.clock()
    vote = cast(packet.demand, request, voter, Choice(decision), now=now, **said)
    if isinstance(vote, Objection):
        refuse(ApprovalError(vote.value, vote.text), packet.approval_id, as_json=as_json)


def decide(
    desk: Desk, packet: Packet, person: Person, decision: str, said: Words, *, as_json: bool
) -> None:
    """Take the vote, and print what it came to."""
    from counterseal.operations.approver import ApprovalError

    voter, approvals = person.voter(packet.tenant), desk.runtime.approvals
    try:
        after = desk.do(approvals.decide(packet.approval_id, voter, decision, **said))
    except ApprovalError as error:
        refuse(error, packet.approval_id, as_json=as_json)
    after = after or replace(packet, status="rejected")
    if as_json:
        print_json({"decision": decision, "approver": person.name, **_came_to(after)})
    else:
        print(_told(after))


def reject_unshown(
    desk: Desk, held: Held, person: Person, said: Words, *, yes: bool, as_json: bool
) -> None:
    """Reject what can't be shown here: nobody has to understand it for a no."""
    from counterseal.operations.approver import ApprovalError

    if not yes:
        typer.confirm("Reject?", abort=True, err=True)
    voter, approvals = person.voter(held.tenant), desk.runtime.approvals
    try:
        desk.do(approvals.decide(held.approval_id, voter, "reject", **said))
    except ApprovalError as error:
        refuse(error, held.approval_id, as_json=as_json)
    if as_json:
        came_to = {"approval_id": held.approval_id, "status": "rejected"}
        print_json({"decision": "reject", "approver": person.name, **came_to})
    else:
        print(_REJECTED)


def refuse(error: ApprovalError, approval_id: str, *, as_json: bool) -> NoReturn:
    """Why there is no such request, or no vote on it; for people and for programs."""
    code = _CODES.get(error.why, REFUSED)
    if as_json:
        print_json({"approval_id": approval_id, "why": error.why, "message": str(error)})
        raise typer.Exit(code)
    fail(one_line(str(error)), _FIXES.get(error.why, ""), code=code)


_FIXES = {
    "unknown": "`counterseal approvals list` shows what waits.",
    "justification": "Give --justification TEXT.",
    "keys": "`counterseal keys new approval` makes one; keys of others only verify.",
    "contract": "Decide from a project that holds this very version. A rejection does not need it.",
    "unreadable": "It can be rejected all the same.",
}


def _came_to(packet: Packet) -> dict[str, Any]:
    return {
        "approval_id": packet.approval_id,
        "status": packet.status,
        "votes": packet.so_far,
        "missing": _missing(packet),
        "then": packet.demand.then.value,
    }


def _missing(packet: Packet) -> int:
    """How many have to say yes yet; of a request that is decided, nobody."""
    waits = packet.status == "waiting"
    return packet.demand.approvers - int(packet.so_far.split()[0]) if waits else 0


def _told(packet: Packet) -> str:
    from counterseal.approvals.display import clock

    if packet.status == "rejected":
        return _REJECTED
    if packet.status == "waiting":
        missing = _missing(packet)
        return f"Your approval is on record: {packet.so_far}. {missing} more to come."
    if packet.status != "approved":
        return f"Your vote is on record. The request is {packet.status}."
    if packet.demand.then.value == "execute":
        return "It is approved. The next pass of `counterseal reconcile` carries it out."
    return f"It is approved. The agent can send it again until {clock(packet.expires_at)}."
