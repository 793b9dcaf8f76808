"""What is behind a number: the events that a metric counts, newest first.

Where they lie is asked of the index that numbers are made from. A part of the time that holds few
of them among many others is looked at in smaller parts; what is read at last holds next to nothing
else, however much is on record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator
from typing import Final, NamedTuple

from counterseal.audit import Event
from counterseal.audit.facts import COUNTED, filed, read_tally
from counterseal.storage.base import Search, Store
from counterseal.views.formulas import Sum, Test

__all__ = ["Span", "behind"]

_PARTS: Final = 24
"""How many parts of a time are told apart at once."""
_FEW: Final = 500
"""So many events are read rather than looked at more closely."""
_THIN: Final = 20
"""Likewise where one of so many is wanted."""
_AT_ONCE: Final = 200
_MICRO: Final = 1e-6


class Span(NamedTuple):
    """From one number of an event until another, which is not in it: microseconds."""

    begin: int
    end: int

    @property
    def since(self) -> float:
        """In seconds, so that it is read as this number again."""
        return (self.begin + 0.5) * _MICRO

    @property
    def until(self) -> float:
        return (self.end + 0.5) * _MICRO

    def part(self, number: int) -> Span:
        """One of its parts, as a store divides it."""
        length = self.end - self.begin
        edges = (self.begin + length * one // _PARTS for one in (number, number + 1))
        return Span(*edges)


async def behind(
    store: Store, tenant: str, wanted: Test, span: Span, after: str | None = None
) -> AsyncGenerator[tuple[str, Event]]:
    """Events of a span that pass the test, with their ids; `after` is one to go on behind."""
    counts: defaultdict[int, list[Sum]] = defaultdict(list)
    for one in await store.tallies(tenant, span.since, span.until, _PARTS):
        counts[one.part].append(Sum(*read_tally(one.tally), one.times, one.cost))
    for number in sorted(counts, reverse=True):
        part, sums = span.part(number), counts[number]
        mine = sum(one.times for one in sums if wanted(one))
        all_of_it = sum(one.times for one in sums)
        if not mine:
            continue
        dense = all_of_it <= max(_FEW, mine * _THIN) or part.end - part.begin <= _PARTS
        found = _read if dense else behind
        async for event_id, event in found(store, tenant, wanted, part, after):
            yield event_id, event


async def _read(
    store: Store, tenant: str, wanted: Test, span: Span, after: str | None
) -> AsyncGenerator[tuple[str, Event]]:
    full = True
    while full:
        some = await store.search(
            tenant,
            Search(
                types=COUNTED,
                since=span.since,
                until=span.until,
                after=after,
                limit=_AT_ONCE,
                newest_first=True,
            ),
        )
        full = len(some) == _AT_ONCE
        for event_id, event in some:
            after = event_id
            if _counts(event, wanted):
                yield event_id, event


def _counts(event: Event, wanted: Test) -> bool:
    _, tally, cost = filed(event.type, event.decision, event.body)
    if tally is None:
        return False
    kind, code, facts = read_tally(tally)
    return wanted(Sum(kind, code, facts, 1, cost or 0.0))
