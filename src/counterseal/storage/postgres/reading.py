"""Reads. Those of calls, which come in crowds, are answered many at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from counterseal.ledger.entry import Entry
from counterseal.ledger.rules import asker, concern, parked
from counterseal.storage.base import (
    Asker,
    Concern,
    Due,
    DueKind,
    Held,
    HeldStatus,
    Kept,
    Memory,
)
from counterseal.storage.postgres.faults import UnfitError, explained, is_lost, is_mistake
from counterseal.storage.postgres.finding import Finding, FindingImplicit, find
from counterseal.storage.postgres.job import Job
from counterseal.storage.postgres.looking import columns
from counterseal.storage.postgres.queries import queries
from counterseal.storage.postgres.rows import Row, due_of, held_of, line_of, shown
from counterseal.storage.postgres.session import Session

__all__ = [
    "Reading",
    "Recalling",
    "answer",
    "concerns",
    "find_due",
    "find_held",
    "held_waits",
    "list_held",
    "look_up",
    "look_up_call",
]

_J = TypeVar("_J", bound=Job)
_Q: Final = queries()
_RECALL: Final = _Q["recall"]
_LOOK_UP: Final = _Q["look_up"]
_LOOK_UP_CALL: Final = _Q["look_up_call"]
_FIND_HELD: Final = _Q["find_held"]
_LIST_HELD: Final = _Q["list_held"]
_LIST_ALL_HELD: Final = _Q["list_all_held"]
_NEWEST_HELD: Final = _Q["newest_held"]
_NEWEST_OF_ALL_HELD: Final = _Q["newest_of_all_held"]
_HELD_WAITS: Final = _Q["held_waits"]
_FIND_DUE: Final = _Q["find_due"]
_ESCALATED: Final = _Q["escalated"]
_FAILED_DUE: Final = _Q["failed_due"]


class Reading(Job):
    """Anything that is asked."""

    __slots__ = ("ask",)
    vain = True

    def __init__(self, ask: Callable[[Any], Awaitable[Any]]) -> None:
        super().__init__()
        self.ask = ask


class Recalling(Job):
    """What bears on a call."""

    __slots__ = ("key", "run_id", "spent", "tenant", "who")
    vain = True

    def __init__(
        self, tenant: str, run_id: str, key: str | None, who: Asker | None, *, spent: bool
    ) -> None:
        super().__init__()
        self.tenant = tenant
        self.spent = spent
        self.run_id = run_id
        self.key = key
        self.who: tuple[str, str] | tuple[None, None] = (None, None) if who is None else asker(*who)


async def answer(session: Session, jobs: Sequence[Job]) -> None:
    """Each has its answer afterwards, or its error."""
    calls = [job for job in jobs if isinstance(job, Recalling)]
    if calls:
        await _ask_at_once(session, calls, _recall)
    runs = [job for job in jobs if isinstance(job, Finding | FindingImplicit)]
    if runs:
        await _ask_at_once(session, runs, find)
    for job in jobs:
        if isinstance(job, Reading):
            await _ask(session, [job], partial(_read, job))


async def _ask_at_once(
    session: Session, jobs: Sequence[_J], ask: Callable[..., Awaitable[None]]
) -> None:
    """Where one of many has a fault of its own, each is asked for itself."""
    await _ask(session, jobs, partial(ask, jobs=jobs))
    if len(jobs) > 1 and any(_is_own(job.error) for job in jobs):
        for job in jobs:
            job.error = None
            await _ask(session, [job], partial(ask, jobs=[job]))


def _is_own(error: BaseException | None) -> bool:
    return error is not None and (isinstance(error, UnfitError) or is_mistake(error))


async def _read(job: Reading, connection: Any) -> None:
    job.answer = await job.ask(connection)


async def _ask(
    session: Session, jobs: Sequence[Job], ask: Callable[[Any], Awaitable[None]]
) -> None:
    """On a new connection if the old one turns out to be lost."""
    error: Exception | None = None
    for _ in range(2):
        try:
            await ask(await session.connection())
        except Exception as failed:  # noqa: BLE001 - every one is told to whoever waits
            error = failed
            if not is_lost(error):
                break
            session.lose()
        else:
            return
    for job in jobs:
        if error is not None:
            job.error = error if is_mistake(error) else explained(error, session.where)


async def _recall(connection: Any, jobs: Sequence[Recalling]) -> None:
    keys = {(one.tenant, one.key) for one in jobs if one.key is not None}
    lives = {(one.tenant, run_id) for one in jobs if one.spent for run_id in (one.run_id, "")}
    tenants = {one.tenant for one in jobs if one.spent}
    askers = {(one.tenant, one.key, *one.who) for one in jobs if one.key is not None}
    asked = (*columns(keys, 2), *columns(lives, 2), list(tenants), *columns(askers, 4))
    found = await connection.fetchrow(_RECALL, *asked)
    entries = {(row[0], row[1]): shown(line_of(row), found[4]) for row in found[0] or ()}
    held = {(row[0], row[2], row[26], row[27]): held_of(row)[0] for row in found[1] or ()}
    spent: dict[tuple[str, str], dict[str, float]] = {}
    for tenant, run_id, name, amount in found[2] or ():
        spent.setdefault((tenant, run_id), {})[name] = amount
    rates: dict[str, dict[str, float]] = {}
    for tenant, name, arrival in found[3] or ():
        rates.setdefault(tenant, {})[name] = arrival
    for one in jobs:
        tenant = one.tenant
        entry: Entry | None = None
        last: Held | None = None
        if one.key is not None:
            entry = entries.get((tenant, one.key))
            last = held.get((tenant, one.key, *one.who))
        counters = spent.get((tenant, one.run_id), {}), spent.get((tenant, ""), {})
        one.answer = Memory(entry, last, *counters, rates.get(tenant, {}))


async def look_up(connection: Any, tenant: str, key: str) -> Kept | None:
    """An entry, with what is needed to go on from it."""
    row = await connection.fetchrow(_LOOK_UP, tenant, key)
    return None if row is None else Kept(shown(line_of(row), row[19]), row[18])


async def look_up_call(connection: Any, tenant: str, call_id: str) -> Kept | None:
    """The same by the call that it is of."""
    row = await connection.fetchrow(_LOOK_UP_CALL, tenant, call_id)
    return None if row is None else Kept(shown(line_of(row), row[19]), row[18])


async def find_held(connection: Any, tenant: str, approval_id: str) -> Held | None:
    """A request, whatever became of it."""
    row = await connection.fetchrow(_FIND_HELD, tenant, approval_id)
    return None if row is None else held_of(row).held


async def list_held(
    connection: Any,
    tenant: str | None,
    status: HeldStatus,
    limit: int,
    between: tuple[tuple[float, str], tuple[float, str]],
    *,
    newest_first: bool,
) -> Sequence[Held]:
    """Those of a status between two places, by when they end."""
    first, last = between
    if tenant is None:
        query = _NEWEST_OF_ALL_HELD if newest_first else _LIST_ALL_HELD
        rows = await connection.fetch(query, status.value, *first, *last, limit)
    else:
        query = _NEWEST_HELD if newest_first else _LIST_HELD
        rows = await connection.fetch(query, tenant, status.value, *first, *last, limit)
    return [held_of(row).held for row in rows]


async def held_waits(connection: Any, tenant: str, approval_id: str) -> bool:
    """Whether a request is still to be decided."""
    return bool(await connection.fetchval(_HELD_WAITS, tenant, approval_id))


async def find_due(connection: Any, tenant: str, kind: DueKind, key: str) -> Due | None:
    """A piece of due work."""
    row: Row | None = await connection.fetchrow(_FIND_DUE, tenant, str(kind), key)
    return None if row is None else due_of(row)


async def concerns(connection: Any, tenant: str | None, limit: int) -> Sequence[Concern]:
    """Escalated entries, and due work that failed, oldest first."""
    unknown = await connection.fetch(_ESCALATED, tenant, limit)
    failed = await connection.fetch(_FAILED_DUE, tenant, limit)
    found = [concern(line_of(row).entry) for row in unknown]
    found += [parked(due_of(row)) for row in failed]
    found.sort(key=lambda one: (one.since, one.tenant, one.kind, one.key))
    return found[:limit]
