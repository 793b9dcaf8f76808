"""Between the store's records and the rows that every database keeps them in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, Final

from pydantic_core import from_json, to_json

from counterseal.canonical import json_default
from counterseal.storage.base import Budgets, Held, HeldStatus, RunRecord

__all__ = ["Row", "held_of", "held_row", "read", "run_of", "run_row", "state_rows", "written"]

Row = tuple[Any, ...]

_BUDGETS: Final = tuple(one.name for one in fields(Budgets))
_SMALL: Final = 2048
"""How many characters of JSON a run may have to be kept in memory."""
_ANY: Final = "*"
"""Under which a run tells how often its state was changed, whatever the key."""


def written(value: Any) -> str:
    """A JSON value as text."""
    return to_json(value, fallback=json_default).decode()


def read(text: str) -> Any:
    """The JSON value that a text tells."""
    return {} if text == "{}" else from_json(text)


# --- runs -----------------------------------------------------------------------------------------


def run_row(run: RunRecord) -> Row:
    """As `open_run` takes it."""
    allowed = run.allowed_tools
    return (
        run.tenant,
        run.run_id,
        run.started_at,
        run.objective,
        None if allowed is None else written(sorted(allowed)),
        written({name: getattr(run.budgets, name) for name in _BUDGETS}),
        run.deadline,
        written(run.config),
        run.turn,
        run.state_versions.get(_ANY, 0),
        written(run.pins),
        written(run.seen),
        written(sorted(run.refused)),
    )


def state_rows(run: RunRecord) -> list[Row]:
    """As `leave` takes them."""
    keys = {*run.state, *run.state_versions} - {_ANY} | ({_ANY} & run.state.keys())
    return [
        (
            run.tenant,
            run.run_id,
            key,
            written(run.state[key]) if key in run.state else None,
            run.state_versions.get(key, 0),
            key in run.untrusted,
        )
        for key in sorted(keys)
    ]


def run_of(tenant: str, run_id: str, row: Row, state: Sequence[Row]) -> RunRecord:
    """From `find_run` and `find_state`."""
    if state or sum(map(len, (row[5], *row[8:]))) > _SMALL:
        return _run_of(tenant, run_id, row, state)
    return _small_run(tenant, run_id, row)


# A run is read for each of its calls, and most of them leave it as it was. What is large is not
# kept here, and what has a state will be another one soon.
@lru_cache(maxsize=1024)
def _small_run(tenant: str, run_id: str, row: Row) -> RunRecord:
    return _run_of(tenant, run_id, row, ())


def _run_of(tenant: str, run_id: str, row: Row, state: Sequence[Row]) -> RunRecord:
    started_at, objective, allowed, budgets, deadline, config, turn, changes = row[:8]
    pins, seen, refused = row[8:]
    values: dict[str, Any] = {}
    versions: dict[str, int] = {}
    untrusted = []
    for key, value, version, outside in state:
        if value is not None:
            values[key] = from_json(value)
        if version:
            versions[key] = version
        if outside:
            untrusted.append(key)
    if changes:
        versions[_ANY] = changes
    return RunRecord(
        tenant=tenant,
        run_id=run_id,
        started_at=started_at,
        objective=objective,
        allowed_tools=None if allowed is None else _names(allowed),
        budgets=_budgets(budgets),
        deadline=deadline,
        config=read(config),
        state=values,
        state_versions=versions,
        untrusted=frozenset(untrusted),
        turn=turn,
        refused=_names(refused),
        pins=read(pins),
        seen=read(seen),
    )


# Many runs have the same ones, and what is worked out for a run's budgets is found by identity.
@lru_cache(maxsize=1024)
def _budgets(text: str) -> Budgets:
    return Budgets(**from_json(text))


@lru_cache(maxsize=1024)
def _names(text: str) -> frozenset[str]:
    return frozenset(from_json(text))


# --- requests for approval ------------------------------------------------------------------------


def held_row(held: Held) -> Row:
    """As `hold` takes it."""
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
        written(held.demand),
        None if held.version_seen is None else written(held.version_seen),
        held.created_at,
        held.expires_at,
        held.trace_id,
        held.sealed,
        written(held.votes),
        held.token,
    )


def held_of(row: Row) -> Held:
    """From `find_held`, `last_held` or `list_held`."""
    tenant, approval_id, key, status, approval_hash, contract_hash, approvers = row[:7]
    call_id, run_id, tool, version, agent, user, reason, rule, risk, demand = row[7:17]
    version_seen, created_at, expires_at, trace_id, sealed, votes, token = row[17:]
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
        demand=read(demand),
        version_seen=None if version_seen is None else from_json(version_seen),
        created_at=created_at,
        expires_at=expires_at,
        trace_id=trace_id,
        sealed=sealed,
        status=HeldStatus(status),
        votes=tuple(from_json(votes)),
        token=token,
    )
