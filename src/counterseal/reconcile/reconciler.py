"""The reconciler: does all due work, once or on a schedule.

Any number of processes may run one: the store hands each piece of work to one of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Final, Self, TypeVar

from counterseal.call.call import Moment
from counterseal.ledger.records import Due, DueKind
from counterseal.ledger.requests import Claim, ExpiryRequest, FinishRequest, StoredEntry
from counterseal.operations.auditor import seal_store
from counterseal.reconcile.due_work import (
    compensate,
    execute_approved,
    leave_to_others,
    notify,
    verify,
)
from counterseal.reconcile.unknown import find_out
from counterseal.runtime import Runtime

T = TypeVar("T", StoredEntry, Due)
Tally = Counter[str]
"""Counts by result: `found`, `retried`, `escalated`, `verified`, `expired approvals`, …"""
_DAY: Final = 86_400.0
_SHORTEST_PAUSE: Final = 0.1
"""Seconds between two passes, however much there is to do."""
_MAX_BATCHES: Final = 1000
"""Batches in one pass, so that it comes to an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Days to keep the vault and events; None keeps them for ever. Contracts bound their keys."""

    vault_days: float | None = None
    events_days: float | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            days = getattr(self, name)
            if days is not None and not days > 0:
                raise ValueError(f"{name} must be a number of days above 0, got {days!r}")

    def erasure(self, limit: int) -> ExpiryRequest:
        vault, events = (
            None if days is None else days * _DAY for days in (self.vault_days, self.events_days)
        )
        return ExpiryRequest(limit, vault, events)


_HANDLERS: Final[Mapping[DueKind, Callable[[Runtime, Due], Awaitable[str]]]] = {
    DueKind.VERIFY: verify,
    DueKind.COMPENSATE: compensate,
    DueKind.EXECUTE: execute_approved,
    DueKind.NOTIFY: notify,
}
_ABOUT_REQUESTS: Final = (DueKind.EXECUTE, DueKind.NOTIFY)
"""Work that ends with its request: nothing has happened that needs attention."""


class Reconciler:
    """Does the due work of one runtime."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        retention: Retention | None = None,
        batch: int = 32,
        seal_every: float = 300.0,
    ) -> None:
        self.runtime = runtime
        self.retention = retention or Retention()
        self._batch = batch
        self._seal_every = seal_every
        self._sealed_at = float("-inf")

    async def once(
        self, *, tell: Callable[[Tally], None] | None = None, last: bool = False
    ) -> Tally:
        """Do all that is due now. `tell` is called after every batch with the counts so far.

        That a destination does not know a call counts at the second look of this process, when the
        call's timeout has passed. If this is its `last` pass, it waits for that.
        """
        done: Tally = Counter()
        await self.runtime.catch_up()
        tools = {record.name for record in self.runtime.registry.records}
        mine = self._claim(tools, 0.0)
        store = self.runtime.store
        unclaimed = self._claim(None, 600.0)
        if not self.runtime.leases.mistrusted():

            async def orphan(stored: StoredEntry, since: Moment) -> str:
                work = find_out(self.runtime, stored, since, waits=last)
                return await self._guarded(stored.entry.call_id, work)

            await self._all(done, tell, lambda: store.claim_orphans(mine), orphan)
            await self._all(done, tell, lambda: store.claim_orphans(unclaimed), orphan)
        await self._all(done, tell, lambda: store.claim_due(mine), self._due)
        await self._all(done, tell, lambda: store.claim_due(unclaimed), self._due)
        expired = await self.runtime.approvals.expire()
        if expired:
            done["expired approvals"] += expired
        await self._forget(done, tell)
        await self._seal(done)
        return done

    async def forever(self, every: float = 5.0) -> None:
        """Make a pass every `every` seconds, until cancelled. A failed pass is tried again.

        Work that this process adds for at once is done without waiting for the next pass.
        """
        next_pass = monotonic()
        while True:
            whole = monotonic() >= next_pass
            try:
                await (self.once() if whole else self.at_once())
            except Exception as error:  # noqa: BLE001 - the next pass must come
                self.runtime.report("", "reconcile", error)
            if whole:
                next_pass = monotonic() + every
            await asyncio.sleep(min(every, _SHORTEST_PAUSE))
            with suppress(TimeoutError):  # the next pass is due, unless work is added for at once
                async with asyncio.timeout(next_pass - monotonic()):
                    await self.runtime.due.wait()
            self.runtime.due.clear()

    async def at_once(self) -> Tally:
        """Do the due work of this process's tools; the rest waits for a whole pass."""
        done: Tally = Counter()
        mine = self._claim({record.name for record in self.runtime.registry.records}, 0.0)
        await self._all(done, None, lambda: self.runtime.store.claim_due(mine), self._due)
        return done

    @asynccontextmanager
    async def running(self, every: float = 5.0) -> AsyncIterator[Self]:
        """Run `forever` in the background, for as long as the block lasts."""
        task = asyncio.ensure_future(self.forever(every))
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait({task})

    def _claim(self, tools: set[str] | None, lapsed_for: float) -> Claim:
        lease = self.runtime.leases.seconds
        return Claim(self.runtime.worker, lease, self._batch, tools, lapsed_for)

    async def _all(
        self,
        done: Tally,
        tell: Callable[[Tally], None] | None,
        claim: Callable[[], Awaitable[Sequence[T]]],
        work: Callable[[T, Moment], Awaitable[str]],
    ) -> None:
        for _ in range(_MAX_BATCHES):
            since = self.runtime.leases.moment()
            claimed = await claim()
            done.update(await asyncio.gather(*(work(item, since) for item in claimed)))
            if tell is not None and claimed:
                tell(done)
            if len(claimed) < self._batch:
                return

    async def _due(self, work: Due, _since: Moment) -> str:
        if not self.runtime.registry.versions(work.tool):
            if work.kind in _ABOUT_REQUESTS:
                return await self._guarded(work.call_id, leave_to_others(self.runtime, work))
            failed = f"no worker holds {work.tool} {work.version}"
            await self.runtime.store.finish(FinishRequest(work, failed=failed))
            return "abandoned"
        return await self._guarded(work.call_id, _HANDLERS[work.kind](self.runtime, work))

    async def _guarded(self, call_id: str, work: Awaitable[str]) -> str:
        """Report an error instead of raising it: the work is claimed again when its lease ends."""
        try:
            return await work
        except Exception as error:  # noqa: BLE001 - one failure must not stop the others
            self.runtime.report(call_id, "reconcile", error)
            return "failed"

    async def _forget(self, done: Tally, tell: Callable[[Tally], None] | None) -> None:
        request = self.retention.erasure(max(self._batch, 500))
        for _ in range(_MAX_BATCHES):
            counts = await self.runtime.store.expire(request)
            done.update({f"expired {kind}": count for kind, count in counts.items() if count})
            if tell is not None and any(counts.values()):
                tell(done)
            if all(count < request.limit for count in counts.values()):
                return

    async def _seal(self, done: Tally) -> None:
        """Seal what was recorded since the last time, if there is a key for it."""
        runtime = self.runtime
        signer = runtime.keys.signer("audit") if runtime.keys else None
        if signer is None or monotonic() - self._sealed_at < self._seal_every:
            return
        self._sealed_at = monotonic()
        for tenant in await runtime.store.tenants():
            try:
                if await seal_store(runtime.store, tenant, signer, runtime.clock()):
                    done["sealed"] += 1
            except Exception as error:  # noqa: BLE001 - the other tenants must still be sealed
                runtime.report("", f"sealing {tenant}", error)
