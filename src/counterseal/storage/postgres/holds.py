"""Requests for approval: asked once, voted on, decided once; and watching somebody else's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from counterseal.audit import Event
from counterseal.ledger.rules import asked_before, asker
from counterseal.storage.base import Ballot, Due, Held, HeldStatus
from counterseal.storage.postgres.job import Job
from counterseal.storage.postgres.rows import HeldRow
from counterseal.storage.postgres.work import need_due, put_down
from counterseal.storage.postgres.world import Needs, World, told

__all__ = ["Deciding", "Holding", "Voting", "WatchingHeld", "change_held"]


class Holding(Job):
    """An identical one that still stands is returned instead."""

    __slots__ = ("_due", "_held", "_of", "_told")

    def __init__(
        self, held: Held, events: Sequence[Event], due: Sequence[tuple[float, Due]]
    ) -> None:
        super().__init__()
        self._held = held
        self._of = (held.tenant, held.key, *asker(held.agent, held.user))
        self._due = due
        self._told = told(events)

    def need(self, needs: Needs) -> None:
        needs.held_keys.add(self._of)
        needs.held.add((self._held.tenant, self._held.approval_id))
        need_due(needs, self._due)

    def work(self, world: World) -> Held:
        held = self._held
        tenant = held.tenant
        last = world.last_held.get(self._of)
        before = None if last is None else world.held.get((tenant, last))
        if last is not None and before is not None:
            if asked_before(before.held, held):
                return before.held
            world.held.put((tenant, last), before._replace(latest=False))
        world.held.put((tenant, held.approval_id), HeldRow(held, latest=True))
        world.last_held[self._of] = held.approval_id
        put_down(world, self._due)
        world.record(self._told)
        return held


def change_held(world: World, where: tuple[str, str], **changes: Any) -> Held | None:
    """Give a request other values, if it is there. Who waits for a decision is told of it."""
    found = world.held.get(where)
    if found is None:
        return None
    held = replace(found.held, **changes)
    told_of = found.awaited and held.status is not HeldStatus.WAITING
    if told_of:
        world.woken.append(where)
    world.held.put(where, found._replace(held=held, awaited=found.awaited and not told_of))
    return held


class Voting(Job):
    """None when it does not wait, or others have voted since."""

    __slots__ = ("_ballot", "_told")

    def __init__(self, ballot: Ballot) -> None:
        super().__init__()
        self._ballot = ballot
        self._told = told(ballot.events)

    def need(self, needs: Needs) -> None:
        needs.held.add((self._ballot.tenant, self._ballot.approval_id))
        need_due(needs, self._ballot.due)

    def work(self, world: World) -> Held | None:
        tenant, approval_id, seen, votes, status, token, due, _ = self._ballot
        where = (tenant, approval_id)
        found = world.held.get(where)
        if found is None or found.held.status is not HeldStatus.WAITING:
            return None
        if len(found.held.votes) != seen:
            return None
        put_down(world, due)
        world.record(self._told)
        return change_held(world, where, votes=tuple(votes), status=status, token=token)


class Deciding(Job):
    """None when there is none, or it was decided before."""

    __slots__ = ("_status", "_told", "_where")

    def __init__(
        self, tenant: str, approval_id: str, status: HeldStatus, events: Sequence[Event]
    ) -> None:
        super().__init__()
        self._where = (tenant, approval_id)
        self._status = status
        self._told = told(events)

    def need(self, needs: Needs) -> None:
        needs.held.add(self._where)

    def work(self, world: World) -> Held | None:
        found = world.held.get(self._where)
        voids = self._status is HeldStatus.VOID
        open_for = HeldStatus.APPROVED if voids else HeldStatus.WAITING
        if found is None or found.held.status is not open_for:
            return None
        world.record(self._told)
        token = None if voids else found.held.token
        return change_held(world, self._where, status=self._status, token=token)


class WatchingHeld(Job):
    """Mark a request as awaited. It waits without an end; None: it does not."""

    __slots__ = ("_where",)
    durable: ClassVar[bool] = False
    vain = True

    def __init__(self, tenant: str, approval_id: str) -> None:
        super().__init__()
        self._where = (tenant, approval_id)

    def need(self, needs: Needs) -> None:
        needs.held.add(self._where)

    def work(self, world: World) -> float | None:
        found = world.held.get(self._where)
        if found is None or found.held.status is not HeldStatus.WAITING:
            return None
        if not found.awaited:
            world.held.put(self._where, found._replace(awaited=True))
        return float("inf")
