"""Requests for approval: asked once, voted on, decided once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from counterseal.ledger.rules import asked_before, asker
from counterseal.storage.base import Asker, Ballot, Held, HeldStatus
from counterseal.storage.waiting import Waiting

__all__ = ["Holds"]

_Where = tuple[str, str]


class Holds:
    """By tenant and id."""

    def __init__(self) -> None:
        self._held: dict[_Where, Held] = {}
        self._last: dict[_Where, dict[tuple[str, str], str]] = {}
        """The ids of each caller's last one under each key, in the order in which they came."""
        self._waiting = Waiting()

    def find(self, where: _Where) -> Held | None:
        return self._held.get(where)

    def last(self, tenant: str, key: str, who: Asker | None) -> Held | None:
        """The last one under a key: a caller's, or anybody's."""
        ids = self._last.get((tenant, key))
        if ids is None:
            return None
        found = next(reversed(ids.values())) if who is None else ids.get(asker(*who), "")
        return self._held.get((tenant, found))

    def some(
        self,
        tenant: str | None,
        status: HeldStatus,
        limit: int,
        between: tuple[tuple[float, str], tuple[float, str]],
        *,
        newest_first: bool,
    ) -> Sequence[Held]:
        first, last = between
        found = [
            held
            for held in self._held.values()
            if held.status is status
            and tenant in (None, held.tenant)
            and first < (held.expires_at, held.approval_id) < last
        ]
        return sorted(found, key=_by_end, reverse=newest_first)[:limit]

    def standing(self, held: Held) -> Held | None:
        """An identical one that still stands."""
        last = self.last(held.tenant, held.key, (held.agent, held.user))
        return last if asked_before(last, held) else None

    def add(self, held: Held) -> None:
        self._held[held.tenant, held.approval_id] = held
        ids = self._last.setdefault((held.tenant, held.key), {})
        who = asker(held.agent, held.user)
        ids.pop(who, None)
        ids[who] = held.approval_id

    def forget(self, before: float, limit: int) -> int:
        """Of what was decided, and ended by a moment: the calls and the tokens. How many."""
        over = sorted(
            (held.expires_at, *where)
            for where, held in self._held.items()
            if held.status is not HeldStatus.WAITING
            and held.expires_at <= before
            and (held.sealed or held.token is not None)
        )
        for _, tenant, approval_id in over[:limit]:
            self.change((tenant, approval_id), sealed=b"", token=None)
        return len(over[:limit])

    def vote(self, ballot: Ballot) -> Held | None:
        """None when it does not wait, or others have voted since."""
        where = (ballot.tenant, ballot.approval_id)
        held = self._held.get(where)
        if held is None or held.status is not HeldStatus.WAITING or len(held.votes) != ballot.seen:
            return None
        votes = tuple(ballot.votes)
        return self.change(where, votes=votes, status=ballot.status, token=ballot.token)

    def decide(self, where: _Where, status: HeldStatus) -> Held | None:
        """None when there is none, or it was decided before."""
        held = self._held.get(where)
        open_for = HeldStatus.APPROVED if status is HeldStatus.VOID else HeldStatus.WAITING
        if held is None or held.status is not open_for:
            return None
        token = None if status is HeldStatus.VOID else held.token
        return self.change(where, status=status, token=token)

    def change(self, where: _Where, **changes: Any) -> Held:
        """The same with other values; it is there."""
        changed = self._held[where] = replace(self._held[where], **changes)
        if self._waiting:
            self._waiting.wake(*where)
        return changed

    async def wait(self, where: _Where, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while True:
            held = self._held.get(where)
            if held is None or held.status is not HeldStatus.WAITING:
                return True
            left = end - loop.time()
            if left <= 0:
                return False
            await self._waiting.change(*where, left)


def _by_end(held: Held) -> tuple[float, str]:
    return held.expires_at, held.approval_id
