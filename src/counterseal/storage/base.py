"""What the runtime asks of a store, in the words of the domain.

A store remembers runs, ledger entries, held proposals, counters and events. It decides nothing:
limits come in with the request, and the answer says which one would have been broken. Every method
that changes something is one transaction: all of it happens, or none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from counterseal.audit import Event
from counterseal.contract.effects import Effect
from counterseal.ledger import Entry

__all__ = [
    "IDLE_SECONDS",
    "Admission",
    "Admit",
    "Budgets",
    "Charge",
    "Held",
    "HeldStatus",
    "Memory",
    "Rate",
    "Refused",
    "RunRecord",
    "Settle",
    "Store",
]

IDLE_SECONDS: Final = 3600.0
"""After how long without a call an implicit run is over."""
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Limits of a run, or of a tenant for a day. None is no limit of its own.

    They only ever narrow: what a tool's contract or grant allows is its own limit beside these, and
    for a critical mutation that is zero until a grant says otherwise.
    """

    reads: int | None = None
    writes: int | None = None
    external: int | None = None
    critical: int | None = None
    money: float | None = None
    seconds: float | None = None
    """Wall clock, from the start of the run."""
    retries: int | None = None
    """Further attempts at reads that failed for want of something outside."""
    repairs: int | None = None
    """Refused proposals that an agent may mend or think over by itself; None stands for 30."""
    by_effect: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = {name: getattr(self, name) for name in self.__slots__ if name != "by_effect"}
        for effect in self.by_effect:
            Effect(effect)  # a budget for an effect that does not exist would limit nothing
        for name, limit in {**named, **self.by_effect}.items():
            if limit is not None and not limit >= 0:
                raise ValueError(f"{name}: a budget is a number from 0 on, not {limit!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One agent run, as the store remembers it."""

    tenant: str
    run_id: str
    started_at: float
    objective: str | None = None
    allowed_tools: frozenset[str] | None = None
    """None: every tool that the principal may use."""
    budgets: Budgets = Budgets()
    deadline: float | None = None
    """When it must be over, whatever its budgets; in seconds since the epoch."""
    config: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    state_versions: Mapping[str, int] = field(default_factory=dict)
    """How often each key of the state was changed; under `*`, how often any was."""
    untrusted: frozenset[str] = frozenset()
    """Keys of the state that hold something from outside."""
    turn: int = 1
    refused: frozenset[str] = frozenset()
    """Tools whose refusals are being counted."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """Tool to version: what the run began with, it keeps."""
    seen: Mapping[str, str | int] = field(default_factory=dict)
    """Resource to the version that the run saw last."""


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


class Rate(NamedTuple):
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


class HeldStatus(StrEnum):
    WAITING = "waiting"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    SPENT = "spent"
    VOID = "void"
    """Approved, but the world was no longer the one that was shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A proposal that waits for a person: everything that is needed to go on from here."""

    approval_id: str
    tenant: str
    key: str
    approval_hash: str
    """Of the arguments after correction, and the config: what a person would say yes to."""
    call_id: str
    run_id: str
    tool: str
    version: str
    contract_hash: str
    arguments: Mapping[str, Any]
    agent: str
    user: str | None
    scopes: frozenset[str]
    reason: str
    rule: str | None
    approvers: int
    before: Mapping[str, Any] | None
    version_seen: str | int | None
    created_at: float
    trace_id: str
    status: HeldStatus = HeldStatus.WAITING


class Memory(NamedTuple):
    """What one read brings back: everything stored that bears on a call."""

    entry: Entry | None
    held: Held | None
    """The last proposal that was held under the same key."""
    run_counters: Mapping[str, float]
    tenant_counters: Mapping[str, float]
    rates: Mapping[str, float]


class Admit(NamedTuple):
    """Everything that must happen together before a tool may run."""

    tenant: str
    run_id: str
    tool: str
    version: str
    now: float
    charges: Sequence[Charge]
    rates: Sequence[Rate]
    entry: Entry | None
    """The ledger entry to reserve; None for a call that changes nothing."""
    approval_id: str | None
    epoch: int
    events: Sequence[Event]
    reads: Mapping[str, int] = _NOTHING
    """Keys of run state that the decision rests on, with their versions then."""
    takes_over: int | None = None
    """The fence of an entry whose outcome is unknown, and whose contract lets it be tried anew."""


class Refused(StrEnum):
    """Why an admission did not happen."""

    BUDGET = "budget"
    RATE = "rate"
    DUPLICATE = "duplicate"
    APPROVAL = "approval"
    PIN = "pin"
    STATE = "state"
    EPOCH = "epoch"


class Admission(NamedTuple):
    refused: Refused | None = None
    entry: Entry | None = None
    """The reserved entry, or on DUPLICATE the one that was there first."""
    charge: Charge | None = None
    spent: float = 0.0
    rate: Rate | None = None
    retry_after: float = 0.0


class Settle(NamedTuple):
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


class Store(Protocol):
    """The seam between the runtime and whatever keeps its memory."""

    async def open_run(self, run: RunRecord) -> RunRecord:
        """The run as it is stored; the given one where there was none."""

    async def find_run(self, tenant: str, run_id: str) -> RunRecord | None:
        """The run, if it was opened."""

    async def find_implicit_run(
        self, tenant: str, agent: str, user: str | None, now: float
    ) -> RunRecord | None:
        """The run of somebody who names none, if they have one that is not over."""

    async def implicit_run(self, run: RunRecord, agent: str, user: str | None) -> RunRecord:
        """The same; where there is none, the given one is opened. Either counts as used now.

        It is over when it was not used for `IDLE_SECONDS`.
        """

    async def new_turn(self, tenant: str, run_id: str, keep: Collection[str]) -> RunRecord | None:
        """Begin another turn: what the state holds under other keys is forgotten."""

    async def recall(self, tenant: str, run_id: str, key: str | None) -> Memory:
        """One read of all that bears on a call."""

    async def admit(self, request: Admit) -> Admission:
        """Check limits, spend, reserve, record: all, or none."""

    def note(self, event: Event) -> None:
        """Put an event on record with the next commit; nobody waits for it."""

    async def settle(self, request: Settle) -> bool:
        """Write the outcome. False when somebody else holds the entry by now, or has settled it."""

    async def hold(self, held: Held, events: Sequence[Event]) -> Held:
        """Keep a proposal for a person.

        An identical one that still counts is returned instead; a spent or a void one does not.
        """

    async def decide(
        self, tenant: str, approval_id: str, status: HeldStatus, events: Sequence[Event]
    ) -> Held | None:
        """Decide a held proposal. None when there is none, or it was decided before.

        One that waits can take any decision; one that was approved can only become void.
        """

    async def refuse(
        self,
        tenant: str,
        run_id: str,
        tool: str,
        fingerprints: Sequence[str],
        events: Sequence[Event],
    ) -> Sequence[int]:
        """Record a refusal, and count it under each fingerprint. Returns the counts.

        They are forgotten when the tool succeeds in this run (`Settle.mended`), but for those that
        begin with `run/`: these are the run's, whatever the tool. One given twice counts twice.
        """

    async def keep(self, tenant: str, call_id: str, raw: bytes) -> str:
        """Put a tool's raw output into the vault. Returns a pointer that no model can follow."""

    async def events(
        self, tenant: str, *, call_id: str | None = None, run_id: str | None = None
    ) -> Sequence[tuple[str, Event]]:
        """Events of a tenant with their ids, oldest first."""

    async def close(self) -> None: ...
