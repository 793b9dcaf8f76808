"""A store in one SQLite file, for one machine and any number of its processes.

Nothing that another process can change is kept in memory: every answer is read from the file.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import getrandbits, uniform
from typing import Final, TypeVar

from counterseal.audit import Event
from counterseal.errors import StoreError
from counterseal.storage.base import (
    Admission,
    Admit,
    Held,
    HeldStatus,
    Memory,
    RunRecord,
    Settle,
)
from counterseal.storage.sqlite import admission, holds, runs
from counterseal.storage.sqlite.database import Database
from counterseal.storage.sqlite.faults import LockedError
from counterseal.storage.sqlite.queries import queries
from counterseal.storage.sqlite.rows import event_of
from counterseal.storage.sqlite.transaction import Transaction
from counterseal.storage.sqlite.writer import Writer

__all__ = ["SqliteStore"]

_T = TypeVar("_T")
_Q: Final = queries()
_RECALL_COUNTERS: Final = _Q["recall_counters"]
_KEEP: Final = _Q["keep"]
_PATIENCE: Final = 5.0
"""How many seconds to wait for somebody else who writes."""
_JUST_NOW: Final = 1.0
"""That a run is in use is written down once in so many seconds, not with every call."""


class SqliteStore:
    """Speaks the `Store` protocol. The file is opened, and migrated, when this is made."""

    def __init__(self, path: Path, *, patience: float = _PATIENCE) -> None:
        self._patience = patience
        self._database = Database(path, patience=patience)
        self._writer = Writer(self._database, patience=patience)

    # --- runs -------------------------------------------------------------------------------------

    async def open_run(self, run: RunRecord) -> RunRecord:
        return await self._writer.write(lambda db: runs.open_run(db, run), durable=False)

    async def find_run(self, tenant: str, run_id: str) -> RunRecord | None:
        return await self._read(lambda db: runs.find_run(db, tenant, run_id))

    async def find_implicit_run(
        self, tenant: str, agent: str, user: str | None, now: float
    ) -> RunRecord | None:
        found = await self._read(lambda db: runs.find_implicit(db, tenant, agent, user, now))
        return None if found is None else found[0]

    async def implicit_run(self, run: RunRecord, agent: str, user: str | None) -> RunRecord:
        tenant, now = run.tenant, run.started_at
        found = await self._read(lambda db: runs.find_implicit(db, tenant, agent, user, now))
        if found is not None and 0 <= now - found[1] < _JUST_NOW:
            return found[0]
        return await self._writer.write(
            lambda db: runs.use_implicit(db, run, agent, user), durable=False
        )

    async def new_turn(self, tenant: str, run_id: str, keep: Collection[str]) -> RunRecord | None:
        return await self._writer.write(
            lambda db: runs.new_turn(db, tenant, run_id, keep), durable=False
        )

    # --- the way of a call ------------------------------------------------------------------------

    async def recall(self, tenant: str, run_id: str, key: str | None) -> Memory:
        return await self._read(lambda db: _recall(db, tenant, run_id, key))

    async def admit(self, request: Admit) -> Admission:
        # What only spends, and leaves nothing that anybody could miss, does not wait for the disk.
        durable = bool(request.entry or request.approval_id or request.events)
        return await self._writer.write(
            lambda db: admission.admit(db, request), durable=durable, vain=True
        )

    def note(self, event: Event) -> None:
        self._writer.ride(lambda db: db.record((event,)))

    async def settle(self, request: Settle) -> bool:
        return await self._writer.write(lambda db: admission.settle(db, request))

    async def hold(self, held: Held, events: Sequence[Event]) -> Held:
        return await self._writer.write(lambda db: holds.hold(db, held, events))

    async def decide(
        self, tenant: str, approval_id: str, status: HeldStatus, events: Sequence[Event]
    ) -> Held | None:
        return await self._writer.write(
            lambda db: holds.decide(db, tenant, approval_id, status, events)
        )

    async def refuse(
        self,
        tenant: str,
        run_id: str,
        tool: str,
        fingerprints: Sequence[str],
        events: Sequence[Event],
    ) -> Sequence[int]:
        return await self._writer.write(
            partial(
                runs.refuse,
                tenant=tenant,
                run_id=run_id,
                tool=tool,
                fingerprints=fingerprints,
                events=events,
            )
        )

    async def keep(self, tenant: str, call_id: str, raw: bytes) -> str:
        # Nobody can follow the pointer before what it stands in is committed, and this with it.
        moment = f"{int(time.time() * 1000):011x}{getrandbits(52):013x}"
        pointer = f"vault:{call_id}/{moment}"
        self._writer.ride(lambda db: db.run(_KEEP, (tenant, pointer, raw)))
        return pointer

    # --- the record -------------------------------------------------------------------------------

    async def events(
        self, tenant: str, *, call_id: str | None = None, run_id: str | None = None
    ) -> Sequence[tuple[str, Event]]:
        with suppress(StoreError):  # what could not be written is not on record
            await self._writer.flush()
        found = await self._read(lambda db: _events(db, tenant, call_id, run_id))
        if call_id is None or run_id is None:
            return found
        return [one for one in found if one[1].caller.run_id == run_id]

    async def close(self) -> None:
        await self._writer.close()

    async def _read(self, work: Callable[[Transaction], _T]) -> _T:
        """One read. It waits only while somebody opens the file, or repairs it after a crash."""
        until = time.monotonic() + self._patience
        while True:
            try:
                return self._database.read(work)
            except LockedError:
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(uniform(0.001, 0.01))  # noqa: S311 - so that they spread out


def _recall(db: Transaction, tenant: str, run_id: str, key: str | None) -> Memory:
    entry = held = None
    if key is not None:
        entry = admission.find_entry(db, tenant, key)
        held = holds.last_held(db, tenant, key)
    spent: tuple[dict[str, float], ...] = ({}, {}, {})
    for kind, name, value in db.run(_RECALL_COUNTERS, (tenant, run_id, tenant, tenant)):
        spent[kind - 1][name] = value
    return Memory(entry, held, *spent)


def _events(
    db: Transaction, tenant: str, call_id: str | None, run_id: str | None
) -> list[tuple[str, Event]]:
    if call_id is not None:
        rows = db.run(_Q["events_of_call"], (tenant, call_id))
    elif run_id is not None:
        rows = db.run(_Q["events_of_run"], (tenant, run_id))
    else:
        rows = db.run(_Q["events"], (tenant,))
    return [event_of(row) for row in rows]
