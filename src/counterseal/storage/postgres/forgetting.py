"""Forgetting what is over: answers, raw results, calls that were decided, events, old counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from counterseal.audit import EventType, columns_of
from counterseal.ledger.rules import erased, micros
from counterseal.storage.base import Erasure
from counterseal.storage.postgres.job import Alone
from counterseal.storage.postgres.migrations import EXPIRING
from counterseal.storage.postgres.queries import queries
from counterseal.storage.postgres.world import World

__all__ = ["Expiring"]

_Q: Final = queries()
_EXPIRE_KEYS: Final = _Q["expire_keys"]
_EXPIRE_VAULT: Final = _Q["expire_vault"]
_EXPIRE_HELD: Final = _Q["expire_held"]
_EXPIRE_COUNTERS: Final = _Q["expire_counters"]
_EXPIRE_SESSIONS: Final = _Q["expire_sessions"]
_ERASABLE: Final = _Q["erasable"]
_OLD_EVENTS: Final = _Q["old_events"]
_ERASE: Final = _Q["erase"]
_ERASED: Final = _Q["erased"]

_Place = tuple[int, str]


class Expiring(Alone):
    """One batch. Who comes while somebody else is at it waits for that."""

    __slots__ = ("_request",)
    lock = EXPIRING

    def __init__(self, request: Erasure) -> None:
        super().__init__()
        self._request = request

    async def run(self, connection: Any, world: World) -> Mapping[str, int]:
        request, limit = self._request, self._request.limit
        keys = await connection.fetch(_EXPIRE_KEYS, limit)
        vault, requests = [], []
        if request.vault_after is not None:
            vault = await connection.fetch(_EXPIRE_VAULT, request.vault_after, limit)
            requests = await connection.fetch(_EXPIRE_HELD, request.vault_after, limit)
        counters = await connection.fetch(_EXPIRE_COUNTERS, limit)
        sessions = await connection.fetch(_EXPIRE_SESSIONS, limit)
        events = 0
        if request.events_after is not None:
            events = await _erase(
                connection, world, micros(world.now - request.events_after), limit
            )
        return {
            "keys": len(keys),
            "vault": len(vault),
            "requests": len(requests),
            "events": events,
            "counters": len(counters),
            "sessions": len(sessions),
        }


async def _erase(connection: Any, world: World, until: int, limit: int) -> int:
    """Erase what was said before a number, tenant by tenant."""
    left = limit
    for tenant, *place in await connection.fetch(_ERASABLE, until):
        if left <= 0:
            break
        left -= await _erase_of(connection, world, tenant, (place[0], place[1]), until, left)
    return limit - left


async def _erase_of(
    connection: Any, world: World, tenant: str, place: _Place, until: int, limit: int
) -> int:
    """What tells of an erasure is never erased."""
    count = last = 0
    while count < limit:
        wanted = limit - count
        rows = await connection.fetch(_OLD_EVENTS, tenant, until, *place, wanted)
        if not rows:
            break
        place = (rows[-1][0], rows[-1][1])
        gone = [row for row in rows if row[2] not in (None, EventType.ERASED.value)]
        if gone:
            numbers, segments, _ = zip(*gone, strict=True)
            await connection.execute(_ERASE, tenant, numbers, segments)
            count, last = count + len(gone), numbers[-1]
    await connection.execute(_ERASED, tenant, *place)
    if count:
        world.told.append(columns_of(erased(tenant, world.now, count, last)))
    return count
