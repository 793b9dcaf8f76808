"""Many rounds, side by side: lanes for each store, and one whose database is killed."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from tests.postgres_server import fresh_database, private_server, settable_clock, shared

from .harness import Effects, Nursery
from .lanes import Lane
from .planning import Plan, draw
from .rounds import Outcome, play

__all__ = ["STORES", "Job", "jobs_of", "run"]

STORES: Final = ("sqlite", "postgres")
_LANES: Final = min(max(os.cpu_count() or 2, 2), 8)
"""How many rounds go on at once, on each store: they wait for leases most of the time."""


class Job(NamedTuple):
    """A round to be played."""

    number: int
    seed: int
    point: str
    store: str

    @property
    def queue(self) -> str:
        """Rounds that kill a database server have one for themselves."""
        kills = self.point == "database" and self.store == "postgres"
        return "outage" if kills else self.store


def jobs_of(seed: int, rounds: int, points: Sequence[str], stores: Sequence[str]) -> Iterable[Job]:
    """So many rounds, one point after another, one store after another."""
    for number in range(rounds):
        point = points[number % len(points)]
        store = stores[number // len(points) % len(stores)]
        yield Job(number, seed + number, point, store)


Ended = Callable[[Job, Outcome], None]
Changing = Callable[[Plan], Plan]


async def run(jobs: Iterable[Job], ended: Ended, changing: Changing = lambda plan: plan) -> None:
    """Play them all. What fails in the harness itself is raised."""
    queues: dict[str, list[Job]] = {}
    for job in jobs:
        queues.setdefault(job.queue, []).append(job)
    with tempfile.TemporaryDirectory(prefix="counterseal-chaos-") as name:
        async with AsyncExitStack() as stack:
            folder = Path(name)
            nursery = await stack.enter_async_context(Nursery.open(folder))
            effects = await stack.enter_async_context(Effects.open(folder))
            async with asyncio.TaskGroup() as lanes:
                for queue, waiting in queues.items():
                    waiting.reverse()
                    for _ in range(1 if queue == "outage" else min(_LANES, len(waiting))):
                        opened = _lane(queue, nursery, effects, folder)
                        lanes.create_task(_work(opened, waiting, ended, changing))


async def _work(
    opened: AbstractAsyncContextManager[Lane], waiting: list[Job], ended: Ended, changing: Changing
) -> None:
    async with opened as lane:
        while waiting:
            job = waiting.pop()
            ended(job, await play(lane, changing(draw(job.seed, job.point, job.store))))


_numbers = count()


def _settable(base: str) -> str:
    url = fresh_database(base)
    settable_clock(url)
    return url


@asynccontextmanager
async def _lane(
    queue: str, nursery: Nursery, effects: Effects, folder: Path
) -> AsyncIterator[Lane]:
    clocks = folder / f"{next(_numbers)}.clocks"
    async with AsyncExitStack() as stack:
        if queue == "sqlite":
            lane = Lane(nursery, effects, clocks, lambda: f"sqlite:///{folder}/{next(_numbers)}.db")
        elif queue == "postgres":
            base = await asyncio.to_thread(shared)
            lane = Lane(nursery, effects, clocks, lambda: _settable(base))
        else:
            server = await asyncio.to_thread(stack.enter_context, private_server())
            lane = Lane(
                nursery, effects, clocks, lambda: _settable(server.url), server.kill, server.start
            )
        try:
            yield lane
        finally:
            await lane.close()
