"""Records as the columns in which every database keeps them, and back.

Columns that hold JSON are text. The order of columns is the order of the tables in `schema.sql`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, Final

from pydantic_core import from_json

from counterseal.audit import Columns, Event, Head, Link, event_of
from counterseal.audit.chain import Checkpoint
from counterseal.ledger.entry import Entry, EntryStatus, Phase
from counterseal.ledger.records import (
    Budgets,
    Due,
    DueKind,
    Held,
    HeldStatus,
    RunRecord,
    SessionRow,
)
from counterseal.ledger.requests import LogRow
from counterseal.ledger.rows import DueRow, RunProgress, json_text
from counterseal.ledger.run_changes import ANY_KEY

DbRow = tuple[Any, ...]

_BUDGETS: Final = tuple(one.name for one in fields(Budgets))
_SMALL: Final = 2048
"""Characters of JSON up to which a run is kept in memory."""


def json_value(text: str) -> Any:
    """Return the JSON value of a text."""
    return {} if text == "{}" else from_json(text)


# --- runs -----------------------------------------------------------------------------------------


def opened_run_columns(run: RunRecord) -> DbRow:
    """Return the columns of a run that never change, from `tenant` to `config`."""
    allowed = run.allowed_tools
    return (
        run.tenant,
        run.run_id,
        run.started_at,
        run.objective,
        None if allowed is None else json_text(sorted(allowed)),
        json_text({name: getattr(run.budgets, name) for name in _BUDGETS}),
        run.deadline,
        json_text(run.config),
    )


def run_columns(row: RunProgress) -> DbRow:
    """Return the columns of a run that change, from `turn` to `refused`."""
    return (
        row.turn,
        row.changes,
        json_text(row.pins),
        json_text(row.seen),
        json_text(sorted(row.refused)),
    )


def run_row_from(columns: Sequence[Any]) -> RunProgress:
    """Return the changing part of a run, from `turn` to `refused`."""
    turn, changes, pins, seen, refused = columns
    return RunProgress(turn, changes, json_value(pins), json_value(seen), _names(refused))


def run_from(tenant: str, run_id: str, columns: DbRow, state: Sequence[DbRow]) -> RunRecord:
    """Return a run, from its columns after the key, and from (key, value, version, untrusted)."""
    if state or sum(map(len, (columns[5], *columns[8:]))) > _SMALL:
        return _run_from(tenant, run_id, columns, state)
    return _small_run(tenant, run_id, columns)


# A run is read for each of its calls, and most calls leave it as it was. Large runs are not kept,
# and the state of a run changes soon.
@lru_cache(maxsize=1024)
def _small_run(tenant: str, run_id: str, columns: DbRow) -> RunRecord:
    return _run_from(tenant, run_id, columns, ())


def _run_from(tenant: str, run_id: str, columns: DbRow, state: Sequence[DbRow]) -> RunRecord:
    started_at, objective, allowed, budgets, deadline, config, turn, changes = columns[:8]
    pins, seen, refused = columns[8:]
    values: dict[str, Any] = {}
    versions: dict[str, int] = {}
    untrusted = []
    for key, value, version, is_untrusted in state:
        if value is not None:
            values[key] = from_json(value)
        if version:
            versions[key] = version
        if is_untrusted:
            untrusted.append(key)
    if changes:
        versions[ANY_KEY] = changes
    return RunRecord(
        tenant=tenant,
        run_id=run_id,
        started_at=started_at,
        objective=objective,
        allowed_tools=None if allowed is None else _names(allowed),
        budgets=_budgets(budgets),
        deadline=deadline,
        config=json_value(config),
        state=values,
        state_versions=versions,
        untrusted=frozenset(untrusted),
        turn=turn,
        refused=_names(refused),
        pins=json_value(pins),
        seen=json_value(seen),
    )


# Many runs have the same budgets, and the gates look up what they derive from them by identity.
@lru_cache(maxsize=1024)
def _budgets(text: str) -> Budgets:
    return Budgets(**from_json(text))


@lru_cache(maxsize=1024)
def _names(text: str) -> frozenset[str]:
    return frozenset(from_json(text))


# --- the ledger and due work ----------------------------------------------------------------------


def entry_from(columns: Sequence[Any]) -> Entry:
    """Return an entry, from `tenant` to `looks` in the order of the query `find_entry`."""
    tenant, key, request_hash, status, phase, call_id, run_id, tool, version, fence = columns[:10]
    attempts, unknown_since, observation, worker, looks = columns[10:15]
    return Entry(
        tenant=tenant,
        key=key,
        request_hash=request_hash,
        status=EntryStatus(status),
        phase=None if phase is None else Phase(phase),
        call_id=call_id,
        tool=tool,
        version=version,
        fence=fence,
        attempts=attempts,
        unknown_since=unknown_since,
        observation=None if observation is None else from_json(observation),
        run_id=run_id,
        worker=worker,
        looks=looks,
    )


def due_from(columns: Sequence[Any]) -> Due:
    """Return a piece of due work, from `tenant` to `since`."""
    tenant, kind, key, call_id, run_id, tool, version, body = columns[:8]
    fence, tries, failed, since = columns[8:12]
    return Due(
        tenant=tenant,
        kind=DueKind(kind),
        key=key,
        call_id=call_id,
        run_id=run_id,
        tool=tool,
        version=version,
        body=json_value(body),
        fence=fence,
        tries=tries,
        failed=failed,
        since=since,
    )


def due_columns(row: DueRow) -> DbRow:
    """Return the columns of a piece of due work, from `tenant` to `due_at`."""
    due = row.due
    return (
        due.tenant,
        str(due.kind),
        due.key,
        due.call_id,
        due.run_id,
        due.tool,
        due.version,
        json_text(due.body),
        due.fence,
        due.tries,
        due.failed,
        due.since,
        row.due_at,
    )


# --- requests for approval ------------------------------------------------------------------------


def held_columns(held: Held) -> DbRow:
    """Return the columns of a request, from `tenant` to `token`."""
    return (
        held.tenant,
        held.approval_id,
        held.key,
        held.status.value,
        held.approval_hash,
        held.contract_hash,
        held.approvers,
        held.call_id,
        held.run_id,
        held.tool,
        held.version,
        held.agent,
        held.user,
        held.reason,
        held.rule,
        held.risk,
        json_text(held.demand),
        None if held.version_seen is None else json_text(held.version_seen),
        held.created_at,
        held.expires_at,
        held.trace_id,
        held.sealed,
        json_text(held.votes),
        held.token,
    )


def held_from(columns: Sequence[Any]) -> Held:
    """Return a request, from `tenant` to `token`."""
    tenant, approval_id, key, status, approval_hash, contract_hash, approvers = columns[:7]
    call_id, run_id, tool, version, agent, user, reason, rule, risk, demand = columns[7:17]
    version_seen, created_at, expires_at, trace_id, sealed, votes, token = columns[17:24]
    return Held(
        approval_id=approval_id,
        tenant=tenant,
        key=key,
        approval_hash=approval_hash,
        call_id=call_id,
        run_id=run_id,
        tool=tool,
        version=version,
        contract_hash=contract_hash,
        agent=agent,
        user=user,
        reason=reason,
        rule=rule,
        approvers=approvers,
        risk=risk,
        demand=json_value(demand),
        version_seen=None if version_seen is None else from_json(version_seen),
        created_at=created_at,
        expires_at=expires_at,
        trace_id=trace_id,
        sealed=sealed,
        status=HeldStatus(status),
        votes=tuple(from_json(votes)),
        token=token,
    )


# --- sessions -------------------------------------------------------------------------------------


def session_columns(row: SessionRow) -> DbRow:
    """Return the columns of a session."""
    return (*row[:5], json_text(row.facts))


def session_from(columns: Sequence[Any]) -> SessionRow:
    """Return a session."""
    session, user, created_at, seen_at, expires_at, facts = columns
    return SessionRow(session, user, created_at, seen_at, expires_at, json_value(facts))


# --- the record -----------------------------------------------------------------------------------


def found_event(number: int, segment: str, columns: Columns) -> tuple[str, Event]:
    """Return an event with its id."""
    link = Link(number, segment, 0, None, b"", b"")
    return link.event_id, event_of(columns)


def log_row(link: Link, columns: Columns) -> LogRow:
    """Return a row of the log as it is stored; without columns once the event was erased."""
    # Text in an erased row was put there by an attacker, and is shown to the verifier.
    erased = link.salt is None and all(one is None for one in (columns[0], *columns[2:]))
    return LogRow(link, None if erased else columns)


def checkpoint_columns(checkpoint: Checkpoint) -> DbRow:
    """Return the columns of a checkpoint."""
    heads = {name: (*head[:2], head.hash.hex()) for name, head in checkpoint.heads.items()}
    return (
        checkpoint.tenant,
        checkpoint.number,
        checkpoint.sealed_at,
        json_text(heads),
        checkpoint.previous,
        checkpoint.hash,
        checkpoint.key_id,
        checkpoint.signature,
    )


def checkpoint_from(tenant: str, columns: DbRow) -> Checkpoint:
    """Return a checkpoint, from its columns after the tenant."""
    number, sealed_at, heads, previous, own, key_id, signature = columns
    return Checkpoint(
        tenant=tenant,
        number=number,
        sealed_at=sealed_at,
        heads=_heads(heads),
        previous=previous,
        hash=own,
        key_id=key_id,
        signature=signature,
    )


def _heads(text: Any) -> Mapping[str, Head]:
    """Return the heads, or none for a text that no store has written: verification reports it."""
    try:
        heads = {name: _head(*head) for name, head in from_json(text).items()}
    except (AttributeError, TypeError, ValueError):
        return {}
    return heads


def _head(number: Any, seq: Any, own: Any) -> Head:
    if type(number) is not int or type(seq) is not int:
        raise ValueError("number and place of a head must be whole numbers")
    return Head(number, seq, bytes.fromhex(own))
