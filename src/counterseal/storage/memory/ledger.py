"""Entries, and for how long each is somebody's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from counterseal.ledger.entry import Entry, Phase, Status
from counterseal.ledger.rules import concern
from counterseal.storage.base import Claim, Concern, Kept, Settle
from counterseal.storage.waiting import Waiting

__all__ = ["Ledger"]

_Key = tuple[str, str]
_PENDING: Final = Status.PENDING  # found on its class anew each time, it would cost as a gate does


class _Terms:
    """What is stored beside an entry."""

    __slots__ = ("expires_at", "lease_until", "resume")

    def __init__(self, lease_until: float | None, resume: bytes | None) -> None:
        self.lease_until = lease_until
        """When somebody should look after it, if it is PENDING; None: never."""
        self.resume = resume
        self.expires_at: float | None = None


class Ledger:
    """By tenant and key. An entry is kept as it was written, and shown as it is now."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.entries: dict[_Key, Entry] = {}
        self._terms: dict[_Key, _Terms] = {}
        self._waiting = Waiting()

    def find(self, where: _Key) -> Entry | None:
        """The entry, and whether its lease is over."""
        entry = self.entries.get(where)
        if entry is None or entry.status is not _PENDING:
            return entry
        until = self._terms[where].lease_until
        if until is None or until > self._clock() or entry.phase is Phase.ESCALATED:
            return entry
        return entry._replace(lapsed=True)

    def look_up(self, where: _Key) -> Kept | None:
        entry = self.find(where)
        return None if entry is None else Kept(entry, self._terms[where].resume)

    def look_up_call(self, tenant: str, call_id: str) -> Kept | None:
        keys = [key for key, one in self.entries.items() if one.call_id == call_id]
        return next((self.look_up(key) for key in keys if key[0] == tenant), None)

    def reserve(self, entry: Entry, lease: float, resume: bytes | None) -> Entry:
        """The entry under its next fence; what was there before is over."""
        where = (entry.tenant, entry.key)
        before = self.entries.get(where)
        if before is not None:
            entry = entry._replace(fence=before.fence + 1, attempts=before.attempts + 1)
        self.entries[where] = entry
        self._terms[where] = _Terms(self._clock() + lease, resume)
        return entry

    def _mine(self, where: _Key, fence: int) -> bool:
        there = self.entries.get(where)
        return there is not None and there.fence == fence and there.status is _PENDING

    def settle(self, request: Settle, entry: Entry) -> bool:
        """Write an outcome. False when somebody else holds the entry by now, or has settled it."""
        where = (request.tenant, entry.key)
        if not self._mine(where, entry.fence):
            return False
        if entry.worker is not None or entry.lapsed:
            entry = entry._replace(worker=None, lapsed=False)
        self.entries[where] = entry
        terms = self._terms[where]
        pending = entry.status is _PENDING
        seconds = request.again_after if pending else request.keep_for
        until = None if seconds is None else self._clock() + seconds
        terms.lease_until, terms.expires_at = (until, None) if pending else (None, until)
        if self._waiting:
            self._waiting.wake(*where)
        return True

    def compensate(self, where: _Key, observation: Mapping[str, Any]) -> None:
        """What was done is undone, and this is the answer from now on."""
        entry = self.entries.get(where)
        if entry is not None and entry.status is Status.COMPLETED:
            self.entries[where] = entry._replace(status=Status.COMPENSATED, observation=observation)

    def renew(self, entry: Entry, lease: float) -> bool:
        where = (entry.tenant, entry.key)
        if not self._mine(where, entry.fence) or self.entries[where].worker is None:
            return False
        self._terms[where].lease_until = self._clock() + lease
        return True

    def claim(self, claim: Claim) -> Sequence[Kept]:
        now = self._clock()
        found = []
        for where, entry in self.entries.items():
            if entry.status is not Status.PENDING or entry.phase is Phase.ESCALATED:
                continue
            until = self._terms[where].lease_until
            if until is None or until > now - claim.lapsed_for:
                continue
            if claim.tools is None or entry.tool in claim.tools:
                found.append((until, where))
        return [self._claimed(*one, claim, now) for one in sorted(found)[: claim.limit]]

    def _claimed(self, until: float, where: _Key, claim: Claim, now: float) -> Kept:
        entry, terms = self.entries[where], self._terms[where]
        claimed = entry._replace(
            fence=entry.fence + 1,
            worker=claim.worker,
            phase=Phase.UNKNOWN,
            unknown_since=until if entry.unknown_since is None else entry.unknown_since,
            looks=entry.looks + 1,
        )
        self.entries[where] = claimed
        terms.lease_until = now + claim.lease
        self._waiting.wake(*where)
        return Kept(claimed, terms.resume)

    async def wait(self, where: _Key, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while True:
            entry = self.find(where)
            if entry is None or not entry.held:
                return True
            left = end - loop.time()
            if left <= 0:
                return False
            until = self._terms[where].lease_until
            leased = left if until is None else until - self._clock()
            await self._waiting.change(*where, min(left, leased))

    def concerns(self, tenant: str | None) -> list[Concern]:
        return [
            concern(entry)
            for entry in self.entries.values()
            if entry.status is Status.PENDING
            and entry.phase is Phase.ESCALATED
            and tenant in (None, entry.tenant)
        ]

    def expire(self, limit: int, needed: Collection[_Key]) -> int:
        """Forget what was answered, unless it is still needed; keys and hashes stay. How many."""
        now = self._clock()
        over = sorted(
            (terms.expires_at, where)
            for where, terms in self._terms.items()
            if terms.expires_at is not None and terms.expires_at <= now and where not in needed
        )
        for _, where in over[:limit]:
            entry = self.entries[where]
            free = entry.status is Status.FAILED_RETRYABLE
            status = entry.status if free else Status.EXPIRED
            self.entries[where] = entry._replace(status=status, observation=None)
            self._terms[where] = _Terms(None, None)
        return len(over[:limit])
