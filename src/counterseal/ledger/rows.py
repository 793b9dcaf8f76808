"""The rows that a transaction reads and changes.

A transaction first names its rows by key (`RowKeys`). A back-end loads and locks them (`Rows`). A
rule then reads rows, decides, and puts changed rows back. The back-end writes what was changed,
all at once, when the last transaction of a batch has been decided.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from random import getrandbits
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pydantic_core import to_json

from counterseal.audit import Columns, Event, columns_of
from counterseal.canonical import json_default
from counterseal.ledger.entry import Entry, EntryStatus, Phase
from counterseal.ledger.records import Due, Held, RegisteredContract, RunRecord, SessionRow

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

TenantKey = tuple[str, str]
"""Tenant, and a key or id within the tenant."""
StateKey = tuple[str, str, str]
"""Tenant, run, key of the run's state."""
CounterKey = tuple[str, str, str]
"""Tenant, run (empty for a counter of the tenant), name."""
CallerKey = tuple[str, str, str]
"""Tenant, agent, user (empty for none)."""
DueKey = tuple[str, str, str]
"""Tenant, kind, key."""
RefusalKey = tuple[str, str, str, str]
"""Tenant, run, tool (empty for a refusal that is counted for the whole run), fingerprint."""
ContractKey = tuple[str, str, str]
"""Tool, version, hash of the contract."""
HeldKey = tuple[str, str, str, str]
"""Tenant, ledger key, agent, user (empty for none): whose last request for approval it is."""


class VaultRow(NamedTuple):
    """A sealed value of a call, kept for at most `keep_for` seconds (None: no limit)."""

    tenant: str
    pointer: str
    raw: bytes
    keep_for: float | None = None


def new_pointer(call_id: str, now: float) -> str:
    """Return a pointer into the vault that no model can guess."""
    return f"vault:{call_id}/{int(now * 1000):011x}{getrandbits(52):013x}"


# --- rows -----------------------------------------------------------------------------------------


class EntryRow(NamedTuple):
    """A ledger entry as it was written, with the columns that are kept beside it."""

    entry: Entry
    lease_until: float | None
    """When a worker should look after the entry, by the store's clock; None: never."""
    expires_at: float | None = None
    """When the stored answer expires, by the store's clock; None: never."""
    awaited: bool = False
    """True when the release of the entry must be announced, because a caller waits for it.

    A back-end without a column for this loads every row with True.
    """
    reserved: bool = False
    """True when this transaction reserved the entry, so that `resume` has to be written too."""
    resume: bytes | None = None
    """Data with which another worker can go on from the entry; written, but not loaded."""
    created_at: float | None = None
    """When the call was admitted, by the store's clock; None for one of an earlier version."""
    completed_at: float | None = None
    """When the outcome was written; None while the entry is PENDING."""


LONGEST_LEASE: Final = 3600.0
"""Seconds. A lease that ends later was given before the store's clock was set back: it is over."""


def current_entry(row: EntryRow, now: float) -> Entry:
    """Return the entry as it is at a time: `lapsed` and EXPIRED depend on it."""
    entry, until = row.entry, row.lease_until
    if entry.status is not EntryStatus.PENDING or entry.phase is Phase.ESCALATED:
        over = row.expires_at is not None and row.expires_at <= now
        return expired_entry(entry) if over else entry
    if until is None or now < until <= now + LONGEST_LEASE:
        return entry
    return entry._replace(lapsed=True)


def expired_entry(entry: Entry) -> Entry:
    """Return a settled entry whose answer is no longer kept. A free key stays free."""
    free = entry.status is EntryStatus.FAILED_RETRYABLE
    status = entry.status if free else EntryStatus.EXPIRED
    return entry._replace(status=status, observation=None)


class RunProgress(NamedTuple):
    """The part of a run that transactions change."""

    turn: int
    changes: int
    """How often the run's state was changed, whatever the key."""
    pins: Mapping[str, str]
    seen: Mapping[str, str | int]
    refused: frozenset[str]
    opened: RunRecord | None = None
    """The whole run, for a row that this transaction inserts."""


class StateValue(NamedTuple):
    """One key of a run's state."""

    value: str | None
    """JSON text; None once the value was forgotten."""
    version: int
    untrusted: bool


class HeldRow(NamedTuple):
    """A request for approval, with the columns that are kept beside it."""

    held: Held
    latest: bool
    """True for the last request of its caller under its key."""
    awaited: bool = False
    """As in `EntryRow`: True when a decision must be announced."""


class DueRow(NamedTuple):
    """A piece of due work, and when it is due; None once it failed."""

    due: Due
    due_at: float | None


# --- keys -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class RowKeys:
    """Which rows a batch of transactions needs."""

    entries: set[TenantKey] = field(default_factory=set)
    runs: set[TenantKey] = field(default_factory=set)
    state: set[tuple[str, str, str | None]] = field(default_factory=set)
    """By run and key; None for all keys of the run."""
    implicit_runs: set[CallerKey] = field(default_factory=set)
    counters: set[CounterKey] = field(default_factory=set)
    rates: set[TenantKey] = field(default_factory=set)
    held: set[TenantKey] = field(default_factory=set)
    last_held: set[HeldKey] = field(default_factory=set)
    """The last request of a caller under a key."""
    refusals: set[tuple[str, str, str]] = field(default_factory=set)
    """All fingerprints of a run and tool."""
    due: set[DueKey] = field(default_factory=set)
    sessions: set[str] = field(default_factory=set)
    contracts: set[ContractKey] = field(default_factory=set)
    registry: bool = False
    """True when the registry must not change during the transaction."""
    registry_change: bool = False
    """True when the transaction may change the registry, and nothing may rest on it meanwhile."""


