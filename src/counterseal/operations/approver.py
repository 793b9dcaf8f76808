"""Approvals for those who decide: what waits, what exactly is asked, and a person's yes or no.

Requests and votes are the store's, so any worker can show and decide what another has asked. Who a
voter is, and which roles they have, comes from whoever authenticates people; nothing of it comes
from a model.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Final

from counterseal.approvals.packet import Packet
from counterseal.approvals.terms import Demand, Then
from counterseal.approvals.tokens import Claims, issue
from counterseal.approvals.votes import (
    Choice,
    Objection,
    PendingApproval,
    Tally,
    Vote,
    Voter,
    cast,
    tally,
)
from counterseal.audit import Caller, Event, EventType
from counterseal.call.hold import packet_of
from counterseal.errors import CountersealError, RegistryError
from counterseal.gates.parse import is_id
from counterseal.gates.proof import has_keys, has_unknown_keys, proven_votes, signed, votes_of
from counterseal.keys import Purpose
from counterseal.ledger.rules import stands
from counterseal.storage.base import Ballot, Due, DueKind, Held, HeldStatus

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["ApprovalError", "Approvals", "Approver", "Voter", "work_for"]

Approver = Callable[[Packet], Awaitable[tuple[Voter, Choice, str]] | tuple[Voter, Choice, str]]
"""Somebody who decides at once; for tests."""
_TRIES: Final = 20
_LONGEST: Final = 2000
"""How much of what a voter says is kept."""
_UNREADABLE: Final = (ValueError, TypeError, LookupError, AttributeError)
"""What a row that somebody has damaged can lead to."""
_OUTCOMES: Final = {
    Tally.WAITING: HeldStatus.WAITING,
    Tally.APPROVED: HeldStatus.APPROVED,
    Tally.REJECTED: HeldStatus.REJECTED,
    Tally.EXPIRED: HeldStatus.EXPIRED,
}
_EVENTS: Final = {
    HeldStatus.APPROVED: EventType.APPROVAL_GRANTED,
    HeldStatus.REJECTED: EventType.APPROVAL_REJECTED,
    HeldStatus.EXPIRED: EventType.APPROVAL_EXPIRED,
}
_END: Final[Mapping[HeldStatus, tuple[HeldStatus, EventType, Mapping[str, str]]]] = {
    HeldStatus.WAITING: (HeldStatus.EXPIRED, EventType.APPROVAL_EXPIRED, {}),
    HeldStatus.APPROVED: (
        HeldStatus.VOID,
        EventType.APPROVAL_VOID,
        {"reason": "It was not used in time."},
    ),
}
"""What becomes of a request whose time is over."""


class ApprovalError(CountersealError):
    """A vote is not taken, or a request is not there. `why` is one word for programs."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why


