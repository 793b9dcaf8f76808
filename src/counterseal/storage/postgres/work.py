"""Work that is due at some time: put down, claimed by one worker after another, finished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from counterseal.audit import Event
from counterseal.ledger.entry import Status
from counterseal.storage.base import Claim, Due, Finish, Kept
from counterseal.storage.postgres.job import Alone, Job
from counterseal.storage.postgres.queries import queries
from counterseal.storage.postgres.rows import Task, due_of, line_of
from counterseal.storage.postgres.world import Needs, World, told

__all__ = ["ClaimingDue", "ClaimingOrphans", "Finishing", "Scheduling", "need_due", "put_down"]

_Q: Final = queries()
_CLAIM_ORPHANS: Final = _Q["claim_orphans"]
_CLAIM_DUE: Final = _Q["claim_due"]

_Later = Sequence[tuple[float, Due]]


def _key(due: Due) -> tuple[str, str, str]:
    return due.tenant, str(due.kind), due.key


def need_due(needs: Needs, later: _Later) -> None:
    """What `put_down` looks at."""
    needs.due.update(_key(due) for _, due in later)


def put_down(world: World, later: _Later) -> bool:
    """Put work down, each unless it is there. Whether all was new."""
    new = True
    for after, due in later:
        if world.due.get(_key(due)) is not None:
            new = False
            continue
        fresh = due._replace(fence=0, tries=0, failed=None, since=world.now)
        world.due.put(_key(due), Task(fresh, world.now + after))
    return new


class Scheduling(Job):
    __slots__ = ("_later", "_told")

    def __init__(self, after: float, work: Due, events: Sequence[Event]) -> None:
        super().__init__()
        self._later = [(after, work)]
        self._told = told(events)

    def need(self, needs: Needs) -> None:
        need_due(needs, self._later)

    def work(self, world: World) -> bool:
        new = put_down(world, self._later)
        if new:
            world.record(self._told)
        return new


class Finishing(Job):
    """False, and nothing is changed, for who comes with an old fence."""

    __slots__ = ("_request", "_told")

    def __init__(self, request: Finish) -> None:
        super().__init__()
        self._request = request
        self._told = told(request.events)

    def need(self, needs: Needs) -> None:
        request = self._request
        needs.due.add(_key(request.work))
        need_due(needs, request.due)
        if request.compensated is not None:
            needs.entries.add((request.work.tenant, request.work.key))

    def work(self, world: World) -> bool:
        request = self._request
        where = _key(request.work)
        task = world.due.get(where)
        if task is None or task.due.fence != request.work.fence:
            return False
        if request.failed is not None:
            failed = task.due._replace(failed=request.failed, since=world.now)
            world.due.put(where, Task(failed, None))
        elif request.again_after is not None:
            again = task.due._replace(failed=None)
            world.due.put(where, Task(again, world.now + request.again_after))
        else:
            world.due.remove(where)
        self._compensate(world)
        put_down(world, request.due)
        world.record(self._told)
        return True

    def _compensate(self, world: World) -> None:
        """What was done is undone, and this is the answer from now on."""
        answer = self._request.compensated
        where = (self._request.work.tenant, self._request.work.key)
        line = None if answer is None else world.entries.get(where)
        if line is not None and line.entry.status is Status.COMPLETED:
            entry = line.entry._replace(status=Status.COMPENSATED, observation=answer)
            world.entries.put(where, line._replace(entry=entry))


class _Claiming(Alone):
    """No two workers get the same: what one is claiming, others pass over."""

    __slots__ = ("_claim",)

    def __init__(self, claim: Claim) -> None:
        super().__init__()
        self._claim = claim

    @property
    def _which(self) -> tuple[Any, ...]:
        """How long it has waited, whose it is, and how many."""
        claim = self._claim
        tools = None if claim.tools is None else list(claim.tools)
        return claim.lapsed_for, tools, claim.limit


class ClaimingOrphans(_Claiming):
    __slots__ = ()

    async def run(self, connection: Any, world: World) -> Sequence[Kept]:
        claim = self._claim
        found = await connection.fetch(_CLAIM_ORPHANS, *self._which, claim.worker, claim.lease)
        found.sort(key=lambda row: (row[19], row[0], row[1]))
        world.woken.extend((row[0], row[1]) for row in found if row[17])
        return [Kept(line_of(row).entry, row[18]) for row in found]


class ClaimingDue(_Claiming):
    __slots__ = ()

    async def run(self, connection: Any, world: World) -> Sequence[Due]:
        found = await connection.fetch(_CLAIM_DUE, *self._which, self._claim.lease)
        found.sort(key=lambda row: (row[13], row[0], row[1], row[2]))
        return [due_of(row) for row in found]
