"""What is recalled before a call, and the two transactions around its execution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from counterseal.ledger.entry import Entry, Status
from counterseal.ledger.rules import reservable, usable
from counterseal.storage.base import Admission, Admit, Asker, HeldStatus, Memory, Refused, Settle
from counterseal.storage.rows import written
from counterseal.storage.sqlite.holds import find_held, last_held
from counterseal.storage.sqlite.known import Counter, Known, RestsOn
from counterseal.storage.sqlite.queries import queries
from counterseal.storage.sqlite.rows import NULL, blob, entry_of, reserved, standing
from counterseal.storage.sqlite.runs import advance
from counterseal.storage.sqlite.transaction import Transaction
from counterseal.storage.sqlite.work import put_down

__all__ = ["admit", "find_entry", "recall", "settle"]

_Q: Final = queries()
_RECALL_COUNTERS: Final = _Q["recall_counters"]
_FIND_KEY: Final = _Q["find_key"]
_FIND_ENTRY: Final = _Q["find_entry"]
_DECIDE: Final = _Q["decide"]
_PIN: Final = _Q["pin"]
_RESERVE: Final = _Q["reserve"]
_RESERVE_AGAIN: Final = _Q["reserve_again"]
_SETTLE: Final = _Q["settle"]
_MEND: Final = _Q["mend"]
_GIVE_BACK: Final = _Q["give_back"]
_ADMITTED: Final = Admission()
_OUTDATED: Final = Admission(Refused.EPOCH)
_TAKEN: Final = Admission(Refused.DUPLICATE)
"""There is something under the key; what, is still to be looked up."""


def find_entry(db: Transaction, tenant: str, key: str) -> Entry | None:
    """What was done under a key."""
    row = db.one(_FIND_ENTRY, (tenant, key))
    return None if row is None else entry_of(tenant, key, row, db.now())


def recall(
    db: Transaction,
    tenant: str,
    run_id: str,
    key: str | None,
    who: Asker | None,
    *,
    spent: bool,
) -> Memory:
    """All that bears on a call."""
    entry = held = None
    if key is not None:
        entry, held = find_entry(db, tenant, key), last_held(db, tenant, key, who)
    counters: tuple[dict[str, float], ...] = ({}, {}, {})
    if spent:
        for kind, name, value in db.run(_RECALL_COUNTERS, (tenant, run_id, tenant, tenant)):
            counters[kind - 1][name] = value
    return Memory(entry, held, *counters)


def admit(db: Transaction, request: Admit) -> Admission:
    """Everything is looked at before anything is written, so what is refused leaves no trace."""
    known, run = db.known(), (request.tenant, request.run_id)
    rests_on = known.rests_on.get(run) or db.rests_on(*run)
    if request.epoch != rests_on.epoch:
        return _OUTDATED
    # Nearly every key is new, and its own row says whether it is: only what is not is looked up.
    admitted = _admit(db, known, request, rests_on, None)
    entry = request.entry
    if admitted.refused is None or entry is None:
        return admitted
    before = find_entry(db, request.tenant, entry.key)
    return admitted if before is None else _admit(db, known, request, rests_on, before)


def _admit(
    db: Transaction, known: Known, request: Admit, rests_on: RestsOn, before: Entry | None
) -> Admission:
    """The same, with what was done under the key before: None as long as that is not known."""
    obstacle = _obstacle(db, request, rests_on, before)
    if obstacle is not None:
        return obstacle
    counters: dict[Counter, float] = {}
    arrivals: dict[tuple[str, str], float] = {}
    obstacle = _charge(db, known, request, counters) or _pace(db, known, request, arrivals)
    if obstacle is not None:
        return obstacle
    admitted = _ADMITTED if request.entry is None else _reserve(db, request, request.entry, before)
    if admitted.refused is not None:
        return admitted
    db.spend(counters, arrivals)
    if rests_on.pins is not None and request.tool not in rests_on.pins:
        _pin(db, request, rests_on.pins)
    if request.approval_id is not None:
        db.apart(_DECIDE, (HeldStatus.SPENT.value, request.tenant, request.approval_id))
    if request.events:
        db.record(request.events)
    return admitted


def _reserve(db: Transaction, request: Admit, entry: Entry, before: Entry | None) -> Admission:
    """Write the entry. Refused, and nothing is written, if it was thought new and is not."""
    if before is not None:
        entry = entry._replace(fence=before.fence + 1, attempts=before.attempts + 1)
    held = (entry.worker, db.now() + request.lease, blob(request.resume))
    row = (request.tenant, *reserved(entry), *standing(entry), *held)
    if db.apart(_RESERVE if before is None else _RESERVE_AGAIN, row):
        return Admission(entry=entry)
    return _TAKEN


def _obstacle(
    db: Transaction, request: Admit, rests_on: RestsOn, before: Entry | None
) -> Admission | None:
    """The first thing that has changed since the decision, and forbids it now."""
    pins = rests_on.pins
    if pins is not None:
        if pins.get(request.tool, request.version) != request.version:
            return Admission(Refused.PIN)
        if request.reads and _moved(db, request, rests_on.changes):
            return Admission(Refused.STATE)
    if before is not None and not reservable(before, request.takes_over):
        return Admission(Refused.DUPLICATE, before)
    if request.approval_id is not None:
        held = find_held(db, request.tenant, request.approval_id)
        if held is None or not usable(held, request.now):
            return Admission(Refused.APPROVAL)
    return None


def _pin(db: Transaction, request: Admit, pins: Mapping[str, str]) -> None:
    tenant, run_id = request.tenant, request.run_id
    kept = written({**pins, request.tool: request.version})
    db.in_run(tenant, run_id, _PIN, [(kept, tenant, run_id)])


def _moved(db: Transaction, request: Admit, changes: int) -> bool:
    """Whether the state that the decision rests on is another by now."""
    for key, version in request.reads.items():
        if key == "*":
            now = changes
        else:
            row = db.one(_FIND_KEY, (request.tenant, request.run_id, key))
            now = 0 if row is None else row[1]
        if now != version:
            return True
    return False


def _charge(
    db: Transaction, known: Known, request: Admit, counters: dict[Counter, float]
) -> Admission | None:
    """Find out what is spent afterwards, or which limit is in the way."""
    tenant, run_id, spent_on = request.tenant, request.run_id, known.spent
    for charge in request.charges:
        counter = (tenant, run_id if charge.of_run else "", charge.counter)
        spent = counters.get(counter)
        if spent is None:
            spent = spent_on.get(counter)
            if spent is None:
                spent = db.spent(counter)
        if charge.exceeds(spent):
            return Admission(Refused.BUDGET, charge=charge, spent=spent)
        counters[counter] = spent + charge.amount
    return None


def _pace(
    db: Transaction, known: Known, request: Admit, arrivals: dict[tuple[str, str], float]
) -> Admission | None:
    """The same for its rates."""
    tenant, now = request.tenant, request.now
    for rate in request.rates:
        name = (tenant, rate.counter)
        arrival = arrivals.get(name)
        if arrival is None:
            arrival = known.arrivals.get(name)
            if arrival is None:
                arrival = db.arrival(name)
        wait = rate.wait(arrival, now)
        if wait > 0:
            return Admission(Refused.RATE, rate=rate, retry_after=wait)
        arrivals[name] = rate.next(arrival, now)
    return None


def settle(db: Transaction, request: Settle) -> bool:
    """False, and nothing is written, when somebody else holds or has settled the entry by now."""
    entry, tenant = request.entry, request.tenant
    if entry is not None and not _write_outcome(db, request, entry):
        return False
    if request.seen or request.state or request.mended:
        advance(db, request)
    if request.mended is not None:
        db.apart(_MEND, (tenant, request.run_id, request.mended))
    if request.gives_back is not None:
        db.apart(_GIVE_BACK, (tenant, request.gives_back))
    if request.due:
        put_down(db, request.due)
    db.record(request.events)
    return True


def _write_outcome(db: Transaction, request: Settle, entry: Entry) -> bool:
    again = until = NULL
    if entry.status is Status.PENDING:
        if request.again_after is not None:
            again = db.now() + request.again_after
    elif request.keep_for is not None:
        until = db.now() + request.keep_for
    where = (request.tenant, entry.key, entry.fence)
    return db.apart(_SETTLE, (*standing(entry), again, until, *where)) > 0
