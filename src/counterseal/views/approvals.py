"""Requests for approval: the lists, one request in full, and a person's vote on it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field, PlainSerializer, WithJsonSchema

from counterseal.accounts.users import Person, Role
from counterseal.approvals.packet import Packet
from counterseal.approvals.terms import Choice, Voter, may_vote, missing_roles
from counterseal.contract.effects import RiskClass
from counterseal.ledger.records import DueKind, Held, HeldStatus
from counterseal.operations.approver import ApprovalError
from counterseal.views.base import (
    MAX_PAGE,
    JsonObject,
    JsonValue,
    Moment,
    NotFoundError,
    Number,
    Page,
    RoleRequiredError,
    RowModel,
    TenantSection,
    cursor_error,
    page_size,
    read_cursor,
    scanned_page,
    storable,
    utc,
)

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

# --- rows -----------------------------------------------------------------------------------------

ApprovalStatus = Literal["waiting", "approved", "rejected", "expired", "spent", "void"]
_Second = Annotated[
    datetime,
    PlainSerializer(
        lambda moment: f"{moment:%Y-%m-%dT%H:%M:%SZ}", return_type=str, when_used="json"
    ),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A time in whole seconds, as the packet shows it."""


class ApprovalRow(RowModel):
    """One request in a list."""

    approval_id: str
    status: ApprovalStatus
    tool: str
    version: str
    risk_class: str
    consequence: str | None = Field(description="Null where it cannot be shown here.")
    unreadable: str = Field(description="Why it cannot be shown; empty where it can.")
    agent: str
    user: str | None
    run_id: str
    call_id: str
    approved: int = Field(description="Approvals so far.")
    approvers: int = Field(description="Approvals that are needed.")
    needed: str = Field(description="Which role an approver must still have; empty if none.")
    stopped: str | None = Field(description="Why it cannot be approved now: its tool is stopped.")
    objection: str | None = Field(
        description="In a list for a person: why that person cannot decide it."
    )
    created_at: Moment
    expires_at: Moment


class VoteRow(RowModel):
    """One person's vote."""

    approver: str
    decision: Literal["approve", "reject"]
    voted_at: Number
    roles: list[str]
    comment: str
    justification: str


class Action(RowModel):
    """The tool version that a request is about."""

    tool: str
    version: str
    effect: str | None
    contract_hash: str


class StateChange(RowModel):
    """A place in the state that the call is expected to change."""

    pointer: str
    before: JsonValue
    after: JsonValue


class ApprovalReason(RowModel):
    """Why the call needs approval."""

    reason: str
    rule: str | None


class ApprovalConditions(RowModel):
    """Who may approve, how many must, and until when."""

    approvers: int
    pattern: str
    roles: list[list[str]] = Field(description="Each approver has one role of each list.")
    including: list[list[str]] = Field(
        default=[], description="At least one of the approvers has one role of each list."
    )
    expires_after: int
    then: str
    justification_required: bool
    data_class: str | None
    jurisdictions: list[str]
    accountable_owners: list[str]
    who: str


class Votes(RowModel):
    """The votes so far."""

    so_far: str
    cast: list[VoteRow]


class Requester(RowModel):
    """The agent that made the call, and the user it acts for."""

    tenant: str
    agent: str
    user: str | None


class Reversibility(RowModel):
    """Whether the call can be undone."""

    text: str
    compensation_tool: str | None


class ReversedCall(RowModel):
    """The call that a compensation undoes."""

    call_id: str
    tool: str
    external_ref: str | None = Field(description="The destination's own reference.")