class Approvals:
    """Reached as `runtime.approvals`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def list(
        self,
        tenant: str | None = None,
        *,
        status: HeldStatus | str = HeldStatus.WAITING,
        limit: int = 100,
    ) -> Sequence[Held]:
        """Requests of this status; None: of every tenant.

        Of those that wait, what ends first is at the top; of others, what ends last. Nothing is
        written, and what nobody decided in time no longer waits, whoever puts that on record.
        """
        asked = HeldStatus(status)
        if tenant is not None and not is_id(tenant):
            return []
        store = self._runtime.store
        if asked is HeldStatus.WAITING:
            return await store.list_held(tenant, asked, limit, after=self._runtime.clock())
        found = await store.list_held(tenant, asked, limit, newest_first=True)
        return [_shown(held) for held in found]

    async def find(self, tenant: str, approval_id: str) -> Held:
        """The request as it is kept, whether or not it can be shown. ApprovalError: none there."""
        return _shown(await self._held(tenant, approval_id))

    async def get(self, tenant: str, approval_id: str) -> Packet:
        """Everything that is asked, as an approver is shown it. ApprovalError when it is gone."""
        return self._packet(await self._held(tenant, approval_id))

    def packet(self, held: Held) -> Packet:
        """The same of a request that was found. ApprovalError when it can't be shown here."""
        return self._packet(held)

    async def decide(
        self,
        approval_id: str,
        voter: Voter,
        decision: Choice | str,
        *,
        comment: str = "",
        justification: str = "",
    ) -> Packet | None:
        """Take a person's vote. ApprovalError says why it can't be taken.

        Gives the packet as it is then; None after a rejection of what can't be shown here.
        """
        choice = _choice(decision)
        said = {"comment": self._words(comment), "justification": self._words(justification)}
        for _ in range(_TRIES):
            held = await self._held(voter.tenant, approval_id)
            if choice is Choice.APPROVE:
                self._packet(held)  # nobody approves what could not be shown to them
            now = self._runtime.clock()
            try:
                demand = Demand.from_record(held.demand)
                vote = cast(demand, _request(held), voter, choice, now=now, **said)
            except _UNREADABLE as error:
                raise _unreadable(error) from error
            if isinstance(vote, Objection):
                await self._note_expiry(held, now)
                raise ApprovalError(vote.value, vote.text)
            if choice is Choice.APPROVE:
                self._must_be_provable(held)
            decided = await self._runtime.store.vote(self._ballot(held, demand, vote, now))
            self._runtime.due.set()  # where that approved it, it is carried out at once
            if decided is not None:
                return self._packet_if_any(decided)
        raise ApprovalError("busy", "Others keep voting on this. Try again.")

    async def wait(self, tenant: str, approval_id: str, seconds: float) -> Packet:
        """The request once it is decided, or as it is when the time is over."""
        until = monotonic() + seconds
        held = await self._held(tenant, approval_id)
        while held.status is HeldStatus.WAITING and monotonic() < until:
            left = held.expires_at - self._runtime.clock()
            if left <= 0:
                await self._note_expiry(held, self._runtime.clock())
            else:
                most = max(0.0, min(until - monotonic(), left))
                await self._runtime.store.wait_held(tenant, approval_id, most)
            held = await self._held(tenant, approval_id)
        return self._packet(held)

    async def expire(self, limit: int = 100) -> int:
        """Put on record what nobody decided, or used, in time. Returns how many."""
        now, done = self._runtime.clock(), 0
        for status in _END:
            for held in await self._runtime.store.list_held(None, status, limit):
                if now < held.expires_at:
                    break  # they are ordered by when they end
                done += await self._note_expiry(held, now)
        return done

    async def answer(self, approver: Approver) -> int:
        """Let somebody decide all that waits, for tests. Returns how many votes were taken."""
        taken = 0
        for held in await self.list():
            said = approver(self._packet(held))
            voter, choice, comment = await said if isinstance(said, Awaitable) else said
            await self.decide(held.approval_id, voter, choice, comment=comment)
            taken += 1
        return taken

    # --- inside -----------------------------------------------------------------------------------

    async def _held(self, tenant: str, approval_id: str) -> Held:
        possible = is_id(tenant) and is_id(approval_id)
        held = await self._runtime.store.find_held(tenant, approval_id) if possible else None
        if held is None:
            raise ApprovalError("unknown", "There is no such request.")
        return held

    def _words(self, said: str) -> str:
        """What a voter says, as everybody gets it: the record, the card, and the model."""
        plain = said[: 10 * _LONGEST].replace("\0", " ").encode(errors="replace").decode()
        clean: str = self._runtime.redactor.redact(plain)[0]
        return clean[:_LONGEST]

    def _packet(self, held: Held) -> Packet:
        runtime = self._runtime
        try:
            contract = runtime.registry.get(held.tool, held.version).contract
        except RegistryError:
            contract = None
        if contract is None or contract.hash != held.contract_hash:
            said = f"{held.tool} {held.version} is not here as it was when this was asked."
            raise ApprovalError("contract", said)
        mark = runtime.fingerprint(held.tenant, held.key)
        try:
            return packet_of(held, contract, runtime.vault, runtime.redactor, mark)
        except (*_UNREADABLE, CountersealError) as error:
            raise _unreadable(error) from error

    def _packet_if_any(self, held: Held) -> Packet | None:
        try:
            return self._packet(held)
        except ApprovalError:
            return None

    def _must_be_provable(self, held: Held) -> None:
        """Nobody's yes is taken that would be worth nothing, or that others' votes only seem to be.

        A no always counts.
        """
        ring = self._runtime.keys
        if ring is None or not has_keys(ring):
            return
        if ring.newest(Purpose.APPROVAL) is None:
            raise ApprovalError("keys", "There is no key here to sign approvals with.")
        if has_unknown_keys(held, ring):
            said = "A vote on this request was signed with a key that is not here. Put it back."
            raise ApprovalError("keys", said)
        if len(proven_votes(held, ring)) != len(held.votes):
            said = "A vote on this request was not cast by whom it names. It can only be rejected."
            raise ApprovalError("forged", said)

    def _ballot(self, held: Held, demand: Demand, vote: Vote, now: float) -> Ballot:
        ring = self._runtime.keys
        votes = (*votes_of(held), vote)
        status = _OUTCOMES[tally(demand, votes, now=now, expires_at=held.expires_at)]
        approved = status is HeldStatus.APPROVED
        events = [_event(held, EventType.APPROVAL_VOTED, vote.decision.value, now, vote.record())]
        if status in _EVENTS:
            by = {"by": [one.approver for one in votes if one.decision is vote.decision]}
            events.append(_event(held, _EVENTS[status], status.value, now, by))
        signer = None if ring is None else ring.signer(Purpose.APPROVAL)
        return Ballot(
            tenant=held.tenant,
            approval_id=held.approval_id,
            seen=len(held.votes),
            votes=[*held.votes, signed(held, vote, signer)],
            status=status,
            token=self._token(held, votes, now) if approved else None,
            due=[(0.0, work_for(DueKind.EXECUTE, held))]
            if approved and demand.then is Then.EXECUTE
            else (),
            events=events,
        )

    def _token(self, held: Held, votes: Sequence[Vote], now: float) -> str | None:
        ring = self._runtime.keys
        if ring is None or not has_keys(ring):
            return None
        people = [vote.approver for vote in votes if vote.decision is Choice.APPROVE]
        claims = Claims(
            approval_id=held.approval_id,
            trace_id=held.trace_id,
            tenant=held.tenant,
            tool_name=held.tool,
            tool_version=held.version,
            contract_hash=held.contract_hash,
            payload_hash=held.approval_hash,
            approver_ids=tuple(people),
            approved_at=now,
            expires_at=held.expires_at,
        )
        return issue(claims, ring)

    async def _note_expiry(self, held: Held, now: float) -> bool:
        if held.status not in _END or now < held.expires_at:
            return False
        if held.status is HeldStatus.APPROVED and stands(held, held.run_id, now):
            return False  # its run is still told that it has expired, and asks nobody anew
        status, kind, told = _END[held.status]
        event = _event(held, kind, status.value, now, told)
        store = self._runtime.store
        return await store.decide(held.tenant, held.approval_id, status, [event]) is not None


