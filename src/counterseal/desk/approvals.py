"""Requests for approval: what waits, what exactly is asked, and a person's vote."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from counterseal.approvals.packet import Packet
from counterseal.approvals.votes import Choice, Request, Voter, may_vote
from counterseal.approving import ApprovalError
from counterseal.contract.effects import RiskClass
from counterseal.desk.base import (
    NotAllowed,
    NotThere,
    Page,
    Seat,
    bounded,
    findable,
    iso,
    read_cursor,
    write_cursor,
)
from counterseal.people.model import Role
from counterseal.storage.base import Held, HeldStatus

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = [
    "ApprovalsDesk",
    "InboxRow",
    "approved_by",
    "confirmation",
    "current",
    "inbox_row",
    "packet_record",
]

_LONGEST_WORD: Final = 64
"""What a person can be asked to type."""
_LONGEST_WAIT: Final = 300.0
_AT_ONCE: Final = 200
_MOST_LOOKED_AT: Final = 2000
"""How many requests are looked at for one page of those that match."""
_UNKNOWN: Final = "unknown"

Place = tuple[float, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxRow:
    """One request in a list."""

    approval_id: str
    status: str
    tool: str
    version: str
    risk: str
    consequence: str | None
    """What happens if it is approved, in a sentence; None where that can't be shown here."""
    unreadable: str
    """Why it can't; empty where it can."""
    agent: str
    user: str | None
    run_id: str
    call_id: str
    approved: int
    """How many have said yes so far."""
    approvers: int
    """How many must."""
    created_at: float
    expires_at: float

    def record(self) -> dict[str, Any]:
        return {
            "approval_id": self.approval_id,
            "status": self.status,
            "tool": self.tool,
            "version": self.version,
            "risk_class": self.risk,
            "consequence": self.consequence,
            "unreadable": self.unreadable,
            "agent": self.agent,
            "user": self.user,
            "run_id": self.run_id,
            "call_id": self.call_id,
            "approved": self.approved,
            "approvers": self.approvers,
            "created_at": iso(self.created_at),
            "expires_at": iso(self.expires_at),
        }


def inbox_row(runtime: Runtime, held: Held) -> InboxRow:
    """A request with its consequence, as far as this process still knows the contract."""
    consequence, unreadable = None, ""
    try:
        consequence = runtime.approvals.packet(held).consequence
    except ApprovalError as error:
        unreadable = str(error)
    over = held.status is HeldStatus.WAITING and runtime.clock() >= held.expires_at
    return InboxRow(
        approval_id=held.approval_id,
        status=HeldStatus.EXPIRED.value if over else held.status.value,
        tool=held.tool,
        version=held.version,
        risk=held.risk,
        consequence=consequence,
        unreadable=unreadable,
        agent=held.agent,
        user=held.user,
        run_id=held.run_id,
        call_id=held.call_id,
        approved=approved_by(held),
        approvers=held.approvers,
        created_at=held.created_at,
        expires_at=held.expires_at,
    )


def approved_by(held: Held) -> int:
    """How many people have said yes so far."""
    stored: Sequence[Any] = held.votes  # whatever somebody may have made of it
    votes = [vote for vote in stored if isinstance(vote, Mapping)]
    return len({str(vote.get("approver")) for vote in votes if vote.get("decision") == "approve"})


def confirmation(packet: Packet) -> str | None:
    """What must be typed to approve it; None where nothing must.

    Only a critical mutation asks for it: then it is the target, so that nobody approves one thing
    while thinking of another; or the tool, where there is no target that could be typed.
    """
    if packet.risk != RiskClass.CRITICAL_MUTATION.value:
        return None
    target = packet.target or ""
    typeable = target.isascii() and target.isprintable() and target == " ".join(target.split())
    return target if target and typeable and len(target) <= _LONGEST_WORD else packet.tool


def current(packet: Packet, now: float) -> Packet:
    """As it is now: one whose time is over has expired, whoever has written that down."""
    over = packet.status == "waiting" and now >= packet.expires_at
    return replace(packet, status="expired") if over else packet


def packet_record(packet: Packet) -> dict[str, Any]:
    """The packet as plain JSON data, with the word that must be typed as `confirmation`."""
    return {**packet.record(), "confirmation": confirmation(packet)}


