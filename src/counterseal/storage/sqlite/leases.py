"""For how long entries are somebody's, and who gets them afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from counterseal.ledger.entry import Entry, Phase
from counterseal.ledger.rules import concern
from counterseal.storage.base import Claim, Concern, Kept
from counterseal.storage.sqlite.admission import find_entry
from counterseal.storage.sqlite.queries import queries
from counterseal.storage.sqlite.rows import entry_of
from counterseal.storage.sqlite.transaction import Transaction
from counterseal.storage.sqlite.work import failed, which

__all__ = [
    "any_orphans",
    "claim_orphans",
    "concerns",
    "leased_for",
    "look_up",
    "look_up_call",
    "renew",
]

_Q: Final = queries()
_ORPHANS: Final = _Q["orphans"]
_CLAIM: Final = _Q["claim_orphan"]
_RENEW: Final = _Q["renew"]


def look_up(db: Transaction, tenant: str, key: str) -> Kept | None:
    """An entry, with what is needed to go on from it."""
    entry = find_entry(db, tenant, key)
    row = db.one(_Q["find_resume"], (tenant, key))
    return None if entry is None or row is None else Kept(entry, row[0])


def look_up_call(db: Transaction, tenant: str, call_id: str) -> Kept | None:
    """The same by the call that it is of."""
    row = db.one(_Q["key_of_call"], (tenant, call_id))
    return None if row is None else look_up(db, tenant, row[0])


def renew(db: Transaction, entries: Sequence[Entry], lease: float) -> Sequence[bool]:
    """Whether each is still held under its fence; those that are, are so for a while longer."""
    until = db.now() + lease
    return [
        db.apart(_RENEW, (until, entry.tenant, entry.key, entry.fence)) > 0 for entry in entries
    ]


def leased_for(db: Transaction, tenant: str, key: str) -> float:
    """For how many seconds somebody is at work on an entry; none or less: nobody is."""
    row = db.one(_Q["leased"], (tenant, key))
    if row is None:
        return 0.0
    return float("inf") if row[0] is None else row[0] - db.now()


def any_orphans(db: Transaction, claim: Claim) -> bool:
    """Whether there is anything to claim."""
    return db.one(_ORPHANS, which(claim._replace(limit=1), db.now())) is not None


def claim_orphans(db: Transaction, claim: Claim) -> Sequence[Kept]:
    """Take over what nobody holds any more, oldest first."""
    now = db.now()
    found: list[Kept] = []
    for tenant, key, resume, *row in db.run(_ORPHANS, which(claim, now)):
        entry = entry_of(tenant, key, tuple(row), now)
        found.append(Kept(_claimed(entry, row[-1], claim.worker), resume))
    until = now + claim.lease
    db.many(
        _CLAIM,
        [
            (one.fence, one.worker, one.unknown_since, one.looks, until, one.tenant, one.key)
            for one, _ in found
        ],
    )
    return found


def _claimed(entry: Entry, lease_until: float, worker: str) -> Entry:
    return entry._replace(
        fence=entry.fence + 1,
        worker=worker,
        phase=Phase.UNKNOWN,
        unknown_since=lease_until if entry.unknown_since is None else entry.unknown_since,
        lapsed=False,
        looks=entry.looks + 1,
    )


def concerns(db: Transaction, tenant: str | None, limit: int) -> Sequence[Concern]:
    """Entries that are a person's now, and work that nobody will try again, oldest first."""
    found = _escalated(db, tenant, limit) + failed(db, tenant, limit)
    found.sort(key=lambda one: (one.since, one.tenant, one.kind, one.key))
    return found[:limit]


def _escalated(db: Transaction, tenant: str | None, limit: int) -> list[Concern]:
    rows = db.run(_Q["escalated"], (tenant, tenant, limit))
    return [concern(entry_of(whose, key, tuple(row), 0.0)) for whose, key, *row in rows]
