"""Approvers: they list requests, read their packets, and vote.

Requests and votes are in the store, so that any worker can show and decide the requests of another.
The voter's name and roles come from authentication, never from a model.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic
from typing import Final

from counterseal.approvals.packet import Packet
from counterseal.approvals.terms import (
    Choice,
    Demand,
    Objection,
    PendingApproval,
    Vote,
    Voter,
    cast,
    tally,
)
from counterseal.approvals.tokens import Claims, issue
from counterseal.audit import Event, EventType
from counterseal.call.call import CallServices
from counterseal.call.events import caller_of
from counterseal.call.hold import packet_of
from counterseal.contract.approval_terms import Then
from counterseal.errors import CountersealError, RegistryError
from counterseal.gates.approval import (
    has_keys,
    has_unknown_keys,
    proven_votes,
    vote_record,
    votes_of,
)
from counterseal.gates.parse import is_id
from counterseal.keys import Purpose
from counterseal.ledger.holds import stands
from counterseal.ledger.records import Due, DueKind, Held, HeldStatus
from counterseal.ledger.requests import Ballot

Approver = Callable[[Packet], Awaitable[tuple[Voter, Choice, str]] | tuple[Voter, Choice, str]]
"""Decides on a request at once; for tests."""
_TRIES: Final = 20
_MAX_CHARACTERS: Final = 2000
"""Limit for a voter's comment or justification; the rest is cut off."""
_UNREADABLE: Final = (ValueError, TypeError, LookupError, AttributeError)
"""What reading a damaged row can raise."""
_EVENTS: Final = {
    HeldStatus.APPROVED: EventType.APPROVAL_GRANTED,
    HeldStatus.REJECTED: EventType.APPROVAL_REJECTED,
    HeldStatus.EXPIRED: EventType.APPROVAL_EXPIRED,
}
_UNUSED: Final = "It was not used in time."
_END: Final[Mapping[HeldStatus, tuple[HeldStatus, EventType, Mapping[str, str]]]] = {
    HeldStatus.WAITING: (HeldStatus.EXPIRED, EventType.APPROVAL_EXPIRED, {}),
    HeldStatus.APPROVED: (HeldStatus.VOID, EventType.APPROVAL_VOID, {"reason": _UNUSED}),
}
"""Status, event and body with which a request ends when its time is over."""


