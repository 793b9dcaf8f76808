"""Lists of requests for approval: what waits, what ends first at the top, and what was decided."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from counterseal.operations.approver import ApprovalError
from counterseal.storage.base import Held, HeldStatus
from counterseal.views.base import Page, Seat, bounded, findable, iso, read_cursor, write_cursor

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["InboxDesk", "InboxRow", "approved_by", "inbox_row"]

_AT_ONCE: Final = 200
_MOST_LOOKED_AT: Final = 2000
"""How many requests are looked at for one page of those that match."""
_ENDED: Final = (
    HeldStatus.APPROVED,
    HeldStatus.REJECTED,
    HeldStatus.EXPIRED,
    HeldStatus.SPENT,
    HeldStatus.VOID,
)
_BEHIND_ALL: Final = "\U0010ffff"
"""Greater than any id."""

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


class _Narrow(NamedTuple):
    """What is asked for. What is None does not narrow."""

    tool: str | None
    agent: str | None
    risk: str | None
    text: str | None

    def fits(self, held: Held) -> bool:
        own = (held.tool, held.agent, held.risk)
        return all(one in (None, mine) for one, mine in zip(self[:3], own, strict=True))

    def says(self, row: InboxRow) -> bool:
        return self.text is None or self.text.casefold() in (row.consequence or "").casefold()


class InboxDesk(Seat):
    """Looking is for every viewer. `text` is looked for in the consequence."""

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
        """What waits, what ends first at the top."""
        found = self._waiting(_place(cursor))
        return await self._page(found, _Narrow(tool, agent, risk, text), bounded(limit))

    async def decided(
        self,
        *,
        status: str | None = None,
        tool: str | None = None,
        agent: str | None = None,
        risk: str | None = None,
        text: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[InboxRow]:
        """What was decided or has expired, what ended last at the top. None: whatever became.

        ValueError for a status that there is not.
        """
        asked = _ENDED if status is None else (HeldStatus(status),)
        narrow, limit = _Narrow(tool, agent, risk, text), bounded(limit)
        some = _AT_ONCE if any(narrow) else limit + 1
        return await self._page(self._decided(asked, some, _place(cursor)), narrow, limit)

    async def _page(
        self, found: AsyncGenerator[Held], narrow: _Narrow, limit: int
    ) -> Page[InboxRow]:
        rows: list[InboxRow] = []
        looked, last = 0, (0.0, "")
        async with aclosing(found):
            async for held in found:
                if looked == _MOST_LOOKED_AT:
                    return Page(rows, write_cursor(last))
                looked, last = looked + 1, (held.expires_at, held.approval_id)
                if narrow.fits(held) and narrow.says(row := inbox_row(self.runtime, held)):
                    if len(rows) == limit:
                        shown = rows[-1]
                        return Page(rows, write_cursor((shown.expires_at, shown.approval_id)))
                    rows.append(row)
        return Page(rows)

    async def _waiting(self, beyond: Place | None) -> AsyncGenerator[Held]:
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

    async def _decided(
        self, asked: Sequence[HeldStatus], some: int, beyond: Place | None
    ) -> AsyncGenerator[Held]:
        """What has come to its end, behind a place, so many at a time."""
        now, full = (self.runtime.clock(), _BEHIND_ALL), True
        while full:
            found: list[Held] = []
            for one in asked:
                found += await self._ended(one, some, beyond)
                if one is HeldStatus.EXPIRED:  # and those of which nobody has written it down yet
                    over = now if beyond is None else min(beyond, now)
                    found += await self._ended(HeldStatus.WAITING, some, over)
            found.sort(key=lambda held: (held.expires_at, held.approval_id), reverse=True)
            full = len(found) >= some
            for held in found[:some]:
                beyond = (held.expires_at, held.approval_id)
                yield held

    async def _ended(self, status: HeldStatus, limit: int, beyond: Place | None) -> Sequence[Held]:
        return await self.runtime.store.list_held(
            self.tenant, status, limit, newest_first=True, beyond=beyond
        )


def _place(cursor: str | None) -> Place | None:
    if cursor is None:
        return None
    moment, approval_id = read_cursor(cursor, float, str)
    if not findable(approval_id):
        raise ValueError("cursor: is none that was given out; leave it out to begin at the top")
    return float(moment), approval_id
