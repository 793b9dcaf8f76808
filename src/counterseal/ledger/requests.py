"""Requests to the store and their results. Each request is one transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from counterseal.audit import Columns, Event, Link
from counterseal.audit.chain import COLUMNS, micros, place_of
from counterseal.contract.money import money_text
from counterseal.ledger.entry import Entry
from counterseal.ledger.records import Due, Held, HeldStatus
from counterseal.ledger.rows import EntryRow, VaultRow, current_entry

NEW_KEY: Final = 0
"""`takes_over` of a caller that has not looked up the key. No fence number is that low."""
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_BEFORE_ALL: Final = (0, "")
_AFTER_ALL: Final = (2**62, "")

_MOST = 2**63 - 1
"""The highest number that a counter can hold."""
_TICK = 1e-6
"""Rounding errors of times, which are larger numbers."""
_MINUTE = 60.0


class Charge(NamedTuple):
    """An amount to be spent on a counter, if its limit allows."""

    budget: str
    """The budget's name, as it is shown to a caller."""
    counter: str
    amount: int
    limit: float
    of_run: bool
    """True for a counter of the run, False for one of its tenant."""
    currency: str = ""
    """Of an amount of money, which is counted in millionths of the currency's unit."""

    def exceeds(self, spent: int) -> bool:
        """Return True when spending would break the limit."""
        return spent + self.amount > min(self.limit, _MOST)

    def words(self, amount: float) -> str:
        """Return an amount of this budget as people read it."""
        if self.currency:
            return money_text(int(amount), self.currency)
        return f"{amount:,}" if isinstance(amount, int) else f"{amount:g}"


class RateLimit(NamedTuple):
    """A rate limit (GCRA) of the tenant: one call every `interval` seconds, `burst` at once."""

    counter: str
    interval: float
    burst: int

    def wait(self, arrival: float, now: float) -> float:
        """Return how many seconds a call must wait after a theoretical arrival."""
        wait = arrival - now - self.interval * (self.burst - 1)
        if wait <= self.interval * _TICK:
            return 0.0
        # More than one interval can only come from a clock that went back. Clocks of workers
        # differ by less than a minute; after a longer way back, the count begins anew.
        return 0.0 if wait > self.interval + _MINUTE else min(wait, self.interval)

    def next(self, arrival: float, now: float) -> float:
        """Return the theoretical arrival after one more call."""
        if arrival <= now:
            return now + self.interval
        return min(arrival, now + self.interval * (self.burst - 1)) + self.interval


class Memory(NamedTuple):
    """Everything stored that bears on a call, from one read."""

    entry: Entry | None
    held: Held | None
    """The last request for approval under the same key."""
    run_counters: Mapping[str, int]
    tenant_counters: Mapping[str, int]
    rates: Mapping[str, float]


class AdmissionRequest(NamedTuple):
    """Everything that must happen together before a tool may run."""

    tenant: str
    run_id: str
    tool: str
    version: str
    now: float
    charges: Sequence[Charge]
    rates: Sequence[RateLimit]
    entry: Entry | None
    """The ledger entry to reserve; None for a read."""
    approval_id: str | None
    epoch: int
    """The number of the last stored change to the registry that the decision rests on."""
    events: Sequence[Event]
    reads: Mapping[str, int] = _NOTHING
    """Keys of run state that the decision rests on, with their versions at that time."""
    takes_over: int | None = None
    """The fence of an entry with an unknown outcome, whose contract lets it be tried again.

    `NEW_KEY`: the key was not looked up, so it must be unused.
    """
    lease: float = 30.0
    """Seconds for which the worker holds the entry, unless renewed; by the store's clock."""
    resume: bytes | None = None
    """Data with which another worker can go on from here; opaque to the store."""
    captured: VaultRow | None = None
    """The proposal, to be kept if the call is admitted."""


class AdmissionRefusal(StrEnum):
    """Why an admission did not happen."""

    BUDGET = "budget"
    RATE = "rate"
    DUPLICATE = "duplicate"
    APPROVAL = "approval"
    PIN = "pin"
    STATE = "state"
    EPOCH = "epoch"


class Admission(NamedTuple):
    refused: AdmissionRefusal | None = None
    entry: Entry | None = None
    """The reserved entry, or on DUPLICATE the entry that was there first."""
    charge: Charge | None = None
    spent: int = 0
    rate: RateLimit | None = None
    retry_after: float = 0.0


class SettlementRequest(NamedTuple):
    """Everything that must happen together after a tool ran."""

    tenant: str
    run_id: str
    now: float
    entry: Entry | None
    """The entry with its outcome. An older fence number changes nothing."""
    seen: Mapping[str, str | int]
    state: Sequence[tuple[str, str, Any]]
    """(key, merge, value) for each declared effect on run state."""
    events: Sequence[Event]
    mended: str | None = None
    """A tool that has succeeded, so that its counted refusals are deleted."""
    untrusted: bool = False
    """True when the new state values are untrusted."""
    again_after: float | None = None
    """For an entry that stays PENDING: seconds until a worker should look; None: never."""
    keep_for: float | None = None
    """For a settled entry: seconds for which its answer is kept; None: for ever."""
    gives_back: str | None = None
    """An approval that was spent on a call that did not happen, and is usable again."""
    due: Sequence[tuple[float, Due]] = ()
    """Work to be done later, each with the seconds until then."""
    held_by: str | None = None
    """The worker that must hold the entry, or nothing changes; None: the fence number suffices."""


