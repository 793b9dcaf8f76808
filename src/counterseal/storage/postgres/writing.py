"""Writes what a transaction has changed: one statement for each table that was touched.

Changes of rows that are locked never wait. New rows come after them, sorted, and can meet somebody
else's: then nothing is written, and everything is looked at again.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

from counterseal.storage.postgres.faults import ConflictError
from counterseal.storage.postgres.looking import columns
from counterseal.storage.postgres.queries import queries
from counterseal.storage.postgres.rows import (
    Row,
    day_of,
    held_change,
    held_row,
    line_row,
    task_row,
)
from counterseal.storage.postgres.segment import Links
from counterseal.storage.postgres.world import World

__all__ = ["signal_of", "write"]

_Q: Final = queries()
_WRITE: Final = _Q["write"]
_UPDATE_RUNS: Final = _Q["update_runs"]
_INSERT_RUNS: Final = _Q["insert_runs"]
_LEAVE: Final = _Q["leave"]
_UPDATE_IMPLICIT: Final = _Q["update_implicit"]
_INSERT_IMPLICIT: Final = _Q["insert_implicit"]
_INSERT_COUNTERS: Final = _Q["insert_counters"]
_INSERT_RATES: Final = _Q["insert_rates"]
_UPDATE_REFUSALS: Final = _Q["update_refusals"]
_DELETE_REFUSALS: Final = _Q["delete_refusals"]
_INSERT_REFUSALS: Final = _Q["insert_refusals"]
_UPDATE_HELD: Final = _Q["update_held"]
_INSERT_HELD: Final = _Q["insert_held"]
_UPDATE_DUE: Final = _Q["update_due"]
_DELETE_DUE: Final = _Q["delete_due"]
_INSERT_DUE: Final = _Q["insert_due"]
_KEEP: Final = _Q["keep"]
_NOTIFY: Final = _Q["notify"]


def signal_of(tenant: str, key: str) -> str:
    """What is sent to whoever waits for an entry or a request: short, whatever it is called."""
    return sha256(f"{tenant}\0{key}".encode()).hexdigest()


async def write(connection: Any, world: World, links: Links) -> None:
    """Everything that was changed. ConflictError when somebody else was first."""
    await _change(connection, world)
    await _write_calls(connection, world, links)
    await _add(connection, world)
    if world.kept:
        await _run(connection, _KEEP, world.kept)
    if world.woken:
        await connection.fetch(_NOTIFY, [signal_of(*one) for one in world.woken])


async def _write_calls(connection: Any, world: World, links: Links) -> None:
    """What nearly every transaction changes, in one statement."""
    if not (world.entries or world.counters or world.rates or world.told):
        return
    new = [line_row(*one)[:-1] for one in world.entries.new]
    added = await connection.fetchval(
        _WRITE,
        *columns([line_row(*one) for one in world.entries.changed], 20),
        *columns(new, 19),
        *columns(_single(world.counters.changed), 4),
        *columns(_single(world.rates.changed), 3),
        *columns([(*told, *link) for told, link in zip(world.told, links, strict=True)], 23),
    )
    if added != len(new):
        raise ConflictError


async def _change(connection: Any, world: World) -> None:
    """Rows that are ours already."""
    if world.runs:
        rows = [(*key, *run[:5]) for key, run in world.runs.changed]
        await _run(connection, _UPDATE_RUNS, rows)
    if world.implicit:
        await _run(connection, _UPDATE_IMPLICIT, _flat(world.implicit.changed))
    if world.held:
        await _run(connection, _UPDATE_HELD, [held_change(*one) for one in world.held.changed])
    if world.due:
        await _run(connection, _UPDATE_DUE, [task_row(task) for _, task in world.due.changed])
        await _run(connection, _DELETE_DUE, world.due.gone)
    if world.refusals:
        await _run(connection, _UPDATE_REFUSALS, _single(world.refusals.changed))
        await _run(connection, _DELETE_REFUSALS, world.refusals.gone)


async def _add(connection: Any, world: World) -> None:
    """Rows that were not there."""
    if world.implicit:
        await _insert(connection, _INSERT_IMPLICIT, _flat(world.implicit.new))
    if world.runs:
        opened = [(*run.opened, *run[:5]) for _, run in world.runs.new]
        await _insert(connection, _INSERT_RUNS, opened)
    if world.held:
        held = [(*held_row(one.held), *one[1:]) for _, one in world.held.new]
        await _insert(connection, _INSERT_HELD, held)
    if world.due:
        await _insert(connection, _INSERT_DUE, [task_row(task) for _, task in world.due.new])
    if world.counters:
        spent = [(*key, spent, day_of(*key[1:])) for key, spent in world.counters.new]
        await _insert(connection, _INSERT_COUNTERS, spent)
    if world.rates:
        await _insert(connection, _INSERT_RATES, _single(world.rates.new))
    if world.refusals:
        await _insert(connection, _INSERT_REFUSALS, _single(world.refusals.new))
    if world.state:  # guarded by the run's lock, so nobody else can be first
        await _run(connection, _LEAVE, _flat([*world.state.changed, *world.state.new]))


def _flat(rows: Sequence[tuple[Row, Row]]) -> list[Row]:
    return [(*key, *row) for key, row in rows]


def _single(rows: Sequence[tuple[Row, Any]]) -> list[Row]:
    return [(*key, value) for key, value in rows]


async def _run(connection: Any, statement: str, rows: Sequence[Row]) -> None:
    if rows:
        await connection.execute(statement, *columns(rows, 0))


async def _insert(connection: Any, statement: str, rows: Sequence[Row]) -> None:
    if rows:
        done: str = await connection.execute(statement, *columns(rows, 0))
        if int(done.rpartition(" ")[2]) != len(rows):
            raise ConflictError
