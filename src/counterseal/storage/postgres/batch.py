"""Carries out jobs, many in one transaction.

A batch is done as a whole or not at all. Where one of its jobs has a fault of its own, or somebody
else got in the way twice, each is done for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from random import uniform
from typing import Any, Final

from counterseal.errors import StoreError
from counterseal.storage.postgres.faults import (
    UncertainError,
    explained,
    is_again,
    is_lost,
    is_mistake,
    is_own,
)
from counterseal.storage.postgres.job import Alone, Job
from counterseal.storage.postgres.looking import look
from counterseal.storage.postgres.migrations import CHANGING, LOCKS
from counterseal.storage.postgres.queries import queries
from counterseal.storage.postgres.segment import Links
from counterseal.storage.postgres.session import Session
from counterseal.storage.postgres.world import Needs, World
from counterseal.storage.postgres.writing import write

__all__ = ["carry_out"]

_IS_RECORDED: Final = queries()["is_recorded"]
_TRIES: Final = 8
"""How often somebody else may get in the way of one job."""


async def carry_out(session: Session, jobs: Sequence[Job]) -> None:
    """Each job has its answer afterwards, or its error."""
    for _ in range(2 if len(jobs) > 1 else 0):
        error = await _attempt(session, jobs)
        if error is None:
            return
        if not is_again(error):
            if is_own(error):
                break
            _fail(jobs, explained(error, session.where))
            return
    for job in jobs:
        await _by_itself(session, job)


async def _by_itself(session: Session, job: Job) -> None:
    for number in range(_TRIES):
        job.error = await _attempt(session, [job])
        if job.error is None or not is_again(job.error):
            break
        await asyncio.sleep(uniform(0, 0.01 * number))  # noqa: S311 - so that they spread out
    if job.error is not None and not is_mistake(job.error):
        job.error = explained(job.error, session.where)


def _fail(jobs: Sequence[Job], error: StoreError) -> None:
    for job in jobs:
        # One exception for each, because each is raised for itself and gets a traceback.
        job.error = type(error)(*error.args)
        job.error.__cause__ = error.__cause__


async def _attempt(session: Session, jobs: Sequence[Job]) -> BaseException | None:
    """Do it, on a new connection if the old one turns out to be lost. The error, if it failed."""
    for fresh in (False, True):
        try:
            await _transact(session, jobs)
        except UncertainError as error:
            return error
        except Exception as error:  # noqa: BLE001 - every one is told to whoever waits
            if not is_lost(error):
                return error
            session.lose()  # nothing was committed, so it can be tried again
            if fresh:
                return error
        else:
            return None
    return None


async def _transact(session: Session, jobs: Sequence[Job]) -> None:
    connection = await session.connection()
    needs = Needs()
    for job in jobs:
        job.need(needs)
    try:
        await connection.execute(_beginning(jobs, needs))
        world = await look(connection, needs)
        for job in jobs:
            job.answer = (
                await job.run(connection, world) if isinstance(job, Alone) else job.work(world)
            )
        links, ends = session.segment.chain(world.told, world.now)
        await write(connection, world, links)
    except BaseException as error:
        await _undo(session, connection, error)
        raise
    if not world.touched and not any(isinstance(job, Alone) for job in jobs):
        await connection.execute("ROLLBACK")  # it only looked: nothing to wait for the disk with
        return
    segment = session.segment.name
    await _commit(session, connection, world, links)
    session.segment.adopt(segment, ends)
    for where in world.woken:
        session.heard(*where)


def _beginning(jobs: Sequence[Job], needs: Needs) -> str:
    words = ["BEGIN"]
    if not any(job.lasting for job in jobs):
        words.append("SET LOCAL synchronous_commit = off")
    if needs.registry:
        words.append(f"SELECT pg_advisory_xact_lock_shared({LOCKS}, {CHANGING})")
    alone = [job.lock for job in jobs if isinstance(job, Alone) and job.lock is not None]
    words += [f"SELECT pg_advisory_xact_lock({LOCKS}, {lock})" for lock in alone]
    return "; ".join(words)


async def _undo(session: Session, connection: Any, error: BaseException) -> None:
    if is_lost(error) or not isinstance(error, Exception):
        session.lose()
        return
    try:
        await connection.execute("ROLLBACK")
    except Exception:  # noqa: BLE001 - the first error is the one to tell
        session.lose()


async def _commit(session: Session, connection: Any, world: World, links: Links) -> None:
    """UncertainError when the connection is lost just then, unless it is seen to be done."""
    try:
        await connection.execute("COMMIT")
    except Exception as error:
        if not is_lost(error):
            await _undo(session, connection, error)
            raise
        session.lose()
        if not await _took_place(session, world, links):
            raise UncertainError(
                f"{session.where} was lost during a commit; whether it took place is not known"
            ) from error
    except BaseException:
        session.lose()
        raise


async def _took_place(session: Session, world: World, links: Links) -> bool:
    """Whether the last event of a transaction is on record: then all of it is."""
    if not links:
        return False
    with suppress(Exception):
        connection = await session.connection()
        number, segment = links[-1][:2]
        tenant = world.told[-1][1]
        return await connection.fetchval(_IS_RECORDED, tenant, number, segment) is not None
    return False
