"""The audit log in memory: events in the order in which they came, chained when they are read."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from secrets import token_hex

from counterseal.audit import (
    GENESIS,
    Columns,
    Event,
    EventType,
    Head,
    Link,
    columns_of,
    event_of,
    extend,
)
from counterseal.audit.chain import CODE, COST, TALLY, micros, place_of
from counterseal.audit.events import erasure_event
from counterseal.ledger.requests import CallFilter, EventFilter, LogRow, TallyCount


class _Row:
    """An event with its link; without its text once it was erased."""

    __slots__ = ("columns", "event", "link")

    def __init__(self, link: Link, columns: Columns, event: Event) -> None:
        self.link = link
        self.columns: Columns | None = columns
        self.event: Event | None = event

    @property
    def place(self) -> tuple[int, str]:
        return self.link.number, self.link.segment


class Log:
    """One segment for each tenant: there is one writer."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._segment = token_hex(6)
        self._unchained: list[tuple[float, Columns]] = []
        """New events with their times; no caller of a tool waits for hashes."""
        self._rows: defaultdict[str, list[_Row]] = defaultdict(list)
        self._erased: dict[str, int] = {}
        """How many rows of a tenant need not be looked at again by `erase`."""

    def record(self, events: Sequence[Columns], now: float) -> None:
        """Append events."""
        self._unchained.extend([(now, columns) for columns in events])

    def _chain(self) -> Mapping[str, Sequence[_Row]]:
        """Return every tenant's rows, after chaining the new ones."""
        unchained, self._unchained = self._unchained, []
        for moment, columns in unchained:
            tenant = columns[1]
            rows = self._rows[tenant]
            head = rows[-1].link.head if rows else GENESIS
            link = extend(tenant, self._segment, head, columns, micros(moment), os.urandom(16))
            rows.append(_Row(link, columns, event_of(columns)))
        return self._rows

    def _of(self, tenant: str) -> Sequence[_Row]:
        return self._chain().get(tenant, ())

    def tenants(self) -> Collection[str]:
        return self._chain().keys()

    def recorded(self, tenant: str, after: tuple[int, str], limit: int) -> Sequence[LogRow]:
        behind = (row for row in self._of(tenant) if row.place > after)
        return [LogRow(row.link, row.columns) for row in islice(behind, limit)]

    def heads(self, tenant: str, since: int) -> Mapping[str, Head]:
        rows = self._of(tenant)
        return {row.link.segment: row.link.head for row in rows if row.link.number >= since}

    def search(self, tenant: str, search: EventFilter) -> Sequence[tuple[str, Event]]:
        matching = _matching(self._of(tenant), search)
        return list(islice(matching, search.limit))

    def calls(self, tenant: str, search: CallFilter) -> Sequence[tuple[str, Event]]:
        after = None if search.after is None else place_of(search.after)
        known: set[str] = set()
        calls = []
        for row in reversed(self._of(tenant)):
            if row.columns is None or row.columns[CODE] is None or row.event is None:
                continue
            call_id = row.event.caller.call_id
            is_last = call_id not in known
            known.add(call_id)
            fits = _fits(row.event, row.columns[CODE], search)
            within = _within(row, search.since, search.until)
            if is_last and fits and within and (after is None or row.place < after):
                calls.append((row.link.event_id, row.event))
        return calls[: search.limit]

    def tallies(self, tenant: str, since: float, until: float, parts: int) -> Sequence[TallyCount]:
        begin, end = micros(since), micros(until)
        edges = [begin + (end - begin) * part // parts for part in range(1, parts)]
        counts: Counter[tuple[int, str]] = Counter()
        costs: defaultdict[tuple[int, str], float] = defaultdict(float)
        for row in self._of(tenant):
            tally = None if row.columns is None else row.columns[TALLY]
            if row.columns is not None and tally is not None and begin <= row.link.number < end:
                where = bisect_right(edges, row.link.number), tally
                counts[where] += 1
                costs[where] += row.columns[COST] or 0.0
        return [TallyCount(*where, count, costs[where]) for where, count in counts.items()]

    def erase(self, until: int, limit: int) -> int:
        """Erase the text of events before a number, tenant by tenant. Returns how many.

        Events that record an erasure are never erased.
        """
        left = limit
        for tenant, rows in sorted(self._chain().items()):
            first = last = self._erased.get(tenant, 0)
            gone: list[_Row] = []
            while last < len(rows) and rows[last].link.number < until and len(gone) < left:
                row = rows[last]
                if row.event is not None and row.event.type is not EventType.ERASED:
                    gone.append(row)
                last += 1
            if last > first:
                self._erased[tenant] = last
            if gone:
                left -= len(gone)
                for row in gone:
                    row.link, row.columns, row.event = row.link._replace(salt=None), None, None
                now, place = self._clock(), gone[-1].link.number
                self.record([columns_of(erasure_event(tenant, now, len(gone), place))], now)
        return limit - left


def _matching(rows: Sequence[_Row], search: EventFilter) -> Iterator[tuple[str, Event]]:
    after = None if search.after is None else place_of(search.after)
    for row in reversed(rows) if search.newest_first else rows:
        event, place = row.event, row.place
        if event is None or not _within(row, search.since, search.until):
            continue
        if after is not None and not (place < after if search.newest_first else place > after):
            continue
        if _matches(event, search):
            yield row.link.event_id, event


def _within(row: _Row, since: float | None, until: float | None) -> bool:
    number = row.link.number
    return (since is None or number >= micros(since)) and (until is None or number < micros(until))


def _fits(event: Event, code: str, search: CallFilter) -> bool:
    caller = event.caller
    return (
        search.tool in (None, caller.tool)
        and search.agent in (None, caller.agent)
        and search.user in (None, caller.user)
        and search.run_id in (None, caller.run_id)
        and search.code in (None, code)
    )


def _matches(event: Event, search: EventFilter) -> bool:
    caller = event.caller
    return (
        search.call_id in (None, caller.call_id)
        and search.run_id in (None, caller.run_id)
        and search.tool in (None, caller.tool)
        and (search.types is None or event.type in search.types)
    )
