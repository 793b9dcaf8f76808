"""Where a worker can be struck down: named places, reached through wrappers around real parts.

A site is armed from outside, for the nth time that it is reached. Then the process is killed there
(or a moment later, in the middle of whatever comes next), or stopped for a while, as a machine that
is suspended is. Nothing of this is in the product.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from mmap import PROT_READ, mmap
from pathlib import Path
from struct import unpack_from
from typing import Any

from counterseal.ledger.records import Due
from counterseal.ledger.requests import (
    Admission,
    AdmissionRequest,
    Claim,
    FinishRequest,
    SettlementRequest,
    StoredEntry,
)
from counterseal.storage.store import Store

__all__ = ["Clocks", "Failing", "Failpoints"]


class Clocks:
    """The clocks of this machine and of its SQLite files, as a file says that they were set."""

    def __init__(self, path: str) -> None:
        with Path(path).open("rb") as file:
            self._ahead = mmap(file.fileno(), 16, prot=PROT_READ)

    def ahead(self, place: int = 0) -> float:
        return float(unpack_from("d", self._ahead, place)[0])

    def machine(self) -> float:
        return time.time() + self.ahead()

    def database(self) -> float:
        return time.time() + self.ahead(8)


class Failpoints:
    """At most one site is armed at a time."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._site = ""
        self._left = 0
        self._after = 0.0
        self._stop = 0.0

    def arm(self, site: str, nth: int = 1, after: float = 0.0, stop: float = 0.0) -> None:
        self._site, self._left, self._after, self._stop = site, nth, after, stop

    def hit(self, site: str) -> None:
        """Called when a site is reached. Does not come back where it is armed to kill."""
        if site != self._site:
            return
        self._left -= 1
        if self._left:
            return
        self._site = ""
        self._tell(struck=site, stopped=self._stop)
        if self._stop:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self._after:
            threading.Thread(target=self._kill_soon, daemon=True).start()
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    def _kill_soon(self) -> None:
        """From a thread of its own: SQLite lets others run while it commits."""
        time.sleep(self._after)
        os.kill(os.getpid(), signal.SIGKILL)

    def watch_commits(self, connection: Any) -> None:
        """Let the commits of an SQLite connection be a site."""
        writing = False

        def about_to(statement: str) -> None:
            nonlocal writing
            if statement.startswith("BEGIN"):
                writing = "IMMEDIATE" in statement
            elif statement.startswith("COMMIT") and writing:
                self.hit("commit")

        connection.set_trace_callback(about_to)


class Failing:
    """A store that can be the last thing its process has touched."""

    def __init__(self, store: Store, points: Failpoints) -> None:
        self._store = store
        self._hit = points.hit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def admit(self, request: AdmissionRequest) -> Admission:
        if request.entry is None:
            return await self._store.admit(request)
        self._hit("admit.before")
        admission = await self._store.admit(request)
        if admission.refused is None:
            self._hit("admit.after")
        return admission

    async def settle(self, request: SettlementRequest) -> bool:
        self._hit("settle.before")
        settled = await self._store.settle(request)
        self._hit("settle.after")
        return settled

    async def claim_orphans(self, claim: Claim) -> list[StoredEntry]:
        claimed = list(await self._store.claim_orphans(claim))
        if claimed:
            self._hit("orphans.after")
        return claimed

    async def claim_due(self, claim: Claim) -> list[Due]:
        claimed = list(await self._store.claim_due(claim))
        if claimed:
            self._hit("due.after")
        return claimed

    async def finish(self, request: FinishRequest) -> bool:
        self._hit("finish.before")
        finished = await self._store.finish(request)
        self._hit("finish.after")
        return finished
