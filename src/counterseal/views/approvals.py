"""A request for approval: what exactly is asked, and a person's vote. Lists are in `inbox`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from counterseal.accounts.users import Role
from counterseal.approvals.packet import Packet
from counterseal.approvals.votes import Choice, PendingApproval, Voter, may_vote
from counterseal.contract.effects import RiskClass
from counterseal.operations.approver import ApprovalError
from counterseal.storage.base import HeldStatus
from counterseal.views.base import NotAllowed, NotThere
from counterseal.views.inbox import InboxDesk, InboxRow, approved_by, inbox_row

__all__ = [
    "ApprovalsDesk",
    "approved_by",
    "confirmation",
    "current",
    "inbox_row",
    "packet_record",
]

_LONGEST_WORD: Final = 64
"""What a person can be asked to type."""
_LONGEST_WAIT: Final = 300.0
_UNKNOWN: Final = "unknown"


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


class ApprovalsDesk(InboxDesk):
    """Looking is for every viewer; a vote takes an approver."""

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
        request = PendingApproval(
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
