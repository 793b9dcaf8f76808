"""Runs: opened, begun anew, and what is left in their state."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from pydantic_core import from_json

from counterseal.audit import Event
from counterseal.ledger.rules import merged
from counterseal.storage.base import IDLE_SECONDS, RunRecord, Settle
from counterseal.storage.postgres.job import Job
from counterseal.storage.postgres.rows import RunRow, StateRow, read, run_row, state_rows, written
from counterseal.storage.postgres.world import Needs, World, told

__all__ = ["Opening", "Refusing", "Turning", "UsingImplicit", "advance", "need_progress"]


class Opening(Job):
    """True when there was no such run."""

    __slots__ = ("_run",)
    durable: ClassVar[bool] = False

    def __init__(self, run: RunRecord) -> None:
        super().__init__()
        self._run = run

    def need(self, needs: Needs) -> None:
        needs.runs.add((self._run.tenant, self._run.run_id))

    def work(self, world: World) -> bool:
        return _open(world, self._run)


def _open(world: World, run: RunRecord) -> bool:
    where = (run.tenant, run.run_id)
    if world.runs.get(where) is not None:
        return False
    row = run_row(run)
    world.runs.put(where, RunRow(*row[8:13])._replace(opened=row[:8]))
    for tenant, run_id, key, value, version, untrusted in state_rows(run):
        world.state.put((tenant, run_id, key), StateRow(value, version, untrusted))
    return True


class UsingImplicit(Job):
    """The id of the run of somebody who names none; where there is none, of the given one."""

    __slots__ = ("_run", "_who")
    durable: ClassVar[bool] = False

    def __init__(self, run: RunRecord, agent: str, user: str | None) -> None:
        super().__init__()
        self._run = run
        self._who = (run.tenant, agent, user or "")

    def need(self, needs: Needs) -> None:
        needs.implicit.add(self._who)
        needs.runs.add((self._run.tenant, self._run.run_id))

    def work(self, world: World) -> str:
        run, now = self._run, self._run.started_at
        run_id, used = world.implicit.get(self._who) or ("", now)
        if now - used > IDLE_SECONDS or world.runs.get((run.tenant, run_id)) is None:
            run_id = run.run_id
            _open(world, run)
        world.implicit.put(self._who, (run_id, now))
        return run_id


class Turning(Job):
    """Forget what the state holds under other keys than these. False when there is no such run."""

    __slots__ = ("_keep", "_where")
    durable: ClassVar[bool] = False

    def __init__(self, tenant: str, run_id: str, keep: Collection[str]) -> None:
        super().__init__()
        self._where = (tenant, run_id)
        self._keep = keep

    def need(self, needs: Needs) -> None:
        needs.runs.add(self._where)
        needs.state.add((*self._where, None))

    def work(self, world: World) -> bool:
        run = world.runs.get(self._where)
        if run is None:
            return False
        gone = 0
        for where in world.state:
            row = world.state.get(where)
            if where[:2] != self._where or where[2] in self._keep:
                continue
            if row is not None and row.value is not None:
                world.state.put(where, StateRow(None, row.version + 1, untrusted=False))
                gone = 1
        turned = run._replace(turn=run.turn + 1, changes=run.changes + gone)
        world.runs.put(self._where, turned)
        return True


# --- what a settlement leaves ---------------------------------------------------------------------


def need_progress(needs: Needs, request: Settle) -> None:
    """What `advance` looks at."""
    where = (request.tenant, request.run_id)
    if request.seen or request.state or request.mended is not None:
        needs.runs.add(where)
    needs.state.update((*where, key) for key, _, _ in request.state)
    if request.mended is not None:
        needs.refusals.add((*where, request.mended))


def advance(world: World, request: Settle) -> None:
    """What the run has seen now, what is left in its state, which refusals are over."""
    where, mended = (request.tenant, request.run_id), request.mended
    if mended is not None:
        for refusal in world.refusals:
            if refusal[:3] == (*where, mended):
                world.refusals.remove(refusal)
    run = world.runs.get(where)
    if run is None or not (request.seen or request.state or mended):
        return
    seen, refused, changes = run.seen, run.refused, run.changes
    if request.seen:
        seen = written({**read(seen), **request.seen})
    if mended is not None:
        refused = written([tool for tool in from_json(refused) if tool != mended])
    if request.state:
        changes += 1
        _leave(world, request)
    world.runs.put(where, run._replace(seen=seen, refused=refused, changes=changes))


def _leave(world: World, request: Settle) -> None:
    left: dict[str, tuple[Any, int, bool]] = {}
    where = (request.tenant, request.run_id)
    for key, merge, value in request.state:
        if key in left:
            before, version, outside = left[key]
        else:
            before, version, outside = _kept(world, (*where, key))
            version += 1
        outside = request.untrusted or (outside and merge != "replace")
        left[key] = (merged(before, merge, value), version, outside)
    for key, (value, version, outside) in left.items():
        world.state.put((*where, key), StateRow(written(value), version, outside))


def _kept(world: World, where: tuple[str, str, str]) -> tuple[Any, int, bool]:
    row = world.state.get(where)
    if row is None:
        return None, 0, False
    return None if row.value is None else from_json(row.value), row.version, row.untrusted


# --- refusals -------------------------------------------------------------------------------------


class Refusing(Job):
    """Record a refusal, and count it under each fingerprint. The counts."""

    __slots__ = ("_counted", "_told", "_tool", "_where")

    def __init__(
        self,
        tenant: str,
        run_id: str,
        tool: str,
        fingerprints: Sequence[str],
        events: Sequence[Event],
    ) -> None:
        super().__init__()
        self._where = (tenant, run_id)
        self._tool = tool
        self._counted = [("" if one.startswith("run/") else tool, one) for one in fingerprints]
        self._told = told(events)

    def need(self, needs: Needs) -> None:
        if self._counted:
            needs.runs.add(self._where)
        needs.refusals.update((*self._where, whose) for whose, _ in self._counted)

    def work(self, world: World) -> Sequence[int]:
        world.record(self._told)
        for one in self._counted:
            where = (*self._where, *one)
            world.refusals.put(where, (world.refusals.get(where) or 0) + 1)
        run = world.runs.get(self._where)
        if run is not None and any(whose == self._tool for whose, _ in self._counted):
            tools = from_json(run.refused)
            if self._tool not in tools:
                refused = written(sorted([*tools, self._tool]))
                world.runs.put(self._where, run._replace(refused=refused))
        return [world.refusals.get((*self._where, *one)) or 0 for one in self._counted]