def work_for(kind: DueKind, held: Held) -> Due:
    """A piece of due work about a request."""
    return Due(
        tenant=held.tenant,
        kind=kind,
        key=held.approval_id,
        call_id=held.call_id,
        run_id=held.run_id,
        tool=held.tool,
        version=held.version,
    )


def _unreadable(error: Exception) -> ApprovalError:
    why = str(error) if isinstance(error, CountersealError) else "it is damaged"
    return ApprovalError("unreadable", f"What is kept of this request can't be read: {why}.")


def _choice(decision: Choice | str) -> Choice:
    try:
        return Choice(decision)
    except ValueError:
        said = f"decision: takes approve or reject, not {ascii(decision)[:80]}"
        raise ApprovalError("decision", said) from None


def _shown(held: Held) -> Held:
    """Without the token: it is for execution, not for eyes."""
    return replace(held, token=None)


def _request(held: Held) -> PendingApproval:
    return PendingApproval(
        tenant=held.tenant,
        agent=held.agent,
        user=held.user,
        expires_at=held.expires_at,
        votes=votes_of(held),
        decided=held.status is not HeldStatus.WAITING,
    )


def _event(
    held: Held, kind: EventType, decision: str, now: float, body: Mapping[str, object]
) -> Event:
    caller = Caller(
        held.tenant,
        held.run_id,
        held.call_id,
        held.tool,
        held.version,
        held.agent,
        held.user,
        held.trace_id,
    )
    return Event(kind, caller, now, decision, body={"approval_id": held.approval_id, **body})
