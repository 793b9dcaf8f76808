"""Reads and locks what a transaction rests on, always in the same order: none wait in a ring.

Those who name no run, then all that one statement brings, then due work, refusals, and the state of
runs: that is guarded by the lock on its run, and read when that was had.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from counterseal.ledger.rules import asker
from counterseal.storage.postgres.queries import queries
from counterseal.storage.postgres.rows import (
    Row,
    RunRow,
    StateRow,
    Task,
    due_of,
    held_of,
    line_of,
)
from counterseal.storage.postgres.world import Needs, World

__all__ = ["columns", "look"]

_Q: Final = queries()
_LOOK: Final = _Q["look"]
_LOOK_IMPLICIT: Final = _Q["look_implicit"]
_LOOK_HELD_KEYS: Final = _Q["look_held_keys"]
_LOOK_DUE: Final = _Q["look_due"]
_LOOK_REFUSALS: Final = _Q["look_refusals"]
_LOOK_STATE: Final = _Q["look_state"]


def columns(rows: Collection[Row], count: int) -> tuple[Collection[Any], ...]:
    """Rows as the arrays that a statement takes, one for each column."""
    return tuple(zip(*rows, strict=True)) if rows else ((),) * count


async def look(connection: Any, needs: Needs) -> World:
    """Everything that is needed, locked."""
    world = World()
    await _look_for_runs_and_holds(connection, needs, world)
    found = await connection.fetchrow(
        _LOOK,
        *columns(needs.entries, 2),
        *columns(needs.runs, 2),
        *columns(needs.held, 2),
        *columns(needs.counters, 3),
        *columns(needs.rates, 2),
    )
    entries, runs, held, counters, rates, world.epoch, world.now = found
    for row in entries or ():
        world.entries.find((row[0], row[1]), line_of(row))
    for row in runs or ():
        world.runs.find((row[0], row[1]), RunRow(*row[2:]))
    for row in held or ():
        kept = held_of(row)
        world.held.find((row[0], row[1]), kept)
        if kept.latest:
            one = kept.held
            who = asker(one.agent, one.user)
            world.last_held[one.tenant, one.key, *who] = one.approval_id
    for tenant, run_id, name, spent in counters or ():
        world.counters.find((tenant, run_id, name), spent)
    for tenant, name, arrival in rates or ():
        world.rates.find((tenant, name), arrival)
    await _look_further(connection, needs, world)
    return world


async def _look_for_runs_and_holds(connection: Any, needs: Needs, world: World) -> None:
    """Those that are not known by their ids yet."""
    if needs.implicit:
        for row in await connection.fetch(_LOOK_IMPLICIT, *columns(needs.implicit, 3)):
            tenant, agent, user, run_id, used_at = row
            world.implicit.find((tenant, agent, user), (run_id, used_at))
            needs.runs.add((tenant, run_id))
    if needs.held_keys:
        found = await connection.fetch(_LOOK_HELD_KEYS, *columns(needs.held_keys, 4))
        needs.held.update((tenant, approval_id) for tenant, approval_id in found)


async def _look_further(connection: Any, needs: Needs, world: World) -> None:
    """What few need."""
    if needs.due:
        for row in await connection.fetch(_LOOK_DUE, *columns(needs.due, 3)):
            world.due.find((row[0], row[1], row[2]), Task(due_of(row), row[12]))
    if needs.refusals:
        for row in await connection.fetch(_LOOK_REFUSALS, *columns(needs.refusals, 3)):
            tenant, run_id, tool, fingerprint, times = row
            world.refusals.find((tenant, run_id, tool, fingerprint), times)
    if needs.state:
        for row in await connection.fetch(_LOOK_STATE, *columns(needs.state, 3)):
            world.state.find((row[0], row[1], row[2]), StateRow(*row[3:]))