class Ballot(NamedTuple):
    """A vote on a request, with the result of all votes."""

    tenant: str
    approval_id: str
    seen: int
    """Number of votes before this one. If there are more by now, nothing happens."""
    votes: Sequence[Mapping[str, Any]]
    """All votes, this one included."""
    status: HeldStatus
    """The status after these votes."""
    token: str | None = None
    due: Sequence[tuple[float, Due]] = ()
    events: Sequence[Event] = ()


class Claim(NamedTuple):
    """A worker's claim: for how long, and how much work."""

    worker: str
    lease: float
    limit: int = 32
    tools: Collection[str] | None = None
    """Names of the tools whose work the worker can do; None: all."""
    lapsed_for: float = 0.0
    """Seconds that the work must have been waiting for."""


class StoredEntry(NamedTuple):
    """An entry with what was stored to go on from it."""

    entry: Entry
    resume: bytes | None
    unexpired: Entry | None = None
    """The entry with its answer, where its time is over and the answer is not deleted yet."""
    created_at: float | None = None
    completed_at: float | None = None
    """As in `EntryRow`."""


def stored_entry(row: EntryRow, resume: bytes | None, now: float) -> StoredEntry:
    """Return an entry as it is at a time."""
    entry = current_entry(row, now)
    expired = entry.status is not row.entry.status or entry.observation is not row.entry.observation
    unexpired = row.entry if expired else None
    return StoredEntry(entry, resume, unexpired, row.created_at, row.completed_at)


class FinishRequest(NamedTuple):
    """The outcome of a piece of due work. `work.fence` must be the current number."""

    work: Due
    again_after: float | None = None
    """Seconds after which it is tried again."""
    failed: str | None = None
    """The reason for which it needs attention. Neither: it is done."""
    compensated: Mapping[str, Any] | None = None
    """The answer of a reversed call: its entry becomes COMPENSATED."""
    due: Sequence[tuple[float, Due]] = ()
    events: Sequence[Event] = ()


class EventFilter(NamedTuple):
    """Which events of a tenant to return. None does not narrow."""

    call_id: str | None = None
    caller_call_id: str | None = None
    run_id: str | None = None
    tool: str | None = None
    types: Collection[str] | None = None
    since: float | None = None
    """Recorded at this time or later; in seconds since the epoch."""
    until: float | None = None
    """Recorded before this time."""
    after: str | None = None
    """The id of an event to go on behind, in the order of the list."""
    limit: int | None = None
    newest_first: bool = False


class CallFilter(NamedTuple):
    """Which calls of a tenant to return, newest first. None does not narrow."""

    tool: str | None = None
    version: str | None = None
    agent: str | None = None
    user: str | None = None
    run_id: str | None = None
    code: str | None = None
    """The code that the call was answered with."""
    external_ref: str | None = None
    caller_call_id: str | None = None
    workflow_id: str | None = None
    conversation_id: str | None = None
    session_id: str | None = None
    since: float | None = None
    """As in `EventFilter`."""
    until: float | None = None
    after: str | None = None
    """The id of the event to go on behind."""
    limit: int = 50


def searched_columns(search: EventFilter | CallFilter) -> dict[str, str]:
    """Return the columns of events that must have a value, with it."""
    columns = {name: getattr(search, name) for name in COLUMNS if hasattr(search, name)}
    return {name: value for name, value in columns.items() if value is not None}


def searched_places(
    search: EventFilter | CallFilter, *, newest_first: bool
) -> tuple[tuple[int, str], tuple[int, str]]:
    """Return the places in the log between which events are looked for, both excluded."""
    begin = _BEFORE_ALL if search.since is None else (micros(search.since), "")
    end = _AFTER_ALL if search.until is None else (micros(search.until), "")
    if search.after is None:
        return begin, end
    place = place_of(search.after)
    return (begin, min(end, place)) if newest_first else (max(begin, place), end)


class TallyCount(NamedTuple):
    """The number of events of a tally in one part of a time, and their cost."""

    part: int
    tally: str
    """See `audit.events.filed`."""
    times: int
    cost: float


class LogRow(NamedTuple):
    """One row of the audit log as it is stored, for verification."""

    link: Link
    columns: Columns | None
    """The event; None once it was erased."""


class ExpiryRequest(NamedTuple):
    """One bounded batch of expiry. Ages are in seconds; None: kept for ever."""

    limit: int = 500
    vault_after: float | None = None
    events_after: float | None = None
