"""What a transaction sees and changes: rows that were read and locked, as they are meanwhile.

Jobs of one batch are decided one after another on the same rows, in the order in which they came;
what they left changed is written at the end, all at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from counterseal.audit import Columns, Event, columns_of
from counterseal.storage.postgres.rows import HeldRow, Line, RunRow, StateRow, Task

__all__ = ["Needs", "Rows", "Told", "World", "told"]

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

Two = tuple[str, str]
Three = tuple[str, str, str]
Four = tuple[str, str, str, str]
Told = Sequence[Columns]
"""Events as they are recorded."""


def told(events: Sequence[Event]) -> Told:
    """Events as they are recorded; an event that can't be is found out before anything is done."""
    return [columns_of(event) for event in events]


@dataclass(slots=True)
class Needs:
    """Which rows a transaction rests on, by their keys."""

    entries: set[Two] = field(default_factory=set)
    runs: set[Two] = field(default_factory=set)
    state: set[tuple[str, str, str | None]] = field(default_factory=set)
    """By run and key; None: all keys."""
    implicit: set[Three] = field(default_factory=set)
    counters: set[Three] = field(default_factory=set)
    rates: set[Two] = field(default_factory=set)
    held: set[Two] = field(default_factory=set)
    held_keys: set[Four] = field(default_factory=set)
    """A caller's last one under a key."""
    refusals: set[Three] = field(default_factory=set)
    """By run and tool."""
    due: set[Three] = field(default_factory=set)
    registry: bool = False
    """Whether nobody may change the registry meanwhile."""


class Rows(Generic[_K, _V]):
    """Rows of one table: as they were found, and as they are to be."""

    __slots__ = ("_found", "_now")

    def __init__(self) -> None:
        self._found: dict[_K, _V] = {}
        self._now: dict[_K, _V | None] = {}

    def find(self, key: _K, row: _V) -> None:
        """It was there."""
        self._found[key] = row

    def get(self, key: _K) -> _V | None:
        return self._now[key] if key in self._now else self._found.get(key)

    def put(self, key: _K, row: _V) -> None:
        self._now[key] = row

    def remove(self, key: _K) -> None:
        self._now[key] = None

    def __iter__(self) -> Iterator[_K]:
        """All keys that there are now."""
        known = {**self._found, **self._now}
        return iter([key for key in known if self.get(key) is not None])

    @property
    def new(self) -> list[tuple[_K, _V]]:
        return [
            (key, row)
            for key, row in sorted(self._now.items(), key=_key_of)
            if row is not None and key not in self._found
        ]

    @property
    def changed(self) -> list[tuple[_K, _V]]:
        return [
            (key, row) for key, row in self._now.items() if row is not None and key in self._found
        ]

    @property
    def gone(self) -> list[_K]:
        return [key for key, row in self._now.items() if row is None and key in self._found]

    def __bool__(self) -> bool:
        """Whether there is something to be written."""
        return bool(self._now)


def _key_of(item: tuple[Any, object]) -> Any:
    return item[0]


class World:
    """All that a transaction can see and change."""

    __slots__ = (
        "counters",
        "due",
        "entries",
        "epoch",
        "held",
        "implicit",
        "kept",
        "last_held",
        "now",
        "rates",
        "refusals",
        "runs",
        "state",
        "told",
        "woken",
    )

    def __init__(self) -> None:
        self.now = 0.0
        """By the server's clock."""
        self.epoch = 0
        self.entries: Rows[Two, Line] = Rows()
        self.runs: Rows[Two, RunRow] = Rows()
        self.state: Rows[Three, StateRow] = Rows()
        self.implicit: Rows[Three, tuple[str, float]] = Rows()
        self.counters: Rows[Three, float] = Rows()
        self.rates: Rows[Two, float] = Rows()
        self.held: Rows[Two, HeldRow] = Rows()
        self.last_held: dict[Four, str] = {}
        self.refusals: Rows[Four, int] = Rows()
        self.due: Rows[Three, Task] = Rows()
        self.told: list[Columns] = []
        self.kept: list[tuple[str, str, bytes]] = []
        self.woken: list[Two] = []
        """Entries that were let go, and requests that were decided, if somebody waits for that."""

    def record(self, events: Told) -> None:
        """Put events on record, after all that were before."""
        self.told.extend(events)

    @property
    def touched(self) -> bool:
        """Whether there is something to be written."""
        tables = (
            self.entries,
            self.runs,
            self.state,
            self.implicit,
            self.counters,
            self.rates,
            self.held,
            self.refusals,
            self.due,
        )
        return bool(self.told or self.kept or self.woken) or any(tables)
