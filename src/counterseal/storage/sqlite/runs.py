"""Runs: opened, found, begun anew, and what is left in their state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Final

from pydantic_core import from_json

from counterseal.audit import Event
from counterseal.ledger.rules import implicit, merged
from counterseal.storage.base import IDLE_SECONDS, RunRecord, Settle
from counterseal.storage.rows import Row, read, run_of, run_row, state_rows, written
from counterseal.storage.sqlite.queries import queries
from counterseal.storage.sqlite.transaction import Transaction

__all__ = ["advance", "find_implicit", "find_run", "new_turn", "open_run", "refuse", "use_implicit"]

_Q: Final = queries()
_FIND_RUN: Final = _Q["find_run"]
_FIND_STATE: Final = _Q["find_state"]
_FIND_IMPLICIT: Final = _Q["find_implicit"]
_USE_IMPLICIT: Final = _Q["use_implicit"]
_OPEN_RUN: Final = _Q["open_run"]
_PROGRESS: Final = _Q["progress"]
_ADVANCE: Final = _Q["advance"]
_BEGIN_TURN: Final = _Q["begin_turn"]
_FIND_KEY: Final = _Q["find_key"]
_LEAVE: Final = _Q["leave"]
_FORGET: Final = _Q["forget"]
_REFUSE: Final = _Q["refuse"]
_REFUSED: Final = _Q["refused"]
_SMALL: Final = 4096
"""How many characters a run may have to be kept in memory."""


def find_run(db: Transaction, tenant: str, run_id: str) -> RunRecord | None:
    """The run with its state."""
    row = db.one(_FIND_RUN, (tenant, run_id))
    return None if row is None else _with_state(db, tenant, row)


def _with_state(db: Transaction, tenant: str, row: Row) -> RunRecord:
    run_id, *kept, has_state = row
    if has_state:
        state = db.run(_FIND_STATE, (tenant, run_id)).fetchall()
        return run_of(tenant, run_id, tuple(kept), state)
    run = run_of(tenant, run_id, tuple(kept), ())
    # What is large is not kept in memory, and what has a state will be another one soon.
    if sum(len(text) for text in kept if isinstance(text, str)) <= _SMALL:
        db.keep_run(run)
    return run


def open_run(db: Transaction, run: RunRecord) -> RunRecord:
    """The run as it is stored; the given one where there was none."""
    tenant, run_id = run.tenant, run.run_id
    if db.in_run(tenant, run_id, _OPEN_RUN, [run_row(run)]) == 0:
        return find_run(db, tenant, run_id) or run
    state = state_rows(run)
    if state:
        db.in_run(tenant, run_id, _LEAVE, state)
    return run


def find_implicit(
    db: Transaction, tenant: str, agent: str, user: str | None, now: float
) -> tuple[RunRecord, float] | None:
    """The run that somebody is in who names none, and when they used it; None if it is over."""
    who = (tenant, agent, user or "")
    row = db.one(_FIND_IMPLICIT, who)
    if row is None or now - row[0] > IDLE_SECONDS:
        return None
    used_at, run_id, *_ = row
    db.keep_implicit(who, run_id, used_at)
    return _with_state(db, tenant, row[1:]), used_at


def use_implicit(
    db: Transaction, tenant: str, agent: str, user: str | None, now: float
) -> RunRecord:
    """The same, used now; where there is none, one is opened."""
    found = find_implicit(db, tenant, agent, user, now)
    known = open_run(db, implicit(tenant, agent, user, now)) if found is None else found[0]
    who = (tenant, agent, user or "")
    db.apart(_USE_IMPLICIT, (*who, known.run_id, now))
    db.keep_implicit(who, known.run_id, now)
    return known


def new_turn(db: Transaction, tenant: str, run_id: str, keep: Collection[str]) -> RunRecord | None:
    """Forget what the state holds under other keys than these."""
    run = find_run(db, tenant, run_id)
    if run is None:
        return None
    gone = [(tenant, run_id, key) for key in run.state if key not in keep]
    db.in_run(tenant, run_id, _FORGET, gone)
    db.in_run(tenant, run_id, _BEGIN_TURN, [(bool(gone), tenant, run_id)])
    return find_run(db, tenant, run_id)


def advance(db: Transaction, request: Settle) -> None:
    """What the run has seen now, and what is left in its state; nothing if there is no run."""
    tenant, run_id = request.tenant, request.run_id
    row = db.one(_PROGRESS, (tenant, run_id))
    if row is None:
        return
    seen, refused, changes = row
    if request.seen:
        seen = written({**read(seen), **request.seen})
    if request.mended is not None:
        refused = written([tool for tool in from_json(refused) if tool != request.mended])
    if request.state:
        changes += 1
        _leave(db, request)
    db.in_run(tenant, run_id, _ADVANCE, [(seen, refused, changes, tenant, run_id)])


def _leave(db: Transaction, request: Settle) -> None:
    tenant, run_id = request.tenant, request.run_id
    left: dict[str, tuple[Any, int, bool]] = {}
    for key, merge, value in request.state:
        if key in left:
            before, version, outside = left[key]
        else:
            before, version, outside = _kept(db, tenant, run_id, key)
            version += 1
        outside = request.untrusted or (outside and merge != "replace")
        left[key] = (merged(before, merge, value), version, outside)
    rows = [
        (tenant, run_id, key, written(value), version, outside)
        for key, (value, version, outside) in left.items()
    ]
    db.in_run(tenant, run_id, _LEAVE, rows)


def _kept(db: Transaction, tenant: str, run_id: str, key: str) -> tuple[Any, int, bool]:
    row = db.one(_FIND_KEY, (tenant, run_id, key))
    if row is None:
        return None, 0, False
    value, version, outside = row
    return None if value is None else from_json(value), version, bool(outside)


def refuse(
    db: Transaction,
    tenant: str,
    run_id: str,
    tool: str,
    fingerprints: Sequence[str],
    events: Sequence[Event],
) -> Sequence[int]:
    """Record a refusal, and count it under each fingerprint."""
    db.record(events)
    counted = [("" if one.startswith("run/") else tool, one) for one in fingerprints]
    rows = [(tenant, run_id, *one, times) for one, times in Counter(counted).items()]
    for row in rows:
        db.apart(_REFUSE, row)
    if any(whose == tool for whose, _ in counted):
        _count_refusals_of(db, tenant, run_id, tool)
    times = {one: db.one(_REFUSED, (tenant, run_id, *one)) for one in counted}
    return [0 if row is None else row[0] for row in map(times.__getitem__, counted)]


def _count_refusals_of(db: Transaction, tenant: str, run_id: str, tool: str) -> None:
    row = db.one(_PROGRESS, (tenant, run_id))
    if row is None:
        return
    seen, refused, changes = row
    tools = from_json(refused)
    if tool not in tools:
        values = (seen, written(sorted([*tools, tool])), changes, tenant, run_id)
        db.in_run(tenant, run_id, _ADVANCE, [values])
