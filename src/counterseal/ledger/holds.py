"""Rules of requests for approval: held once, voted on, decided once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any, Final

from counterseal.audit import Columns
from counterseal.ledger.due_work import Later, add_due, need_due
from counterseal.ledger.records import Held, HeldStatus
from counterseal.ledger.requests import Ballot
from counterseal.ledger.rows import HeldRow, RowKeys, Rows, TenantKey

_EXPLANATIONS: Final = ("reason", "rule")
"""Fields of a demand that explain it; they do not make it another question."""
_AFTER_ALL_IDS: Final = "\U0010ffff"


# --- questions about one request ------------------------------------------------------------------


def usable(held: Held, now: float) -> bool:
    """Return True when the approval can be spent."""
    return held.status is HeldStatus.APPROVED and now < held.expires_at


def stands(held: Held, run_id: str, now: float) -> bool:
    """Return True while a request still answers its question, so that people are not asked anew.

    A spent or void request does not, and a rejection always does. A request that expired unused
    does so for its own run only, for as long again as it was open.
    """
    if held.status in (HeldStatus.SPENT, HeldStatus.VOID):
        return False
    ended = held.status is HeldStatus.EXPIRED or now >= held.expires_at
    if held.status is HeldStatus.REJECTED or not ended:
        return True
    return held.run_id == run_id and now < held.expires_at + (held.expires_at - held.created_at)


def same_question(one: Held, other: Held) -> bool:
    """Return True when two requests ask approvers for the same, on behalf of the same caller."""
    return _subject(one) == _subject(other)


def _subject(held: Held) -> tuple[Any, ...]:
    demand = {name: value for name, value in held.demand.items() if name not in _EXPLANATIONS}
    return held.approval_hash, held.contract_hash, held.approvers, held.agent, held.user, demand


def asked_before(last: Held | None, held: Held) -> bool:
    """Return True when the caller's last request under the key asks the same and still stands."""
    return (
        last is not None
        and same_question(last, held)
        and stands(last, held.run_id, held.created_at)
    )


def caller_key(agent: str, user: str | None) -> tuple[str, str]:
    """Return a caller as requests are told apart by it; no user is the empty text."""
    return agent, user or ""


def held_between(
    after: float | None, beyond: tuple[float, str] | None, *, newest_first: bool
) -> tuple[tuple[float, str], tuple[float, str]]:
    """Return the places between which the listed requests lie, both excluded.

    A place is the time when a request ends, and its id.
    """
    first = (-inf, "") if after is None else (after, _AFTER_ALL_IDS)
    last = (inf, _AFTER_ALL_IDS)
    if beyond is None:
        return first, last
    return (first, min(last, beyond)) if newest_first else (max(first, beyond), last)


# --- transactions ---------------------------------------------------------------------------------


def need_hold(keys: RowKeys, held: Held, due: Later) -> None:
    """Add the rows that `hold` reads or changes."""
    keys.last_held.add((held.tenant, held.key, *caller_key(held.agent, held.user)))
    keys.held.add((held.tenant, held.approval_id))
    need_due(keys, due)


def hold(rows: Rows, held: Held, due: Later, events: Sequence[Columns]) -> Held:
    """Store a request. Returns an earlier one instead if it asks the same and still stands."""
    tenant = held.tenant
    caller = (tenant, held.key, *caller_key(held.agent, held.user))
    last = rows.last_held.get(caller)
    before = None if last is None else rows.held.get((tenant, last))
    if last is not None and before is not None:
        if asked_before(before.held, held):
            return before.held
        rows.held.put((tenant, last), before._replace(latest=False))
    rows.held.put((tenant, held.approval_id), HeldRow(held, latest=True))
    rows.last_held[caller] = held.approval_id
    add_due(rows, due)
    rows.events.extend(events)
    return held


def need_vote(keys: RowKeys, ballot: Ballot) -> None:
    """Add the rows that `vote` reads or changes."""
    keys.held.add((ballot.tenant, ballot.approval_id))
    need_due(keys, ballot.due)


def vote(rows: Rows, ballot: Ballot, events: Sequence[Columns]) -> Held | None:
    """Store votes and their result. Returns None for a decided request, or after other votes."""
    where = (ballot.tenant, ballot.approval_id)
    row = rows.held.get(where)
    if row is None or row.held.status is not HeldStatus.WAITING:
        return None
    if len(row.held.votes) != ballot.seen:
        return None
    add_due(rows, ballot.due)
    rows.events.extend(events)
    votes = tuple(ballot.votes)
    return change_held(rows, where, votes=votes, status=ballot.status, token=ballot.token)


def decide_held(
    rows: Rows, where: TenantKey, status: HeldStatus, events: Sequence[Columns]
) -> Held | None:
    """Decide a request without a vote. Returns None when it was decided before.

    A waiting request can take any decision; an approved one can only become void, and loses its
    token.
    """
    row = rows.held.get(where)
    voids = status is HeldStatus.VOID
    open_for = HeldStatus.APPROVED if voids else HeldStatus.WAITING
    if row is None or row.held.status is not open_for:
        return None
    rows.events.extend(events)
    token = None if voids else row.held.token
    return change_held(rows, where, status=status, token=token)


def change_held(rows: Rows, where: TenantKey, **changes: Any) -> Held | None:
    """Change fields of a request, if there is one, and announce a decision to waiting callers."""
    row = rows.held.get(where)
    if row is None:
        return None
    held = replace(row.held, **changes)
    announced = row.awaited and held.status is not HeldStatus.WAITING
    if announced:
        rows.woken.append(where)
    rows.held.put(where, row._replace(held=held, awaited=row.awaited and not announced))
    return held


def watch_held(rows: Rows, where: TenantKey) -> float | None:
    """Mark an undecided request as awaited. Returns infinity; None: there is none."""
    row = rows.held.get(where)
    if row is None or row.held.status is not HeldStatus.WAITING:
        return None
    if not row.awaited:
        rows.held.put(where, row._replace(awaited=True))
    return inf