class ApprovalPage(RowModel):
    """Everything that an approver reads before deciding."""

    approval_id: str
    status: ApprovalStatus
    consequence: str
    action: Action
    target: str | None
    reverses: ReversedCall | None = Field(
        description="For a compensation: the call that it undoes."
    )
    arguments: JsonObject
    config: JsonObject
    origins: dict[str, str]
    before: JsonObject | None
    after: JsonObject | None
    changes: list[StateChange]
    fingerprint: str
    risk_class: str
    why: ApprovalReason
    approval: ApprovalConditions
    votes: Votes
    requester: Requester
    reversibility: Reversibility
    if_rejected: str
    created_at: _Second
    expires_at: _Second
    trace_id: str
    confirmation: str | None = Field(description="The text that an approver must type to approve.")
    needed: str = Field(description="Which role an approver must still have; empty if none.")
    stopped: str | None = Field(
        None, description="Why it cannot be approved now: its tool is stopped."
    )


def approval_row(
    runtime: Runtime,
    held: Held,
    objection: Callable[[Packet], str | None] = lambda _: None,
    others: Iterable[Voter] = (),
) -> ApprovalRow:
    """Return a held call as a row. `objection` says why a person cannot decide it.

    The consequence needs the contract; `unreadable` says why it is missing where this process does
    not know it. A request whose time is over counts as expired before any worker has recorded it.
    """
    packet, unreadable = None, ""
    try:
        packet = runtime.approvals.packet(held)
    except ApprovalError as error:
        unreadable = str(error)
    stored: Sequence[Any] = held.votes  # read from the store, so anything may be in it
    votes = [vote for vote in stored if isinstance(vote, Mapping)]
    approved_by = {str(vote.get("approver")) for vote in votes if vote.get("decision") == "approve"}
    waiting = held.status is HeldStatus.WAITING
    expired = waiting and runtime.clock() >= held.expires_at
    return ApprovalRow(
        approval_id=held.approval_id,
        status=HeldStatus.EXPIRED.value if expired else held.status.value,
        tool=held.tool,
        version=held.version,
        risk_class=held.risk,
        consequence=None if packet is None else packet.consequence,
        unreadable=unreadable,
        agent=held.agent,
        user=held.user,
        run_id=held.run_id,
        call_id=held.call_id,
        approved=len(approved_by),
        approvers=held.approvers,
        needed="" if packet is None or expired else needed(runtime, packet, others),
        stopped=runtime.approvals.stop_reason(held.tenant, held.tool, held.version)
        if waiting
        else None,
        objection=objection(packet) if waiting and packet is not None else None,
        created_at=utc(held.created_at),
        expires_at=utc(held.expires_at),
    )


def approval_page(packet: Packet, needed: str, stopped: str | None = None) -> ApprovalPage:
    """Return a packet as a row, with the text that an approver must type."""
    word = confirmation(packet)
    return ApprovalPage(**packet.record(), confirmation=word, needed=needed, stopped=stopped)


def needed(runtime: Runtime, packet: Packet, others: Iterable[Voter] = ()) -> str:
    """Return which role is still needed, and whether no user and none of `others` has it."""
    if not packet.needed:
        return ""
    tenant, now = packet.tenant, runtime.clock()
    users = [one for one in runtime.registry.users if one.active]
    people = [Person.of(user.name, tenant, user.tenants) for user in users]
    voters = [*others, *(_voter(one) for one in people if one and one.may(Role.APPROVER))]
    able = [one for one in voters if may_vote(packet.demand, packet.pending, one, now=now) is None]
    held = frozenset[str]().union(*(one.roles for one in able))
    if all(names & held for names in missing_roles(packet.demand, packet.votes)):
        return packet.needed
    return f"{packet.needed} No known person who can approve it has that role."


def _voter(person: Person) -> Voter:
    return Voter(user=person.name, tenant=person.tenant, roles=person.roles)


# --- one request ----------------------------------------------------------------------------------

_MAX_TYPED: Final = 64
"""Characters that an approver can be expected to type."""


