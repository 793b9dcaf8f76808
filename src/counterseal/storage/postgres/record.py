"""The audit log as it is read and sealed, and the registry's changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from counterseal.audit import Event, Head, Link, event_of
from counterseal.audit.checkpoint import Checkpoint
from counterseal.ledger.rules import micros, place_of, said
from counterseal.storage.base import Recorded, Search
from counterseal.storage.checkpoints import checkpoint_of, checkpoint_row
from counterseal.storage.postgres.job import Alone
from counterseal.storage.postgres.migrations import CHANGING
from counterseal.storage.postgres.queries import queries
from counterseal.storage.postgres.rows import Row, read, written
from counterseal.storage.postgres.world import World, told

__all__ = [
    "Changing",
    "Sealing",
    "changes",
    "checkpoints",
    "found_of",
    "heads",
    "recorded",
    "search",
    "tenants",
]

_Q: Final = queries()
_SEARCH: Final = _Q["search"]
_SEARCH_BACK: Final = _Q["search_back"]
_RECORDED: Final = _Q["recorded"]
_HEADS: Final = _Q["heads"]
_TENANTS: Final = _Q["tenants"]
_CHECKPOINTS: Final = _Q["checkpoints"]
_SEAL: Final = _Q["seal"]
_CHANGES: Final = _Q["changes"]
_CHANGE: Final = _Q["change"]
_NEVER: Final = 2**62
_COLUMNS: Final = 14
_WHOLE: Final = 17
"""With what an event counts as."""


async def search(connection: Any, tenant: str, search: Search) -> Sequence[tuple[str, Event]]:
    """Events that match, with their ids."""
    place = (None, None) if search.after is None else place_of(search.after)
    values = (
        tenant,
        search.call_id,
        search.run_id,
        search.tool,
        None if search.types is None else [str(one) for one in search.types],
        -_NEVER if search.since is None else micros(search.since),
        _NEVER if search.until is None else micros(search.until),
        *place,
        search.limit,
    )
    # Planned for what is asked: a call's events are found by another index than a tenant's.
    async with connection.transaction(readonly=True):
        await connection.execute("SET LOCAL plan_cache_mode = force_custom_plan")
        query = _SEARCH_BACK if search.newest_first else _SEARCH
        rows = await connection.fetch(query, *values)
    return [found_of(row) for row in rows]


def found_of(row: Any) -> tuple[str, Event]:
    """An event with the id that it goes by."""
    return _id(*row[_COLUMNS:]), event_of(row[:_COLUMNS])


def _id(number: int, segment: str) -> str:
    return Link(number, segment, 0, None, b"", b"").event_id


async def recorded(
    connection: Any, tenant: str, after: tuple[int, str], limit: int
) -> Sequence[Recorded]:
    """A page of the log with its links."""
    rows = await connection.fetch(_RECORDED, tenant, *after, limit)
    return [_recorded_of(tuple(row)) for row in rows]


def _recorded_of(row: Row) -> Recorded:
    link = Link(*row[_WHOLE:])
    return Recorded(link, said(link, row[:_WHOLE]))


async def heads(connection: Any, tenant: str, since: int) -> Mapping[str, Head]:
    """Where segments end that have links from a number on."""
    rows = await connection.fetch(_HEADS, tenant, since)
    return {segment: Head(*head) for segment, *head in rows}


async def tenants(connection: Any) -> Sequence[str]:
    """Everybody of whom something is on record, by name."""
    return sorted(tenant for (tenant,) in await connection.fetch(_TENANTS))


async def checkpoints(connection: Any, tenant: str) -> Sequence[Checkpoint]:
    """What was sealed, oldest first."""
    rows = await connection.fetch(_CHECKPOINTS, tenant)
    return [checkpoint_of(tenant, tuple(row)) for row in rows]


async def changes(connection: Any, after: int) -> Sequence[tuple[int, Mapping[str, Any]]]:
    """What operators changed since a change, oldest first."""
    return [(number, read(what)) for number, what in await connection.fetch(_CHANGES, after)]


class Sealing(Alone):
    """False when the checkpoint's number is taken."""

    __slots__ = ("_row",)

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self._row = checkpoint_row(checkpoint)

    async def run(self, connection: Any, world: World) -> bool:
        return await connection.fetchval(_SEAL, *self._row) is not None


class Changing(Alone):
    """False when the number is taken. Whoever rests on the registry is done first."""

    __slots__ = ("_number", "_told", "_what")
    lock = CHANGING

    def __init__(self, number: int, what: Mapping[str, Any], events: Sequence[Event]) -> None:
        super().__init__()
        self._number = number
        self._what = written(what)
        self._told = told(events)

    async def run(self, connection: Any, world: World) -> bool:
        if await connection.fetchval(_CHANGE, self._number, self._what) is None:
            return False
        world.record(self._told)
        return True
