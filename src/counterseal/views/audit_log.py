"""The audit record: search, seal status, verification, export."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from typing import Any, Final, Literal

from counterseal.audit import Event, EventType
from counterseal.audit.chain import UnknownEventIdError, sealed_heads
from counterseal.audit.events import csv_head, csv_line, json_line
from counterseal.audit.verify import LATE_MICROS, AuditReport
from counterseal.errors import CountersealError
from counterseal.ledger.requests import EventFilter
from counterseal.operations.auditor import find_call, verify_store
from counterseal.views.base import (
    JsonObject,
    Moment,
    NotFoundError,
    Page,
    RowModel,
    TenantSection,
    cursor_error,
    page_size,
    read_cursor,
    storable,
    utc,
    write_cursor,
)

ExportFormat = Literal["jsonl", "csv"]
_BATCH: Final = 1000
_PROGRESS_INTERVAL: Final = 0.5
_verifying: set[str] = set()
"""Tenants whose record this process is verifying: one verification at a time."""
_TYPES: Final = frozenset(kind.value for kind in EventType)

# --- rows -----------------------------------------------------------------------------------------


class EventRow(RowModel):
    """One event of the audit record."""

    event_id: str
    type: str
    tenant: str
    run_id: str
    call_id: str
    tool: str
    version: str
    agent: str
    user: str | None
    trace_id: str
    caller_call_id: str | None
    workflow_id: str | None
    conversation_id: str | None
    session_id: str | None
    occurred_at: Moment
    decision: str
    policy_version: str | None
    external_ref: str | None
    body: JsonObject


def event_row(event_id: str, event: Event) -> EventRow:
    """Return a stored event as a row."""
    return EventRow.model_validate(event.record(event_id))


class ChainStatus(RowModel):
    """How far the record is sealed, without verifying it."""

    checkpoints: int
    sealed_at: Moment | None
    sealed_hash: str | None
    segments: int
    """Segments of the record that the checkpoints cover."""
    unsealed: int | None
    """Segments that are new or longer since the last checkpoint. None without a checkpoint."""
    has_key: bool


class VerificationRunningError(CountersealError):
    """Raised while the same record is being verified."""

    def __init__(self) -> None:
        super().__init__("A verification of this record is running. Try again when it has ended.")


# --- the section ----------------------------------------------------------------------------------


class RecordViews(TenantSection):
    """Events of a tenant, for every viewer."""

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
        """Return events, newest first. Raises ValueError for an unknown event type or cursor.

        `call_id` is either id of a call. Raises AmbiguousCallError if several calls have it.
        """
        limit = page_size(limit)
        after = None if cursor is None else read_cursor(cursor, str)[0]
        unknown = sorted(set(types or ()) - _TYPES)
        if unknown:
            name = ascii(unknown[0])[:60]
            raise ValueError(
                f"types: {name} is not an event type; `docs/reference/events.md` lists them"
            )
        if not storable(call_id, run_id, tool, after):
            return Page[EventRow](items=[], next=None)
        if call_id is not None:
            call_id = await find_call(self.runtime.store, self.tenant, call_id) or call_id
        wanted = EventFilter(
            call_id=call_id,
            run_id=run_id,
            tool=tool,
            types=types or None,
            since=since,
            until=until,
            after=after,
            limit=limit + 1,
            newest_first=True,
        )
        try:
            events = await self.runtime.store.search(self.tenant, wanted)
        except UnknownEventIdError:
            raise cursor_error() from None
        shown = events[:limit]
        more = write_cursor(shown[-1][0]) if len(events) > limit else None
        return Page[EventRow](items=[event_row(*event) for event in shown], next=more)

    async def chain(self) -> ChainStatus:
        """Return how far the record is sealed."""
        checkpoints = await self.runtime.store.checkpoints(self.tenant)
        sealed, keys = sealed_heads(checkpoints), self.runtime.keys
        last = checkpoints[-1] if checkpoints else None
        known = {name: head.seq for name, head in sealed.items()}
        latest = max((head.number for head in sealed.values()), default=0)
        heads = await self.runtime.store.heads(self.tenant, max(0, latest - LATE_MICROS))
        grown = sum(head.seq > known.get(name, 0) for name, head in heads.items())
        return ChainStatus(
            checkpoints=len(checkpoints),
            sealed_at=None if last is None else utc(last.sealed_at),
            sealed_hash=None if last is None else last.hash.hex(),
            segments=len(sealed),
            unsealed=None if last is None else grown,
            has_key=keys is not None and keys.signer("audit") is not None,
        )

    async def verify(self) -> AuditReport:
        """Verify the whole record. Raises VerificationRunningError."""
        *_, report = [step async for step in self.verification()]
        return AuditReport.model_validate(report)

    def verification(self) -> AsyncIterator[int | AuditReport]:
        """Verify the record: yield how many events are checked, again and again, and the report.

        Raises VerificationRunningError while this process verifies the same record.
        """
        if self.tenant in _verifying:
            raise VerificationRunningError
        return self._verification()

    async def _verification(self) -> AsyncGenerator[int | AuditReport]:
        checked = 0

        def count(events: int) -> None:
            nonlocal checked
            checked = events

        store, keys = self.runtime.store, self.runtime.keys
        _verifying.add(self.tenant)
        work = asyncio.ensure_future(verify_store(store, self.tenant, keys, progress=count))
        try:
            while not work.done():
                yield checked
                await asyncio.wait({work}, timeout=_PROGRESS_INTERVAL)
            report = work.result()
        finally:
            work.cancel()
            await asyncio.wait({work})
            _verifying.discard(self.tenant)
        yield report

    async def export(
        self,
        form: ExportFormat = "jsonl",
        *,
        since: float | None = None,
        until: float | None = None,
    ) -> AsyncIterator[bytes]:
        """Yield events, oldest first, as lines. Raises NotFoundError for an unknown format."""
        if form not in ("jsonl", "csv"):
            raise NotFoundError("format")
        line: Callable[..., str] = csv_line if form == "csv" else json_line
        if form == "csv":
            yield csv_head().encode()
        after: str | None = None
        full = True
        while full:
            wanted = EventFilter(since=since, until=until, after=after, limit=_BATCH)
            batch: Any = await self.runtime.store.search(self.tenant, wanted)
            full = len(batch) == _BATCH
            if batch:
                after = batch[-1][0]
                yield "".join(line(*event) for event in batch).encode()