def confirmation(packet: Packet) -> str | None:
    """Return the text that an approver must type to approve; None where no text is needed.

    Critical mutations need it: the target, so that an approver does not confuse two requests, or
    the tool's name where the target cannot be typed.
    """
    if packet.risk != RiskClass.CRITICAL_MUTATION.value:
        return None
    target = packet.target or ""
    typeable = target.isascii() and target.isprintable() and target == " ".join(target.split())
    return target if target and typeable and len(target) <= _MAX_TYPED else packet.tool


def current(packet: Packet, now: float) -> Packet:
    """Return the packet with the status expired if its time is over."""
    over = packet.status == "waiting" and now >= packet.expires_at
    return replace(packet, status="expired") if over else packet


# --- the section ----------------------------------------------------------------------------------

_BATCH: Final = 200
_MAX_WAIT: Final = 300.0
_ENDED: Final = tuple(status for status in HeldStatus if status is not HeldStatus.WAITING)
_AFTER_ALL_IDS: Final = "\U0010ffff"
_Place = tuple[float, str]
"""Expiry and id: requests are listed in this order."""


class ApprovalViews(TenantSection):
    """Requests of a tenant. Viewers may read; voting requires the role approver."""

    async def search(
        self,
        status: str = "waiting",
        *,
        tool: str | None = None,
        agent: str | None = None,
        risk: str | None = None,
        text: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[ApprovalRow]:
        """Return requests of a status. Raises ValueError for an unknown one.

        Those that wait come in the order in which they expire, others latest first; `decided` has
        every outcome. `text` is searched in the consequence.
        """
        limit, beyond = page_size(limit), None
        if cursor is not None:
            beyond = read_cursor(cursor, float, str)
            if not storable(beyond[1]):
                raise cursor_error()
        if status == HeldStatus.WAITING:
            requests = self._read_waiting(beyond)
        else:
            statuses = _ENDED if status == "decided" else (HeldStatus(status),)
            batch = _BATCH if tool or agent or risk or text else limit + 1
            requests = self._read_decided(statuses, batch, beyond)

        async def candidates() -> AsyncGenerator[tuple[_Place, ApprovalRow | None]]:
            async for held in requests:
                fits = tool in (None, held.tool) and agent in (None, held.agent)
                row = None
                if fits and risk in (None, held.risk):
                    row = approval_row(self.runtime, held, self.objection)
                if row and text and text.casefold() not in (row.consequence or "").casefold():
                    row = None
                yield (held.expires_at, held.approval_id), row

        rows, more = await scanned_page(candidates(), limit)
        return Page[ApprovalRow](items=rows, next=more)

    async def row(self, approval_id: str) -> ApprovalRow:
        """Return a request in short, whether or not it can be shown here. Raises NotFoundError."""
        with _not_found_errors():
            held = await self.runtime.approvals.find(self.tenant, approval_id)
            return approval_row(self.runtime, held)

    async def packet(self, approval_id: str) -> Packet:
        """Return a request's packet. Raises NotFoundError, ApprovalError if it can't be shown."""
        with _not_found_errors():
            packet = await self.runtime.approvals.get(self.tenant, approval_id)
            return current(packet, self.runtime.clock())

    async def page(self, approval_id: str) -> ApprovalPage:
        """Return a request in full. Raises NotFoundError, ApprovalError if it can't be shown."""
        return self.page_of(await self.packet(approval_id))

    def page_of(self, packet: Packet) -> ApprovalPage:
        """Return a packet with what else an approver has to know now."""
        return approval_page(packet, needed(self.runtime, packet), self.stop_reason(packet))

    def stop_reason(self, packet: Packet) -> str | None:
        """Return why a waiting request cannot be approved now: its tool is stopped."""
        if packet.status != HeldStatus.WAITING:
            return None
        return self.runtime.approvals.stop_reason(self.tenant, packet.tool, packet.version)

    async def failure(self, approval_id: str) -> str | None:
        """Return why an approved call could not be executed, if an operator has to look at it."""
        work = await self.runtime.store.find_due(self.tenant, DueKind.EXECUTE, approval_id)
        return None if work is None else work.failed

    async def count(self) -> int:
        """Return how many requests wait, up to `MAX_PAGE`."""
        now, waiting = self.runtime.clock(), HeldStatus.WAITING
        return len(await self.runtime.store.list_held(self.tenant, waiting, MAX_PAGE, after=now))

    def objection(self, packet: Packet, choice: Choice = Choice.REJECT) -> str | None:
        """Return a sentence that says why this person cannot vote so; None if they can.

        A person who can approve can reject, so an objection to a rejection is one to any vote.
        """
        if not self.person.may(Role.APPROVER):
            return str(RoleRequiredError(Role.APPROVER))
        now = self.runtime.clock()
        reason = may_vote(packet.demand, packet.pending, _voter(self.person), choice, now=now)
        return None if reason is None else reason.text_for(packet.demand, packet.votes)

    async def decide(
        self,
        approval_id: str,
        choice: str,
        *,
        comment: str = "",
        justification: str = "",
        typed: str = "",
    ) -> Packet | None:
        """Vote on a request, and return its packet; None after rejecting an unreadable one.

        Approving a critical mutation requires `typed` to be `confirmation(packet)`. Raises
        RoleRequiredError, NotFoundError, or ApprovalError, whose `why` is a word for programs.
        """
        self.require(Role.APPROVER)
        with _not_found_errors():
            if choice == Choice.APPROVE:
                word = confirmation(await self.runtime.approvals.get(self.tenant, approval_id))
                if word is not None and typed.strip() != word:
                    message = f"To approve this, type {word} to confirm what it acts on."
                    raise ApprovalError("typed", message)
            decided = await self.runtime.approvals.decide(
                approval_id,
                _voter(self.person),
                choice,
                comment=comment,
                justification=justification,
            )
        return None if decided is None else current(decided, self.runtime.clock())

    async def wait(self, approval_id: str, seconds: float) -> Packet:
        """Return the packet once the request is decided, or when the time is over."""
        timeout = max(0.0, min(float(seconds), _MAX_WAIT))
        with _not_found_errors():
            packet = await self.runtime.approvals.wait(self.tenant, approval_id, timeout)
            return current(packet, self.runtime.clock())

    # --- inside -----------------------------------------------------------------------------------

    async def _read_waiting(self, beyond: _Place | None) -> AsyncGenerator[Held]:
        """Yield waiting requests beyond a position, in batches."""
        store, now, full = self.runtime.store, self.runtime.clock(), True
        while full:
            batch = await store.list_held(
                self.tenant, HeldStatus.WAITING, _BATCH, after=now, beyond=beyond
            )
            full = len(batch) == _BATCH
            for held in batch:
                beyond = (held.expires_at, held.approval_id)
                yield held

    async def _read_decided(
        self, statuses: Sequence[HeldStatus], size: int, beyond: _Place | None
    ) -> AsyncGenerator[Held]:
        """Yield ended requests beyond a position, in batches of `size`."""
        now, full = (self.runtime.clock(), _AFTER_ALL_IDS), True
        while full:
            reads = [(status, beyond) for status in statuses]
            if HeldStatus.EXPIRED in statuses:  # and those whose expiry is not recorded yet
                reads.append((HeldStatus.WAITING, now if beyond is None else min(beyond, now)))
            batch: list[Held] = []
            for status, place in reads:
                batch += await self.runtime.store.list_held(
                    self.tenant, status, size, newest_first=True, beyond=place
                )
            batch.sort(key=lambda held: (held.expires_at, held.approval_id), reverse=True)
            full = len(batch) >= size
            for held in batch[:size]:
                beyond = (held.expires_at, held.approval_id)
                yield held


@contextmanager
def _not_found_errors() -> Iterator[None]:
    """Turn the ApprovalError of an unknown request into NotFoundError."""
    try:
        yield
    except ApprovalError as error:
        if error.why == "unknown":
            raise NotFoundError("approval") from None
        raise
