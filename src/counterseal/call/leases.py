"""Keeping what is being executed: leases are renewed for as long as it takes.

Most calls are over long before their lease is. For the others one timer a process renews all at
once; nothing is scheduled while nothing runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any

from counterseal.errors import StoreError
from counterseal.ledger.entry import Entry
from counterseal.storage.base import Store

__all__ = ["Leases"]

_log = logging.getLogger("counterseal")


class Leases:
    """The entries that this process is at work on."""

    def __init__(
        self,
        store: Store,
        seconds: float,
        begin: Callable[[Coroutine[Any, Any, None]], asyncio.Future[None]],
    ) -> None:
        self.seconds = seconds
        self._store = store
        self._begin = begin
        self._held: dict[tuple[str, str], tuple[Entry, float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def hold(self, entry: Entry, since: float) -> None:
        """Keep it. `since` is when the store was asked for it: its lease began then, or later."""
        self._held[entry.tenant, entry.key] = (entry, since)
        if self._timer is None or self._loop is not asyncio.get_running_loop():
            self._wait()

    def slept(self, entry: Entry) -> bool:
        """Whether so much time has gone by that it may be somebody else's."""
        held = self._held.get((entry.tenant, entry.key))
        return held is None or monotonic() - held[1] >= self.seconds

    async def ours(self, entry: Entry) -> bool:
        """Ask the store whether it is still ours; if so, it is for a while."""
        asked = monotonic()
        (ours,) = await self._store.renew([entry], self.seconds)
        if ours:
            self.hold(entry, asked)
        return ours and monotonic() - asked <= self.seconds

    def let_go(self, entry: Entry) -> None:
        """It is settled, or will never be by us."""
        where = (entry.tenant, entry.key)
        held = self._held.get(where)
        if held is not None and held[0].fence == entry.fence:  # else another's, of this process
            del self._held[where]

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self.seconds / 3, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._held:
            return
        before = monotonic() - self.seconds / 4
        old = [entry for entry, since in self._held.values() if since <= before]
        if old:
            self._begin(self._renew(old))
        self._wait()

    async def _renew(self, entries: list[Entry]) -> None:
        asked = monotonic()
        try:
            kept = await self._store.renew(entries, self.seconds)
        except StoreError as error:
            _log.warning("leases could not be renewed: %s", error)
            return
        for entry, ours in zip(entries, kept, strict=True):
            if ours and (entry.tenant, entry.key) in self._held:
                self._held[entry.tenant, entry.key] = (entry, asked)
            elif not ours:
                # Its outcome will be told all the same; but somebody else settles it now.
                _log.warning("call %s outlived its lease; somebody has taken over", entry.call_id)
                self.let_go(entry)
