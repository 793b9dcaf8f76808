"""Something to be done in a transaction, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from counterseal.storage.postgres.world import Needs, World

__all__ = ["Again", "Alone", "Job", "Keep", "Note", "Nothing"]


class Job:
    """Says what it rests on, and is then carried out on that, beside others of its batch."""

    __slots__ = ("answer", "error", "future")

    durable: ClassVar[bool] = True
    """Whether it must survive a loss of power from the moment that it is answered."""
    vain: ClassVar[bool] = False
    """Whether it is in vain once nobody waits for it any more."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.error: BaseException | None = None
        self.future: asyncio.Future[None] | None = None
        """None when nobody waits for it."""

    def need(self, needs: Needs) -> None:
        """Name the rows that it will look at, or change."""

    def work(self, world: World) -> Any:
        """Look, decide, change. Everything is looked at before anything is changed."""
        raise NotImplementedError

    @property
    def lasting(self) -> bool:
        return self.durable


class Alone(Job):
    """A job with statements of its own, in a transaction of its own."""

    __slots__ = ()
    lock: ClassVar[int | None] = None
    """The advisory lock that it has for itself meanwhile."""

    async def run(self, connection: Any, world: World) -> Any:
        """Do it. What is put on record in the world is written afterwards."""
        raise NotImplementedError


class Again(Alone):
    """What nobody waits for, once more, apart from what somebody does."""

    __slots__ = ("_jobs",)

    def __init__(self, jobs: Sequence[Job]) -> None:
        super().__init__()
        self._jobs = jobs

    async def run(self, connection: Any, world: World) -> None:
        for job in self._jobs:
            job.work(world)


class Nothing(Job):
    """Be committed after all that came before."""

    __slots__ = ()

    def work(self, world: World) -> None:
        pass


class Note(Job):
    """An event that nobody waits for."""

    __slots__ = ("_columns",)

    def __init__(self, columns: tuple[Any, ...]) -> None:
        super().__init__()
        self._columns = columns

    def work(self, world: World) -> None:
        world.told.append(self._columns)


class Keep(Job):
    """A raw result for the vault; nobody waits for it either."""

    __slots__ = ("_row",)

    def __init__(self, tenant: str, pointer: str, raw: bytes) -> None:
        super().__init__()
        self._row = (tenant, pointer, raw)

    def work(self, world: World) -> None:
        world.kept.append(self._row)
