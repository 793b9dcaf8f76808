"""Due work: put down, claimed, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from counterseal.audit import Event
from counterseal.ledger.rules import parked
from counterseal.storage.base import Claim, Concern, Due, DueKind, Finish
from counterseal.storage.rows import Row, written
from counterseal.storage.sqlite.queries import queries
from counterseal.storage.sqlite.rows import due_of
from counterseal.storage.sqlite.transaction import Transaction

__all__ = [
    "claim_due",
    "failed",
    "find_due",
    "finish",
    "put_down",
    "schedule",
    "something_due",
    "which",
]

_Q: Final = queries()
_SCHEDULE: Final = _Q["schedule"]
_DUE: Final = _Q["due"]
_CLAIM: Final = _Q["claim_due"]
_COMPENSATE: Final = _Q["compensate"]


def put_down(db: Transaction, due: Iterable[tuple[float, Due]]) -> bool:
    """Work to be done later, but for what is there. Whether anything is new."""
    now, new = db.now(), False
    for after, work in due:
        what = (work.tenant, str(work.kind), *work[2:7], written(work.body))
        new |= db.apart(_SCHEDULE, (*what, now, now + after)) > 0
    return new


def schedule(db: Transaction, after: float, work: Due, events: Sequence[Event]) -> bool:
    """False, and nothing, if it is there."""
    if not put_down(db, [(after, work)]):
        return False
    db.record(events)
    return True


def find_due(db: Transaction, tenant: str, kind: DueKind, key: str) -> Due | None:
    """The one of a kind for a key."""
    row = db.one(_Q["find_due"], (tenant, str(kind), key))
    return None if row is None else due_of(row)


def which(claim: Claim, now: float) -> Row:
    """What `due` and `orphans` are narrowed by: until when, whose, and how many."""
    tools = None if claim.tools is None else f" {' '.join(claim.tools)} "
    return now - claim.lapsed_for, tools, tools, claim.limit


def something_due(db: Transaction, claim: Claim) -> bool:
    """Whether there is anything to claim."""
    return db.one(_DUE, which(claim._replace(limit=1), db.now())) is not None


def claim_due(db: Transaction, claim: Claim) -> Sequence[Due]:
    """Take work whose time has come. Until the lease is over, it has not come again."""
    now = db.now()
    taken = map(due_of, db.run(_DUE, which(claim, now)))
    found = [work._replace(fence=work.fence + 1, tries=work.tries + 1) for work in taken]
    until = now + claim.lease
    db.many(_CLAIM, [(work.fence, work.tries, until, *_where(work)) for work in found])
    return found


def finish(db: Transaction, request: Finish) -> bool:
    """False, and nothing, when somebody else has taken it by now."""
    work = request.work
    where = (*_where(work), work.fence)
    if request.failed is not None:
        done = db.run(_Q["park_due"], (request.failed, db.now(), *where))
    elif request.again_after is not None:
        done = db.run(_Q["put_off_due"], (db.now() + request.again_after, *where))
    else:
        done = db.run(_Q["end_due"], where)
    if done.rowcount == 0:
        return False
    if request.compensated is not None:
        db.run(_COMPENSATE, (written(request.compensated), work.tenant, work.key))
    put_down(db, request.due)
    db.record(request.events)
    return True


def _where(work: Due) -> tuple[str, str, str]:
    return work.tenant, str(work.kind), work.key


def failed(db: Transaction, tenant: str | None, limit: int) -> list[Concern]:
    """What nobody will try again, oldest first."""
    rows = db.run(_Q["failed_due"], (tenant, tenant, limit))
    return [parked(due_of(row)) for row in rows]