class ApprovalError(CountersealError):
    """A vote is refused, or a request does not exist. `why` is one word for programs."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why


class Approvals:
    """The requests for approval of one runtime: `runtime.approvals`."""

    def __init__(self, services: CallServices) -> None:
        self._services = services

    async def list(
        self,
        tenant: str | None = None,
        *,
        status: HeldStatus | str = HeldStatus.WAITING,
        limit: int = 100,
    ) -> Sequence[Held]:
        """Return the requests with this status, of one tenant or of all.

        Waiting requests are ordered by their end, the first to end at the top; others the other way
        round. An expired request is not listed as waiting, even before its expiry is recorded.
        """
        wanted = HeldStatus(status)
        if tenant is not None and not is_id(tenant):
            return []
        store = self._services.store
        if wanted is HeldStatus.WAITING:
            return await store.list_held(tenant, wanted, limit, after=self._services.clock())
        requests = await store.list_held(tenant, wanted, limit, newest_first=True)
        return [replace(held, token=None) for held in requests]  # only execution needs the token

    async def find(self, tenant: str, approval_id: str) -> Held:
        """Return the request as it is stored. Raises ApprovalError if there is none."""
        return replace(await self._held(tenant, approval_id), token=None)

    async def get(self, tenant: str, approval_id: str) -> Packet:
        """Return the packet that approvers see. Raises ApprovalError if there is no request."""
        return self.packet(await self._held(tenant, approval_id))

    async def decide(
        self,
        approval_id: str,
        voter: Voter,
        decision: Choice | str,
        *,
        comment: str = "",
        justification: str = "",
    ) -> Packet | None:
        """Record a vote. ApprovalError says why it is refused.

        Returns the packet with the vote; None after the rejection of a request that this worker
        can't show.
        """
        try:
            choice = Choice(decision)
        except ValueError:
            reason = f"decision must be approve or reject, got {ascii(decision)[:80]}"
            raise ApprovalError("decision", reason) from None
        texts = {"comment": self._clean(comment), "justification": self._clean(justification)}
        for _ in range(_TRIES):
            held = await self._held(voter.tenant, approval_id)
            if choice is Choice.APPROVE:
                self.packet(held)  # only what can be shown can be approved
            now = self._services.clock()
            try:
                demand = Demand.from_record(held.demand)
                vote = cast(demand, _pending(held), voter, choice, now=now, **texts)
            except _UNREADABLE as error:
                raise _unreadable(error) from error
            if isinstance(vote, Objection):
                await self._note_expiry(held, now)
                raise ApprovalError(vote.value, vote.text_for(demand, votes_of(held)))
            if choice is Choice.APPROVE:
                self._must_be_provable(held)
                stopped = self.stop_reason(held.tenant, held.tool, held.version)
                if stopped is not None:
                    raise ApprovalError("stopped", stopped)
            decided = await self._services.store.vote(self._ballot(held, demand, vote, now))
            self._services.due.set()  # an approved call is executed at once
            if decided is not None:
                with suppress(ApprovalError):
                    return self.packet(decided)
                return None
        raise ApprovalError("busy", "Others keep voting on this. Try again.")

    def stop_reason(self, tenant: str, tool: str, version: str) -> str | None:
        """Return why a tool can't run now: it is stopped, disabled or retired. None if it can.

        No approver can approve a call of such a tool: it would be refused.
        """
        registry = self._services.registry
        try:
            record = registry.get(tool, version)
        except RegistryError:
            return None
        for kill in registry.kills:
            if kill.covers(record, tenant):
                by = f" by {kill.by}" if kill.by else ""
                again = "It can be approved after an operator has restored it."
                return f"{tool} was stopped{by}: {kill.reason.rstrip('.')}. {again}"
        ended = record.ended(datetime.fromtimestamp(self._services.clock(), UTC))
        return None if ended is None else ended.message

    async def wait(self, tenant: str, approval_id: str, seconds: float) -> Packet:
        """Return the packet once the request is decided, or after this many seconds."""
        until = monotonic() + seconds
        held = await self._held(tenant, approval_id)
        while held.status is HeldStatus.WAITING and monotonic() < until:
            left = held.expires_at - self._services.clock()
            if left <= 0:
                await self._note_expiry(held, self._services.clock())
            else:
                most = max(0.0, min(until - monotonic(), left))
                await self._services.store.wait_held(tenant, approval_id, most)
            held = await self._held(tenant, approval_id)
        return self.packet(held)

    async def expire(self, limit: int = 100) -> int:
        """Record the expiry of requests not decided, or not used, in time. Returns how many."""
        now, count = self._services.clock(), 0
        for status in _END:
            for held in await self._services.store.list_held(None, status, limit):
                if now < held.expires_at:
                    break  # ordered by their end
                count += await self._note_expiry(held, now)
        return count

    async def answer(self, approver: Approver) -> int:
        """Let an approver decide on every waiting request, for tests. Returns how many."""
        count = 0
        for held in await self.list():
            answer = approver(self.packet(held))
            voter, choice, comment = await answer if isinstance(answer, Awaitable) else answer
            await self.decide(held.approval_id, voter, choice, comment=comment)
            count += 1
        return count

    # --- inside -----------------------------------------------------------------------------------

    async def _held(self, tenant: str, approval_id: str) -> Held:
        valid = is_id(tenant) and is_id(approval_id)
        held = await self._services.store.find_held(tenant, approval_id) if valid else None
        if held is None:
            raise ApprovalError("unknown", "There is no such request.")
        return held

    def _clean(self, text: str) -> str:
        """Return a voter's text redacted and bounded, for the record, the packet and the model."""
        plain = text[: 10 * _MAX_CHARACTERS].replace("\0", " ").encode(errors="replace").decode()
        clean: str = self._services.redactor.redact(plain)[0]
        return clean[:_MAX_CHARACTERS]

    def packet(self, held: Held) -> Packet:
        """Return the packet of a request. Raises ApprovalError if this worker can't show it."""
        services = self._services
        try:
            contract = services.registry.get(held.tool, held.version).contract
        except RegistryError:
            contract = None
        if contract is None or contract.hash != held.contract_hash:
            reason = f"{held.tool} {held.version} has changed since approval was requested."
            raise ApprovalError("contract", reason)
        fingerprint = services.telemetry.fingerprint(held.tenant, held.key)
        try:
            return packet_of(held, contract, services.vault, services.redactor, fingerprint)
        except (*_UNREADABLE, CountersealError) as error:
            raise _unreadable(error) from error

    def _must_be_provable(self, held: Held) -> None:
        """Refuse an approval that could not be proven, or that follows a forged vote.

        A rejection always counts.
        """
        ring = self._services.keys
        if ring is None or not has_keys(ring):
            return
        if ring.newest(Purpose.APPROVAL) is None:
            raise ApprovalError("keys", "There is no key here to sign approvals with.")
        if has_unknown_keys(held, ring):
            reason = "A vote on this request was signed with a key that is not here. Put it back."
            raise ApprovalError("keys", reason)
        if len(proven_votes(held, ring)) != len(held.votes):
            reason = "A vote on this request has no valid signature. It can only be rejected."
            raise ApprovalError("forged", reason)

    def _ballot(self, held: Held, demand: Demand, vote: Vote, now: float) -> Ballot:
        ring, token, due = self._services.keys, None, list[tuple[float, Due]]()
        votes = (*votes_of(held), vote)
        status = HeldStatus(tally(demand, votes, now=now, expires_at=held.expires_at).value)
        if status is HeldStatus.APPROVED:
            token = self._token(held, votes, now)
            if demand.then is Then.EXECUTE:
                due.append((0.0, work_for(DueKind.EXECUTE, held)))
        events = [_event(held, EventType.APPROVAL_VOTED, vote.decision.value, now, vote.record())]
        if status in _EVENTS:
            voters = [each.approver for each in votes if each.decision is vote.decision]
            events.append(_event(held, _EVENTS[status], status.value, now, {"by": voters}))
        signer = None if ring is None else ring.signer(Purpose.APPROVAL)
        return Ballot(
            tenant=held.tenant,
            approval_id=held.approval_id,
            seen=len(held.votes),
            votes=[*held.votes, vote_record(held, vote, signer)],
            status=status,
            token=token,
            due=due,
            events=events,
        )

    def _token(self, held: Held, votes: Sequence[Vote], now: float) -> str | None:
        ring = self._services.keys
        if ring is None or not has_keys(ring):
            return None
        approvers = [vote.approver for vote in votes if vote.decision is Choice.APPROVE]
        claims = Claims(
            approval_id=held.approval_id,
            trace_id=held.trace_id,
            tenant=held.tenant,
            tool_name=held.tool,
            tool_version=held.version,
            contract_hash=held.contract_hash,
            payload_hash=held.approval_hash,
            approver_ids=tuple(approvers),
            approved_at=now,
            expires_at=held.expires_at,
        )
        return issue(claims, ring)

    async def _note_expiry(self, held: Held, now: float) -> bool:
        if held.status not in _END or now < held.expires_at:
            return False
        if held.status is HeldStatus.APPROVED and stands(held, held.run_id, now):
            return False  # its run must still learn that it has expired, before a new request
        status, kind, body = _END[held.status]
        event = _event(held, kind, status.value, now, body)
        store = self._services.store
        return await store.decide(held.tenant, held.approval_id, status, [event]) is not None


def work_for(kind: DueKind, held: Held) -> Due:
    """Return due work about a request."""
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
    reason = str(error) if isinstance(error, CountersealError) else "it is damaged"
    return ApprovalError("unreadable", f"The stored request can't be read: {reason}.")


def _pending(held: Held) -> PendingApproval:
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
    caller = caller_of(held, held.agent, held.user, held.trace_id)
    return Event(kind, caller, now, decision, body={"approval_id": held.approval_id, **body})
