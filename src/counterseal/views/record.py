"""The record: search it, see how far it is sealed, check it, take it elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from counterseal.audit import EventType, Head
from counterseal.audit.checkpoint import sealed_heads
from counterseal.audit.export import csv_head, csv_line, json_line
from counterseal.audit.report import Report
from counterseal.audit.verify import LATE_MICROS
from counterseal.errors import CountersealError
from counterseal.operations.auditor import verify_store
from counterseal.storage.base import Search
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

__all__ = ["ChainStatus", "EventRow", "Format", "RecordDesk"]

Format = Literal["jsonl", "csv"]
_AT_ONCE: Final = 1000
_KINDS: Final = frozenset(kind.value for kind in EventType)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainStatus:
    """How far the record is sealed, without checking it."""

    checkpoints: int
    sealed_at: float | None
    """When the last checkpoint was made."""
    sealed_hash: str | None
    """The last checkpoint's."""
    segments: int
    """How many are sealed as far as they went then."""
    unsealed: int | None
    """How many have grown since, or are new; None: nothing was ever sealed."""
    has_key: bool
    """Whether there is a key here to seal with."""

    def record(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in self.__slots__},
            "sealed_at": iso(self.sealed_at),
        }


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event, as its record."""

    content: dict[str, Any]

    def record(self) -> dict[str, Any]:
        return self.content


class RecordDesk(Seat):
    """Events of this tenant, for every viewer."""

    async def search(
        self,
        *,
        call_id: str | None = None,
        run_id: str | None = None,
        tool: str | None = None,
        types: Collection[str] | None = None,
        since: float | None = None,
        until: float | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[EventRow]:
        """Events, newest first. ValueError for a type that there is not, or a made-up cursor."""
        limit = bounded(limit)
        after = None if cursor is None else read_cursor(cursor, str)[0]
        strange = sorted(set(types or ()) - _KINDS)
        if strange:
            raise ValueError(f"types: no event is of type {ascii(strange[0])[:60]}")
        if not findable(call_id, run_id, tool, after):
            return Page([])
        asked = Search(call_id, run_id, tool, types or None, since, until, after, limit + 1, True)
        try:
            found = list(await self.runtime.store.search(self.tenant, asked))
        except CountersealError as error:
            if after is not None and str(error).startswith("after:"):
                raise ValueError("cursor: is none that was given out") from None
            raise
        shown = found[:limit]
        more = write_cursor((shown[-1][0],)) if len(found) > limit else None
        return Page([EventRow(event.record(one)) for one, event in shown], more)

    async def chain(self) -> ChainStatus:
        """How far the record is sealed."""
        store = self.runtime.store
        checkpoints = await store.checkpoints(self.tenant)
        sealed = sealed_heads(checkpoints)
        last = checkpoints[-1] if checkpoints else None
        grown = None if last is None else await self._grown(sealed)
        keys = self.runtime.keys
        return ChainStatus(
            checkpoints=len(checkpoints),
            sealed_at=None if last is None else last.sealed_at,
            sealed_hash=None if last is None else last.hash.hex(),
            segments=len(sealed),
            unsealed=grown,
            has_key=keys is not None and keys.signer("audit") is not None,
        )

    async def _grown(self, sealed: Mapping[str, Head]) -> int:
        """How many segments have more than was sealed. Looks at what came since, and a bit more."""
        latest = max((head.number for head in sealed.values()), default=0)
        heads = await self.runtime.store.heads(self.tenant, max(0, latest - LATE_MICROS))
        known = {name: head.seq for name, head in sealed.items()}
        return sum(head.seq > known.get(name, 0) for name, head in heads.items())

    async def verify(self, progress: Callable[[int], None] | None = None) -> Report:
        """Check all of it. `progress` is told how many events were looked at."""
        return await verify_store(
            self.runtime.store, self.tenant, self.runtime.keys, progress=progress
        )

    async def export(
        self, form: Format = "jsonl", *, since: float | None = None, until: float | None = None
    ) -> AsyncIterator[bytes]:
        """Events oldest first, as lines. NotThere for another form."""
        if form not in ("jsonl", "csv"):
            raise NotThere("format")
        line = csv_line if form == "csv" else json_line
        if form == "csv":
            yield csv_head().encode()
        after: str | None = None
        full = True
        while full:
            asked = Search(since=since, until=until, after=after, limit=_AT_ONCE)
            page = await self.runtime.store.search(self.tenant, asked)
            full = len(page) == _AT_ONCE
            if page:
                after = page[-1][0]
                yield "".join(line(*one) for one in page).encode()
