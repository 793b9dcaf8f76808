"""Held proposals: kept for a person, decided once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from counterseal.audit import Event
from counterseal.storage.base import Held, HeldStatus
from counterseal.storage.postgres.job import Job
from counterseal.storage.postgres.world import Needs, World, told
from counterseal.storage.rules import counts, same_question

__all__ = ["Deciding", "Holding"]


class Holding(Job):
    """An identical one that still counts is returned instead."""

    __slots__ = ("_held", "_told")

    def __init__(self, held: Held, events: Sequence[Event]) -> None:
        super().__init__()
        self._held = held
        self._told = told(events)

    def need(self, needs: Needs) -> None:
        needs.held_keys.add((self._held.tenant, self._held.key))
        needs.held.add((self._held.tenant, self._held.approval_id))

    def work(self, world: World) -> Held:
        held = self._held
        tenant, key = held.tenant, held.key
        last = world.last_held.get((tenant, key))
        before = None if last is None else world.held.get((tenant, last))
        if last is not None and before is not None:
            if same_question(before[0], held) and counts(before[0]):
                return before[0]
            world.held.put((tenant, last), (before[0], False))
        world.held.put((tenant, held.approval_id), (held, True))
        world.last_held[tenant, key] = held.approval_id
        world.record(self._told)
        return held


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
        if found is None or found[0].status is not open_for:
            return None
        held = replace(found[0], status=self._status)
        world.held.put(self._where, (held, found[1]))
        world.record(self._told)
        return held
