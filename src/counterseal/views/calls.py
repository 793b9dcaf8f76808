"""Calls: which there were, by what is known of them. One call's page is in `story`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from counterseal.audit import Event
from counterseal.audit.facts import filed
from counterseal.codes import Code
from counterseal.errors import CountersealError
from counterseal.ledger.rules import micros, place_of
from counterseal.storage.base import Calls, Search
from counterseal.views.base import (
    NotThere,
    Page,
    Seat,
    bounded,
    findable,
    iso,
    read_cursor,
    write_cursor,
)
from counterseal.views.behind import Span, behind
from counterseal.views.formulas import METRICS, PARTS, Test
from counterseal.views.seen import Seen, end_of, in_ledger, in_vault, without_gates
from counterseal.views.story import Attempt, CallPage, CallRow, GateRow, call_row, page_of

__all__ = ["Attempt", "CallPage", "CallRow", "CallSearch", "CallsDesk", "GateRow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSearch:
    """Which calls. What is None does not narrow."""

    tool: str | None = None
    agent: str | None = None
    user: str | None = None
    run: str | None = None
    code: str | None = None
    """One of the 21 codes, such as SUCCESS or PERMISSION_DENIED."""
    metric: str | None = None
    """Only what is behind a metric, such as repair_saturation_rate: one row for each event that it
    counts, so that there are as many as its number says."""
    part: str | None = None
    """Of the metric: its numerator, which is what is meant without it; denominator; or rest."""
    since: float | None = None
    """Answered at this time or later; in seconds since the epoch."""
    until: float | None = None
    """Answered before."""
    cursor: str | None = None
    limit: int = 50

    def query(self) -> dict[str, str]:
        """As the parameters of a URL: only what narrows."""
        told = {name: getattr(self, name) for name in _TEXTS}
        told |= {"since": iso(self.since), "until": iso(self.until), "cursor": self.cursor}
        if self.limit != CallSearch.__dataclass_fields__["limit"].default:
            told["limit"] = str(self.limit)
        return {name: value for name, value in told.items() if value is not None}

    def checked(self) -> CallSearch:
        """ValueError for what no search can be made of; it names the field."""
        if self.code is not None and self.code not in Code.__members__:
            raise ValueError(f"code: {ascii(self.code)[:40]} is none of the codes")
        self.wanted()
        for name in ("since", "until"):
            moment = getattr(self, name)
            if moment is not None and not (isfinite(moment) and abs(moment) < _LATEST):
                raise ValueError(f"{name}: takes seconds since the epoch")
        return replace(self, limit=bounded(self.limit))

    def wanted(self) -> Test | None:
        """Which events are behind the metric; None without one. ValueError for one there is not."""
        if self.metric is None:
            if self.part is not None:
                raise ValueError("part: is of a metric; name one as metric")
            return None
        if self.metric not in METRICS:
            raise ValueError(f"metric: {ascii(self.metric)[:60]} is none of the metrics")
        part = self.part or PARTS[0]
        test = METRICS[self.metric].part(part) if part in PARTS else None
        if test is None:
            raise ValueError(f"part: {self.metric} has no {ascii(part)[:40]} that can be listed")
        return test


_TEXTS = ("tool", "agent", "user", "run", "code", "metric", "part")
_LATEST = 1e11
"""Some thousand years, in seconds."""
_DAY = 86_400.0
_MOST_LOOKED_AT = 2000
"""How many events behind a metric are looked at for one page of those that match."""


class CallsDesk(Seat):
    """Calls of this tenant, for every viewer."""

    async def calls(self, search: CallSearch | None = None) -> Page[CallRow]:
        """Calls, newest first. ValueError for what no search can be made of."""
        asked = (search or CallSearch()).checked()
        after = None if asked.cursor is None else read_cursor(asked.cursor, str)[0]
        if not findable(asked.tool, asked.agent, asked.user, asked.run, after):
            return Page([])
        test = asked.wanted()
        if test is not None:
            return await self._behind(asked, test, after)
        wanted = Calls(
            tool=asked.tool,
            agent=asked.agent,
            user=asked.user,
            run_id=asked.run,
            code=asked.code,
            since=asked.since,
            until=asked.until,
            after=after,
            limit=asked.limit + 1,
        )
        try:
            found = list(await self.runtime.store.calls(self.tenant, wanted))
        except CountersealError as error:
            if after is not None and str(error).startswith("after:"):
                raise ValueError("cursor: is none that was given out") from None
            raise
        shown = found[: asked.limit]
        more = write_cursor((shown[-1][0],)) if len(found) > asked.limit else None
        return Page([call_row(event) for _, event in shown], more)

    async def _behind(self, asked: CallSearch, test: Test, after: str | None) -> Page[CallRow]:
        """What a metric counts, newest first."""
        until = self.runtime.clock() + _DAY if asked.until is None else asked.until
        end = micros(until) if after is None else min(micros(until), _place(after) + 1)
        span = Span(micros(asked.since or 0.0), end)
        rows: list[CallRow] = []
        looked, last, shown = 0, after, after
        async with aclosing(behind(self.runtime.store, self.tenant, test, span, after)) as found:
            async for event_id, event in found:
                if looked == _MOST_LOOKED_AT:
                    return Page(rows, write_cursor((last,)))
                looked, last, row = looked + 1, event_id, call_row(event)
                if _matches(row, asked):
                    if len(rows) == asked.limit:
                        return Page(rows, write_cursor((shown,)))
                    rows.append(row)
                    shown = event_id
        return Page(rows)

    async def call(self, call_id: str) -> CallPage:
        """One call's whole story. NotThere."""
        told = await self._events(call_id)
        return await page_of(self.runtime, self.tenant, told)

    async def events(self, call_id: str) -> list[dict[str, Any]]:
        """A call's events as records, oldest first. NotThere where there are none."""
        return [event.record(event_id) for event_id, event in await self._events(call_id)]

    async def _events(self, call_id: str) -> list[tuple[str, Event]]:
        told = await self._told(call_id) if findable(call_id) else []
        if not told:
            raise NotThere("call")
        return told

    async def _told(self, call_id: str) -> list[tuple[str, Event]]:
        last = Search(call_id=call_id, limit=_MOST_EVENTS, newest_first=True)
        return list(reversed(await self.runtime.store.search(self.tenant, last)))

    async def observation(
        self, *, call_id: str | None = None, key: str | None = None, tool: str | None = None
    ) -> dict[str, Any]:
        """What the model got, by the call, or by its key in the ledger. NotThere.

        With a tool, `key` is the one that its caller chose.
        """
        named = key if tool is None else f"call:{tool}:{key}"
        seen = await (self._seen_under(named) if call_id is None else self._seen(call_id))
        if seen is None or seen.record is None:
            raise NotThere("observation")
        return {**without_gates(seen.record), "text": seen.text, "cut": seen.cut}

    async def _seen_under(self, key: str | None) -> Seen | None:
        if key is None or not key.isprintable() or len(key) > _LONGEST_KEY:
            return None
        return in_ledger(await self.runtime.store.look_up(self.tenant, key))

    async def _seen(self, call_id: str) -> Seen | None:
        if not findable(call_id):
            return None
        told = await self._told(call_id)
        if told and "seen" in end_of(told).body:
            return await self._read(told)
        return in_ledger(await self.runtime.store.look_up_call(self.tenant, _first(call_id, told)))

    async def _read(self, told: Sequence[tuple[str, Event]]) -> Seen | None:
        first, end = told[0][1].caller, end_of(told)
        if (first.agent, first.user) != (end.caller.agent, end.caller.user):
            return None  # two have used the id: neither is shown what the other has read
        return await in_vault(self.runtime, self.tenant, end)


_LONGEST_KEY = 1000
_MOST_EVENTS = 500
"""Of one call: a caller may give many calls one id."""


def _first(call_id: str, told: Sequence[tuple[str, Event]]) -> str:
    """The call that did what this one was answered with."""
    for _, event in reversed(told):
        if filed(event.type, event.decision, event.body)[0] and "of" in event.body:
            return str(event.body["of"])
    return call_id


def _matches(row: CallRow, asked: CallSearch) -> bool:
    own = (row.tool, row.agent, row.user, row.run_id, row.code)
    given = (asked.tool, asked.agent, asked.user, asked.run, asked.code)
    return all(one in (None, mine) for one, mine in zip(given, own, strict=True))


def _place(cursor: str) -> int:
    """The number of the event that a cursor stands for."""
    try:
        return place_of(cursor)[0]
    except CountersealError:
        raise ValueError("cursor: is none that was given out") from None
