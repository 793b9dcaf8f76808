"""The runs that calls are made in: found many at once, because each call asks for its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from counterseal.storage.base import IDLE_SECONDS, RunRecord
from counterseal.storage.postgres.job import Job
from counterseal.storage.postgres.looking import columns
from counterseal.storage.postgres.queries import queries
from counterseal.storage.postgres.rows import run_of

__all__ = ["Finding", "FindingImplicit", "find"]

_Q: Final = queries()
_FIND_RUNS: Final = _Q["find_runs"]
_FIND_IMPLICIT: Final = _Q["find_implicit"]


class Finding(Job):
    """A run with its state, by its id. The answer: it, or None."""

    __slots__ = ("run_id", "tenant")
    vain = True

    def __init__(self, tenant: str, run_id: str) -> None:
        super().__init__()
        self.tenant = tenant
        self.run_id = run_id


class FindingImplicit(Job):
    """The run that somebody is in who names none, and when they used it; None if it is over."""

    __slots__ = ("now", "who")
    vain = True

    def __init__(self, tenant: str, agent: str, user: str | None, now: float) -> None:
        super().__init__()
        self.who = (tenant, agent, user or "")
        self.now = now


async def find(connection: Any, jobs: Sequence[Finding | FindingImplicit]) -> None:
    """Answer all of them, with one statement for each kind."""
    wanted = {(job.tenant, job.run_id) for job in jobs if isinstance(job, Finding)}
    used = await _last_used(connection, [job for job in jobs if isinstance(job, FindingImplicit)])
    wanted.update((who[0], run_id) for who, (run_id, _) in used.items())
    runs = await _runs(connection, wanted) if wanted else {}
    for job in jobs:
        if isinstance(job, Finding):
            job.answer = runs.get((job.tenant, job.run_id))
            continue
        run_id, used_at = used.get(job.who, ("", 0.0))
        run = runs.get((job.who[0], run_id))
        over = run is None or job.now - used_at > IDLE_SECONDS
        job.answer = None if over else (run, used_at)


async def _last_used(
    connection: Any, jobs: Sequence[FindingImplicit]
) -> dict[tuple[str, str, str], tuple[str, float]]:
    """By whom: the run, and when."""
    if not jobs:
        return {}
    rows = await connection.fetch(_FIND_IMPLICIT, *columns({job.who for job in jobs}, 3))
    return {(tenant, agent, user): (run_id, at) for tenant, agent, user, run_id, at in rows}


async def _runs(connection: Any, wanted: set[tuple[str, str]]) -> dict[tuple[str, str], RunRecord]:
    rows = await connection.fetch(_FIND_RUNS, *columns(wanted, 2))
    return {(row[0], row[1]): run_of(row[0], row[1], tuple(row[2:13]), row[13]) for row in rows}