# --- loaded rows ----------------------------------------------------------------------------------


class RowGroups(MutableMapping[Any, _V]):
    """A large table in memory: rows by all of their key but its last part, then by that."""

    def __init__(self) -> None:
        self.groups: defaultdict[tuple[str, ...], dict[str, _V]] = defaultdict(dict)

    def __getitem__(self, key: tuple[str, ...]) -> _V:
        return self.groups[key[:-1]][key[-1]]

    def get(self, key: Any, default: Any = None) -> Any:
        return self.groups[key[:-1]].get(key[-1], default)

    def __setitem__(self, key: tuple[str, ...], row: _V) -> None:
        self.groups[key[:-1]][key[-1]] = row

    def __delitem__(self, key: tuple[str, ...]) -> None:
        del self.groups[key[:-1]][key[-1]]

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return ((*place, name) for place, group in self.groups.items() for name in group)

    def __len__(self) -> int:
        return sum(map(len, self.groups.values()))


class RowTable(Generic[_K, _V]):
    """Rows of one table: as they were loaded, with the changes that are still to be written."""

    __slots__ = ("changes", "loaded")

    def __init__(self, loaded: MutableMapping[_K, _V] | None = None) -> None:
        self.loaded: MutableMapping[_K, _V] = {} if loaded is None else loaded
        self.changes: dict[_K, _V | None] = {}
        """None stands for a deleted row."""

    def get(self, key: _K) -> _V | None:
        return self.changes[key] if key in self.changes else self.loaded.get(key)

    def put(self, key: _K, row: _V) -> None:
        """Insert or replace a row."""
        self.changes[key] = row

    def remove(self, key: _K) -> None:
        self.changes[key] = None

    def under(self, *place: str) -> list[Any]:
        """Return the keys of all rows that exist now and have these first parts."""
        known: dict[Any, Any] = dict.fromkeys(self.loaded)
        if isinstance(self.loaded, RowGroups):
            known = {(*place, name): None for name in self.loaded.groups[place]}
        known |= self.changes
        return [key for key in known if key[: len(place)] == place and self.get(key) is not None]

    def __bool__(self) -> bool:
        """True when there is something to write."""
        return bool(self.changes)

    @property
    def inserted(self) -> list[tuple[_K, _V]]:
        """New rows, in the order of their keys."""
        new = [
            (key, row)
            for key, row in self.changes.items()
            if row is not None and key not in self.loaded
        ]
        return sorted(new, key=itemgetter(0))

    @property
    def updated(self) -> list[tuple[_K, _V]]:
        return [
            (key, row)
            for key, row in self.changes.items()
            if row is not None and key in self.loaded
        ]

    @property
    def deleted(self) -> list[_K]:
        return [key for key, row in self.changes.items() if row is None and key in self.loaded]


@dataclass(slots=True)
class Rows:
    """The rows that a batch of transactions has locked, with their pending changes."""

    now: float = 0.0
    """The time by the store's clock."""
    epoch: int = 0
    """The number of the last change to the registry."""
    entries: RowTable[TenantKey, EntryRow] = field(default_factory=RowTable)
    runs: RowTable[TenantKey, RunProgress] = field(default_factory=RowTable)
    state: RowTable[StateKey, StateValue] = field(default_factory=RowTable)
    implicit_runs: RowTable[CallerKey, tuple[str, float]] = field(default_factory=RowTable)
    """The run of a caller that names none, and when it was last used."""
    counters: RowTable[CounterKey, int] = field(default_factory=RowTable)
    rates: RowTable[TenantKey, float] = field(default_factory=RowTable)
    held: RowTable[TenantKey, HeldRow] = field(default_factory=RowTable)
    last_held: dict[HeldKey, str] = field(default_factory=dict)
    """Approval ids of the last requests of callers."""
    refusals: RowTable[RefusalKey, int] = field(default_factory=RowTable)
    due: RowTable[DueKey, DueRow] = field(default_factory=RowTable)
    sessions: RowTable[str, SessionRow] = field(default_factory=RowTable)
    contracts: RowTable[ContractKey, RegisteredContract] = field(default_factory=RowTable)
    registry_changes: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    events: list[Columns] = field(default_factory=list)
    """Events to be chained and written, in their order."""
    vault: list[VaultRow] = field(default_factory=list)
    forgotten: list[TenantKey] = field(default_factory=list)
    """Pointers of values to be deleted from the vault."""
    woken: list[TenantKey] = field(default_factory=list)
    """Released entries and decided requests, where a caller waits for that."""

    @property
    def changed(self) -> bool:
        """True when there is something to write or to announce."""
        calls = self.events or self.entries or self.counters or self.rates
        runs = self.runs or self.state or self.implicit_runs or self.refusals
        people = self.held or self.due or self.sessions
        registry = self.registry_changes or self.contracts
        return bool(
            calls or runs or people or registry or self.vault or self.forgotten or self.woken
        )


def event_columns(events: Sequence[Event]) -> Sequence[Columns]:
    """Return events as they are stored. Raises for an event that cannot be written as JSON."""
    return [columns_of(event) for event in events]


def json_text(value: Any) -> str:
    """Return a JSON value as text."""
    return to_json(value, fallback=json_default).decode()