class ApprovalsDesk(Seat):
    """Looking is for every viewer; a vote takes an approver."""

    async def inbox(
        self,
        *,
        tool: str | None = None,
        agent: str | None = None,
        risk: str | None = None,
        text: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[InboxRow]:
        """What waits, what ends first at the top. `text` is looked for in the consequence."""
        limit, place = bounded(limit), _place(cursor)
        rows: list[InboxRow] = []
        looked = 0
        async for held in self._waiting(place):
            looked += 1
            place = (held.expires_at, held.approval_id)
            given = (tool, agent, risk)
            if all(one in (None, own) for one, own in zip(given, _own(held), strict=True)):
                row = inbox_row(self.runtime, held)
                if text is None or _says(row, text):
                    rows.append(row)
            if len(rows) > limit or looked >= _MOST_LOOKED_AT:
                break
        else:
            place = None
        if len(rows) > limit:
            place = (rows[limit - 1].expires_at, rows[limit - 1].approval_id)
        return Page(rows[:limit], None if place is None else write_cursor(place))

    async def _waiting(self, beyond: Place | None) -> AsyncIterator[Held]:
        """What waits, behind a place, however many there are."""
        store, now, full = self.runtime.store, self.runtime.clock(), True
        while full:
            some = await store.list_held(
                self.tenant, HeldStatus.WAITING, _AT_ONCE, after=now, beyond=beyond
            )
            full = len(some) == _AT_ONCE
            for held in some:
                beyond = (held.expires_at, held.approval_id)
                yield held

    async def decided(
        self, *, status: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[InboxRow]:
        """What was decided or has expired, what ended last at the top. None: whatever became.

        ValueError for a status that there is not.
        """
        limit, place, now = bounded(limit), _place(cursor), self.runtime.clock()
        asked = _ENDED if status is None else (HeldStatus(status),)
        found: list[Held] = []
        for one in asked:
            found += await self._ended(one, limit + 1, place)
            if one is HeldStatus.EXPIRED:  # and those of which nobody has written it down yet
                over = (now, _BEHIND_ALL) if place is None else min(place, (now, _BEHIND_ALL))
                found += await self._ended(HeldStatus.WAITING, limit + 1, over)
        found.sort(key=lambda held: (held.expires_at, held.approval_id), reverse=True)
        shown = found[:limit]
        more = write_cursor((shown[-1].expires_at, shown[-1].approval_id)) if shown else None
        return Page(
            [inbox_row(self.runtime, held) for held in shown], more if len(found) > limit else None
        )

    async def _ended(self, status: HeldStatus, limit: int, beyond: Place | None) -> Sequence[Held]:
        return await self.runtime.store.list_held(
            self.tenant, status, limit, newest_first=True, beyond=beyond
        )

    async def packet(self, approval_id: str) -> Packet:
        """Everything that is asked. NotThere; ApprovalError where it can't be shown here."""
        with _there():
            return self._current(await self.runtime.approvals.get(self.tenant, approval_id))

    async def request(self, approval_id: str) -> InboxRow:
        """A request in short, whether or not it can be shown here. NotThere."""
        with _there():
            return inbox_row(
                self.runtime, await self.runtime.approvals.find(self.tenant, approval_id)
            )

    def objection(self, packet: Packet) -> str | None:
        """Why this person can't vote on it, in a sentence; None when they can."""
        if not self.person.may(Role.APPROVER):
            return str(NotAllowed(Role.APPROVER))
        request = Request(
            tenant=packet.tenant,
            agent=packet.agent,
            user=packet.user,
            expires_at=packet.expires_at,
            votes=packet.votes,
            decided=packet.status != HeldStatus.WAITING,
        )
        why = may_vote(packet.demand, request, self._voter(), now=self.runtime.clock())
        return None if why is None else why.text

    def _voter(self) -> Voter:
        who = self.person
        return Voter(user=who.name, tenant=who.tenant, roles=who.roles)

    async def decide(
        self,
        approval_id: str,
        choice: str,
        *,
        comment: str = "",
        justification: str = "",
        typed: str = "",
    ) -> Packet | None:
        """Vote. To approve what is critical, `typed` must be `confirmation(packet)`.

        NotAllowed, NotThere, or ApprovalError, whose `why` is one word for programs: `typed` where
        the confirmation is not what was asked for. None after a rejection of what can't be shown.
        """
        self.needs(Role.APPROVER)
        voter = self._voter()
        with _there():
            if choice == Choice.APPROVE:
                _refuse_untyped(await self.runtime.approvals.get(self.tenant, approval_id), typed)
            decided = await self.runtime.approvals.decide(
                approval_id, voter, choice, comment=comment, justification=justification
            )
        return None if decided is None else self._current(decided)

    async def wait(self, approval_id: str, seconds: float) -> Packet:
        """The request once it is decided, or as it is when the time is over."""
        most = max(0.0, min(float(seconds), _LONGEST_WAIT))
        with _there():
            return self._current(await self.runtime.approvals.wait(self.tenant, approval_id, most))

    def _current(self, packet: Packet) -> Packet:
        return current(packet, self.runtime.clock())


_ENDED: Final = (
    HeldStatus.APPROVED,
    HeldStatus.REJECTED,
    HeldStatus.EXPIRED,
    HeldStatus.SPENT,
    HeldStatus.VOID,
)
_BEHIND_ALL: Final = "\U0010ffff"
"""Greater than any id."""


@contextmanager
def _there() -> Iterator[None]:
    """What approvals say of a request that is not there, in the words of every desk."""
    try:
        yield
    except ApprovalError as error:
        if error.why == _UNKNOWN:
            raise NotThere("approval") from None
        raise


def _refuse_untyped(packet: Packet, typed: str) -> None:
    word = confirmation(packet)
    if word is not None and typed.strip() != word:
        raise ApprovalError("typed", f"To approve this, type {word} to confirm what it acts on.")


def _own(held: Held) -> tuple[str, str, str]:
    return held.tool, held.agent, held.risk


def _says(row: InboxRow, text: str) -> bool:
    return text.casefold() in (row.consequence or "").casefold()


def _place(cursor: str | None) -> Place | None:
    if cursor is None:
        return None
    moment, approval_id = read_cursor(cursor, float, str)
    if not findable(approval_id):
        raise ValueError("cursor: is none that was given out; leave it out to begin at the top")
    return float(moment), approval_id
