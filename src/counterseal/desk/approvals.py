"""Requests for approval: what waits, what exactly is asked, and a person's vote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from counterseal.approvals.packet import Packet
from counterseal.desk.base import Page, Seat, iso

__all__ = ["ApprovalsDesk", "InboxRow", "confirmation", "packet_record"]


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


def confirmation(packet: Packet) -> str | None:
    """What must be typed to approve it; None where nothing must."""
    raise NotImplementedError


def packet_record(packet: Packet) -> dict[str, Any]:
    """The packet as plain JSON data, with the word that must be typed as `confirmation`."""
    return {**packet.record(), "confirmation": confirmation(packet)}


class ApprovalsDesk(Seat):
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
        raise NotImplementedError

    async def decided(
        self, *, status: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[InboxRow]:
        """What was decided or has expired, what ended last at the top. None: whatever became."""
        raise NotImplementedError

    async def packet(self, approval_id: str) -> Packet:
        """Everything that is asked. NotThere; ApprovalError where it can't be shown here."""
        raise NotImplementedError

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
        raise NotImplementedError

    async def wait(self, approval_id: str, seconds: float) -> Packet:
        """The request once it is decided, or as it is when the time is over."""
        raise NotImplementedError
