"""What a store is asked, and what it answers. Each request is one transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from counterseal.audit import Columns, Event, Link
from counterseal.ledger.entry import Entry
from counterseal.ledger.records import Due, Held, HeldStatus

__all__ = [
    "NEW_KEY",
    "Admission",
    "AdmissionRefusal",
    "AdmissionRequest",
    "Ballot",
    "CallFilter",
    "Charge",
    "Claim",
    "EventFilter",
    "ExpiryRequest",
    "FinishRequest",
    "LogRow",
    "Memory",
    "RateLimit",
    "SettlementRequest",
    "StoredEntry",
    "TallyCount",
]

NEW_KEY: Final = 0
"""What is taken over by whoever thinks that a key is new. No fence is that low."""
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})

_HAIR = 1e-9
"""What binary fractions may add up to without meaning anything."""
_TICK = 1e-6
"""The same for moments, which are large numbers and therefore coarser."""


class Charge(NamedTuple):
    """An amount to be spent on a counter, if its limit allows."""

    budget: str
    """The budget's name, as a caller is told it."""
    counter: str
    amount: float
    limit: float
    of_run: bool
    """Whether the counter is the run's own, or its tenant's."""

    def exceeds(self, spent: float) -> bool:
        """Whether spending would break the limit. A hair more is money's binary fractions."""
        return spent + self.amount - self.limit > _HAIR


class RateLimit(NamedTuple):
    """A limit by time (GCRA), of the tenant: one call every `interval`, with `burst` at once."""

    counter: str
    interval: float
    burst: int

    def wait(self, arrival: float, now: float) -> float:
        """How long a call must wait after a theoretical arrival; 0 is not at all."""
        wait = arrival - now - self.interval * (self.burst - 1)
        if wait <= self.interval * _TICK:
            return 0.0
        # More than one interval can only come from a clock that went back.
        return min(wait, self.interval)

    def next(self, arrival: float, now: float) -> float:
        """The theoretical arrival after one more call."""
        if arrival <= now:
            return now + self.interval
        return min(arrival, now + self.interval * self.burst) + self.interval


class Memory(NamedTuple):
    """What one read brings back: everything stored that bears on a call."""

    entry: Entry | None
    held: Held | None
    """The last proposal that was held under the same key."""
    run_counters: Mapping[str, float]
    tenant_counters: Mapping[str, float]
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
    """The ledger entry to reserve; None for a call that changes nothing."""
    approval_id: str | None
    epoch: int
    """The number of the last stored change to the registry that the decision knew of."""
    events: Sequence[Event]
    reads: Mapping[str, int] = _NOTHING
    """Keys of run state that the decision rests on, with their versions then."""
    takes_over: int | None = None
    """The fence of an entry whose outcome is unknown, and whose contract lets it be tried anew.

    `NEW_KEY`: nobody has looked what is under the key, so nothing may be.
    """
    lease: float = 30.0
    """For how many seconds the entry is its worker's, unless renewed; by the store's clock."""
    resume: bytes | None = None
    """What somebody else needs to go on from here. The store does not look into it."""


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
    """The reserved entry, or on DUPLICATE the one that was there first."""
    charge: Charge | None = None
    spent: float = 0.0
    rate: RateLimit | None = None
    retry_after: float = 0.0


class SettlementRequest(NamedTuple):
    """Everything that must happen together after a tool ran."""

    tenant: str
    run_id: str
    now: float
    entry: Entry | None
    """The entry with its outcome. One with an old fence changes nothing."""
    seen: Mapping[str, str | int]
    state: Sequence[tuple[str, str, Any]]
    """(key, merge, value) for each declared effect on run state."""
    events: Sequence[Event]
    mended: str | None = None
    """A tool whose counted refusals are over, because it has succeeded."""
    untrusted: bool = False
    """Whether what goes into the state comes from outside."""
    again_after: float | None = None
    """For an entry that stays PENDING: after how many seconds somebody should look; None: never."""
    keep_for: float | None = None
    """For any other: how many seconds its answer is kept; None: for ever."""
    gives_back: str | None = None
    """An approval that was spent on something that never happened, and counts again."""
    due: Sequence[tuple[float, Due]] = ()
    """Work to be done later, each with the seconds until then."""


class Ballot(NamedTuple):
    """A vote on a request, and what all votes come to with it."""

    tenant: str
    approval_id: str
    seen: int
    """How many votes there were when this one was cast. If there are more, nothing happens."""
    votes: Sequence[Mapping[str, Any]]
    """All of them, this one included."""
    status: HeldStatus
    """What they come to."""
    token: str | None = None
    due: Sequence[tuple[float, Due]] = ()
    events: Sequence[Event] = ()


class Claim(NamedTuple):
    """Who asks for work, for how long, and for how much of it."""

    worker: str
    lease: float
    limit: int = 32
    tools: Collection[str] | None = None
    """Whose work it can do, by the tools' names; None: anybody's."""
    lapsed_for: float = 0.0
    """Only what has been waiting for so many seconds."""


class StoredEntry(NamedTuple):
    """An entry with what was stored to go on from."""

    entry: Entry
    resume: bytes | None


class FinishRequest(NamedTuple):
    """What came of a piece of due work. `work.fence` must be the current one."""

    work: Due
    again_after: float | None = None
    """To be tried once more, after so many seconds."""
    failed: str | None = None
    """It goes on the operator's list, with this reason. Neither: it is done."""
    compensated: Mapping[str, Any] | None = None
    """The call was reversed: its entry becomes COMPENSATED, and this is its answer from now on."""
    due: Sequence[tuple[float, Due]] = ()
    events: Sequence[Event] = ()


class EventFilter(NamedTuple):
    """Which events of a tenant to show. What is None does not narrow."""

    call_id: str | None = None
    run_id: str | None = None
    tool: str | None = None
    types: Collection[str] | None = None
    since: float | None = None
    """Recorded at this time or later; in seconds since the epoch."""
    until: float | None = None
    """Recorded before."""
    after: str | None = None
    """The id of an event to go on behind, in the order asked for."""
    limit: int | None = None
    newest_first: bool = False


class CallFilter(NamedTuple):
    """Which calls of a tenant to show, newest first. What is None does not narrow."""

    tool: str | None = None
    agent: str | None = None
    user: str | None = None
    run_id: str | None = None
    code: str | None = None
    """What it was answered with."""
    since: float | None = None
    """As in `EventFilter`."""
    until: float | None = None
    after: str | None = None
    """The id of the event to go on behind."""
    limit: int = 50


class TallyCount(NamedTuple):
    """How many events of a tally fell into a part of a time, and what they cost."""

    part: int
    tally: str
    """See `audit.events.filed`."""
    times: int
    cost: float


class LogRow(NamedTuple):
    """One row of the audit log as it lies there, for checking the chain."""

    link: Link
    columns: Columns | None
    """What the event says; None once it was erased."""


class ExpiryRequest(NamedTuple):
    """What is to be forgotten, in one bounded batch. Ages are in seconds; None: keep for ever."""

    limit: int = 500
    vault_after: float | None = None
    events_after: float | None = None
