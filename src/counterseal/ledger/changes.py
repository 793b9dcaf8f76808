"""Rules of changes around calls: runs and their state, refusals, the stored registry, sessions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from pydantic_core import from_json

from counterseal.audit import Columns
from counterseal.ledger.records import RegisteredContract, RunRecord, SessionRow
from counterseal.ledger.requests import SettlementRequest
from counterseal.ledger.rows import (
    CallerKey,
    RowKeys,
    Rows,
    RunProgress,
    StateValue,
    TenantKey,
    json_text,
)

IDLE_SECONDS: Final = 3600.0
"""Seconds without a call after which an implicit run is over."""
ANY_KEY: Final = "*"
"""Name under which a run counts the changes of its state, whatever the key."""


# --- opening --------------------------------------------------------------------------------------


def implicit_run(tenant: str, agent: str, user: str | None, now: float) -> RunRecord:
    """Return the run that begins when a caller names no run, and has none that is not over."""
    named = "\0".join((tenant, user or "", agent, str(now)))
    # Like other ids it begins with the time: new rows lie together in a store's index.
    run_id = f"run_{int(now * 1000):011x}{sha256(named.encode()).hexdigest()[:13]}"
    return RunRecord(tenant=tenant, run_id=run_id, started_at=now)


def open_run(rows: Rows, run: RunRecord) -> bool:
    """Store a new run. Returns False, and changes nothing, when there is one of its id."""
    where = (run.tenant, run.run_id)
    if rows.runs.get(where) is not None:
        return False
    versions = run.state_versions
    row = RunProgress(run.turn, versions.get(ANY_KEY, 0), run.pins, run.seen, run.refused, run)
    rows.runs.put(where, row)
    for key in {*run.state, *versions} - {ANY_KEY} | ({ANY_KEY} & run.state.keys()):
        value = json_text(run.state[key]) if key in run.state else None
        state = StateValue(value, versions.get(key, 0), key in run.untrusted)
        rows.state.put((*where, key), state)
    return True


def use_implicit_run(rows: Rows, caller: CallerKey, new: RunRecord) -> str:
    """Note that a caller uses its implicit run now. Returns its id: of the new run if needed."""
    tenant, now = new.tenant, new.started_at
    run_id, used_at = rows.implicit_runs.get(caller) or ("", now)
    if now - used_at > IDLE_SECONDS or rows.runs.get((tenant, run_id)) is None:
        run_id = new.run_id
        open_run(rows, new)
    rows.implicit_runs.put(caller, (run_id, now))
    return run_id


def need_new_turn(keys: RowKeys, where: TenantKey) -> None:
    """Add the rows that `new_turn` reads or changes."""
    keys.runs.add(where)
    keys.state.add((*where, None))


def new_turn(rows: Rows, where: TenantKey, keep: Collection[str]) -> None:
    """Begin another turn, if there is such a run, and forget the state under all other keys."""
    run = rows.runs.get(where)
    if run is None:
        return
    forgotten = 0
    for key in rows.state.under(*where):
        row = rows.state.get(key)
        if key[2] not in keep and row is not None and row.value is not None:
            rows.state.put(key, StateValue(None, row.version + 1, untrusted=False))
            forgotten = 1
    rows.runs.put(where, run._replace(turn=run.turn + 1, changes=run.changes + forgotten))


# --- what a settlement leaves ---------------------------------------------------------------------


def need_progress(keys: RowKeys, request: SettlementRequest) -> None:
    """Add the rows that `advance_run` reads or changes."""
    where = (request.tenant, request.run_id)
    if request.seen or request.state or request.mended is not None:
        keys.runs.add(where)
    for key, _, _ in request.state:
        keys.state.add((*where, key))
    if request.mended is not None:
        keys.refusals.add((*where, request.mended))


def advance_run(rows: Rows, request: SettlementRequest) -> None:
    """Store what the run has seen, its new state, and that refusals of a tool are over."""
    where, mended = (request.tenant, request.run_id), request.mended
    if mended is not None:
        for key in rows.refusals.under(*where, mended):
            rows.refusals.remove(key)
    run = rows.runs.get(where)
    if run is None:
        return
    if request.seen:
        run = run._replace(seen={**run.seen, **request.seen})
    if mended is not None:
        run = run._replace(refused=run.refused - {mended})
    if request.state:
        run = run._replace(changes=run.changes + 1)
        _apply_effects(rows, request)
    rows.runs.put(where, run)


def _apply_effects(rows: Rows, request: SettlementRequest) -> None:
    """Merge the declared effects into the run's state; each key's version rises by one."""
    where = (request.tenant, request.run_id)
    changed: dict[str, tuple[Any, int, bool]] = {}
    for key, merge, value in request.state:
        if key in changed:
            before, version, untrusted = changed[key]
        else:
            before, version, untrusted = _state_of(rows.state.get((*where, key)))
            version += 1
        untrusted = request.untrusted or (untrusted and merge != "replace")
        changed[key] = (_merged(before, merge, value), version, untrusted)
    for key, (value, version, untrusted) in changed.items():
        rows.state.put((*where, key), StateValue(json_text(value), version, untrusted))


def _state_of(row: StateValue | None) -> tuple[Any, int, bool]:
    if row is None:
        return None, 0, False
    return None if row.value is None else from_json(row.value), row.version, row.untrusted


def _merged(before: Any, merge: str, value: Any) -> Any:
    """Return the value of a state key afterwards. A value of another kind is replaced."""
    if merge == "append":
        return [*(before if isinstance(before, list) else ()), value]
    if merge == "merge_dict":
        return {**(before if isinstance(before, Mapping) else {}), **value}
    return value


# --- refusals -------------------------------------------------------------------------------------


def counted_refusals(tool: str, fingerprints: Sequence[str]) -> Sequence[tuple[str, str]]:
    """Return where each fingerprint is counted: under the tool, or under the run as a whole."""
    return [("" if one.startswith("run/") else tool, one) for one in fingerprints]


def need_refusal(keys: RowKeys, where: TenantKey, counted: Sequence[tuple[str, str]]) -> None:
    """Add the rows that `refuse` reads or changes."""
    if counted:
        keys.runs.add(where)
    for tool, _ in counted:
        keys.refusals.add((*where, tool))


def refuse(
    rows: Rows,
    where: TenantKey,
    tool: str,
    counted: Sequence[tuple[str, str]],
    events: Sequence[Columns],
) -> Sequence[int]:
    """Record a refusal, and count it under each fingerprint. Returns the counts."""
    rows.events.extend(events)
    for one in counted:
        key = (*where, *one)
        rows.refusals.put(key, (rows.refusals.get(key) or 0) + 1)
    run = rows.runs.get(where)
    if run is not None and tool not in run.refused and any(name == tool for name, _ in counted):
        rows.runs.put(where, run._replace(refused=run.refused | {tool}))
    return [rows.refusals.get((*where, *one)) or 0 for one in counted]


# --- the stored registry, and sessions ------------------------------------------------------------


def need_registry_change(keys: RowKeys) -> None:
    """Lock the registry: admissions that rest on it wait, or were decided before."""
    keys.registry_change = True


def change_registry(
    rows: Rows, number: int, what: Mapping[str, Any], events: Sequence[Columns]
) -> bool:
    """Store a change to the registry. Returns False when its number is not the next one."""
    if number != rows.epoch + 1:
        return False
    rows.epoch = number
    rows.registry_changes.append((number, what))
    rows.events.extend(events)
    return True


def register_contracts(
    rows: Rows, new: Sequence[tuple[RegisteredContract, Sequence[Columns]]]
) -> None:
    """Store contracts that are not stored yet, each with its events."""
    for row, events in new:
        key = row[:3]
        if rows.contracts.get(key) is None:
            rows.contracts.put(key, row._replace(registered_at=rows.now))
            rows.events.extend(events)


def save_session(rows: Rows, row: SessionRow) -> bool:
    """Store or refresh a session. Returns False when a session to be refreshed has ended."""
    refreshes = row.seen_at > row.created_at
    if refreshes and rows.sessions.get(row.session) is None:
        return False
    rows.sessions.put(row.session, row)
    return True


def end_session(rows: Rows, session: str) -> bool:
    """Delete a session. Returns False when there was none."""
    if rows.sessions.get(session) is None:
        return False
    rows.sessions.remove(session)
    return True
