"""A lane: one database and the workers on it. Its rounds follow one another; lanes run at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from struct import pack, unpack
from typing import Any, Final

from tests.postgres_server import set_clock

from .harness import PATIENCE, Effects, Gone, Nursery, Worker

__all__ = ["Lane"]

_ROUNDS: Final = 40
"""After how many rounds a fresh database is taken."""


class Lane:
    """Three workers that may die, spares that replace them, and an observer that never does."""

    def __init__(
        self,
        nursery: Nursery,
        effects: Effects,
        clocks: Path,
        new_database: Callable[[], str],
        kill_database: Callable[[], Any] | None = None,
        start_database: Callable[[], Any] | None = None,
    ) -> None:
        self.effects = effects
        self.clocks = clocks
        """How many seconds the clocks of the machine and of the database are ahead."""
        self.kill_database = kill_database
        self.start_database = start_database
        self.url = ""
        self.workers: list[Worker] = []
        self._nursery = nursery
        self._new_database = new_database
        self._observer: Worker | None = None
        self._spares: list[asyncio.Task[Worker]] = []
        self._left = 0

    @property
    def path(self) -> Path:
        """Where the database lies, if it is a file."""
        return Path(self.url.removeprefix("sqlite:///"))

    async def ready(self) -> None:
        """Three live workers, none of them armed or at work."""
        if not self._left:
            await self.close()
            self.clocks.write_bytes(bytes(16))
            self.url = await asyncio.to_thread(self._new_database)
            self._observer = await self._opened()
            self._left = _ROUNDS
        self._left -= 1
        live = [worker for worker in self.workers if worker.alive]
        self.workers = live[:3]
        for surplus in live[3:]:
            await surplus.kill()
        while len(self.workers) < 3:
            await self.replace()
        for worker in self.workers:
            worker.begin_anew()

    async def replace(self) -> Worker:
        """Another worker, for one that is gone: a spare that is warm already."""
        spare = self._spares.pop() if self._spares else asyncio.create_task(self._opened())
        try:
            worker = await asyncio.shield(spare)
        except asyncio.CancelledError:  # the round has ended; its worker serves the next one
            self._spares.append(spare)
            raise
        if not self._spares:
            self._spares.append(asyncio.create_task(self._opened()))
        self.workers.append(worker)
        return worker

    async def _opened(self) -> Worker:
        """A worker on this lane's database, which may be down for a while."""
        worker = await self._nursery.worker()
        until = time.monotonic() + PATIENCE
        where = {"url": self.url, "port": self.effects.port, "clocks": str(self.clocks)}
        while True:
            said = await worker.ask("open", **where)
            if "error" not in said:
                return worker
            if time.monotonic() > until:
                raise RuntimeError(f"a worker could not open the store: {said['error']}")
            await asyncio.sleep(0.1)

    async def pick(self, number: int) -> Worker:
        """A live worker; where none is left, a new one."""
        live = [worker for worker in self.workers if worker.alive]
        return live[number % len(live)] if live else await self.replace()

    async def observe(self, tenant: str) -> dict[str, Any]:
        """Everything on record of a tenant."""
        if self._observer is None:
            raise RuntimeError("the lane is not ready")
        return await self._observer.ask("inspect", url=self.url, tenant=tenant)

    async def set_clock(self, seconds: float, which: str) -> None:
        """Set the clock of the `database` alone, or of the machine, too."""
        machine, database = unpack("dd", self.clocks.read_bytes())
        machine, database = machine + (0 if which else seconds), database + seconds
        with self.clocks.open("r+b") as file:  # workers have mapped it
            file.write(pack("dd", machine, database))
        if not self.url.startswith("sqlite"):
            await asyncio.to_thread(set_clock, self.url, database)

    def abandon(self) -> None:
        """Begin the next round with a fresh database and fresh workers."""
        self._left = 0

    async def close(self) -> None:
        """End all workers of this database, also those that are about to start."""
        spares, self._spares = self._spares, []
        for spare in spares:
            with suppress(Gone, RuntimeError):
                self.workers.append(await spare)
        for worker in (*self.workers, self._observer):
            if worker is not None and worker.alive:
                await worker.kill()
        self.workers, self._observer = [], None
