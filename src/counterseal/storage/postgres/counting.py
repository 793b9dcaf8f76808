"""Calls found by what is known of them, and events counted by what they count as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from counterseal.audit import Event
from counterseal.ledger.rules import micros, place_of
from counterseal.storage.base import Calls, Tallied
from counterseal.storage.postgres.queries import queries
from counterseal.storage.postgres.record import found_of

__all__ = ["calls", "tallies"]

_Q: Final = queries()
_CALLS: Final = _Q["calls"]
_TALLIES: Final = _Q["tallies"]
_NEVER: Final = 2**62


async def calls(connection: Any, tenant: str, search: Calls) -> Sequence[tuple[str, Event]]:
    """Newest first."""
    place = (None, None) if search.after is None else place_of(search.after)
    values = (
        tenant,
        search.tool,
        search.agent,
        search.user,
        search.run_id,
        search.code,
        -_NEVER if search.since is None else micros(search.since),
        _NEVER if search.until is None else micros(search.until),
        *place,
        search.limit,
    )
    # Planned for what is asked: what is rare has the best index.
    async with connection.transaction(readonly=True):
        await connection.execute("SET LOCAL plan_cache_mode = force_custom_plan")
        rows = await connection.fetch(_CALLS, *values)
    return [found_of(row) for row in rows]


async def tallies(
    connection: Any, tenant: str, since: float, until: float, parts: int
) -> Sequence[Tallied]:
    """One look at the index for every tally and part."""
    begin, end = micros(since), micros(until)
    edges = [begin + (end - begin) * part // parts for part in range(parts + 1)]
    rows = await connection.fetch(_TALLIES, tenant, list(range(parts)), edges[:-1], edges[1:])
    return [Tallied(*row) for row in rows]
