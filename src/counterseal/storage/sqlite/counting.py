"""Calls found by what is known of them, and events counted by what they count as."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from counterseal.audit import Event
from counterseal.ledger.rules import micros
from counterseal.storage.base import Calls, Search, Tallied
from counterseal.storage.sqlite.queries import queries
from counterseal.storage.sqlite.record import between, found_of
from counterseal.storage.sqlite.transaction import Transaction

__all__ = ["calls", "tallies"]

_Q: Final = queries()
_USUAL: Final = "SUCCESS"
"""What has no index of its own, because most calls are answered with it."""
_ENOUGH: Final = 1000
"""How far it is counted how many calls a way would lead to."""


class _Way(NamedTuple):
    """A way to find calls: by what, and with which statements."""

    field: str
    find: str
    weigh: str


_WAYS: Final = (
    _Way("run_id", _Q["calls_of_run"], _Q["count_calls_of_run"]),
    _Way("user", _Q["calls_of_user"], _Q["count_calls_of_user"]),
    _Way("code", _Q["calls_of_code"], _Q["count_calls_of_code"]),
    _Way("agent", _Q["calls_of_agent"], _Q["count_calls_of_agent"]),
    _Way("tool", _Q["calls_of_tool"], _Q["count_calls_of_tool"]),
)


def calls(db: Transaction, tenant: str, search: Calls) -> Sequence[tuple[str, Event]]:
    """By the way that leads past the fewest others."""
    first, last = between(
        Search(since=search.since, until=search.until, after=search.after, newest_first=True)
    )
    where = (*first, *last)
    narrow: list[str | int | None] = []
    for value in (search.tool, search.agent, search.user, search.run_id, search.code):
        narrow += [value, value]
    ways = list(_open_to(search))
    if len(ways) > 1:
        ways.sort(key=lambda way: _led_past(db, way, (tenant, getattr(search, way.field), *where)))
    if ways:
        given = (tenant, getattr(search, ways[0].field), *where, *narrow, search.limit)
        rows = db.run(ways[0].find, given)
    else:
        rows = db.run(_Q["calls"], (tenant, *where, *narrow, search.limit))
    return [found_of(row) for row in rows]


def _open_to(search: Calls) -> Iterator[_Way]:
    for way in _WAYS:
        value = getattr(search, way.field)
        if value is not None and not (way.field == "code" and value == _USUAL):
            yield way


def _led_past(db: Transaction, way: _Way, given: tuple[object, ...]) -> int:
    row = db.one(way.weigh, (*given, _ENOUGH))
    return 0 if row is None else int(row[0])


def tallies(
    db: Transaction, tenant: str, since: float, until: float, parts: int
) -> Sequence[Tallied]:
    """One look at the index for every tally and part."""
    begin, end = micros(since), micros(until)
    edges = [begin + (end - begin) * part // parts for part in range(parts + 1)]
    known = [tally for (tally,) in db.run(_Q["tallies"], (tenant, tenant))]
    found = []
    for tally in known:
        if not _counted(db, tenant, tally, begin, end):
            continue
        for part in range(parts):
            count, cost = _sum(db, tenant, tally, edges[part], edges[part + 1])
            if count:
                found.append(Tallied(part, tally, count, cost))
    return found


def _counted(db: Transaction, tenant: str, tally: str, begin: int, end: int) -> bool:
    """Whether there is any in all that time."""
    return db.one(_Q["any_of_tally"], (tenant, tally, begin, end)) is not None


def _sum(db: Transaction, tenant: str, tally: str, begin: int, end: int) -> tuple[int, float]:
    row = db.one(_Q["count_tally"], (tenant, tally, begin, end))
    return (0, 0.0) if row is None else (row[0], row[1])
