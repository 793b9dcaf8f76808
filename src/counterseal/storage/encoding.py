"""Records as the columns in which every database keeps them, and back; and reads of them.

Columns that hold JSON are text. The order of columns is the order of the tables in `schema.sql`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, Final, Protocol

from pydantic_core import from_json

from counterseal.audit import Columns, Event, Head, Link, event_of
from counterseal.audit.chain import Checkpoint
from counterseal.ledger.changes import ANY_KEY
from counterseal.ledger.entry import Entry, EntryStatus, Phase
from counterseal.ledger.records import (
    Budgets,
    Due,
    DueKind,
    Held,
    HeldStatus,
    RegisteredContract,
    RunRecord,
    SessionRow,
)
from counterseal.ledger.requests import LogRow
from counterseal.ledger.rows import DueRow, RunProgress, json_text
from counterseal.storage.backend import Place

DbRow = tuple[Any, ...]

_BUDGETS: Final = [one.name for one in fields(Budgets)]
_HELD: Final = [one.name for one in fields(Held)]
_CHECKPOINT: Final = [one.name for one in fields(Checkpoint)]
_SMALL: Final = 2048
"""Characters of JSON up to which a run is kept in memory."""


def json_value(text: str) -> Any:
    """Return the JSON value of a text."""
    return {} if text == "{}" else from_json(text)


# --- runs -----------------------------------------------------------------------------------------


def opened_run_columns(run: RunRecord) -> DbRow:
    """Return the columns of a run that never change, from `tenant` to `config`."""
    allowed = None if run.allowed_tools is None else json_text(sorted(run.allowed_tools))
    budgets = json_text({name: getattr(run.budgets, name) for name in _BUDGETS})
    opened = (run.tenant, run.run_id, run.started_at, run.objective)
    return (*opened, allowed, budgets, run.deadline, json_text(run.config))


def run_columns(row: RunProgress) -> DbRow:
    """Return the columns of a run that change, from `turn` to `refused`."""
    pins, seen, refused = json_text(row.pins), json_text(row.seen), json_text(sorted(row.refused))
    return row.turn, row.changes, pins, seen, refused


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
    given = from_json(text)
    if not isinstance(given.get("money", {}), dict):
        # A run from before limits had a currency: a number that limited the price of calls.
        price = given.pop("money")
        given["cost"] = {} if price is None else {"run": {"USD": price}}
    return Budgets(**given)


@lru_cache(maxsize=1024)
def _names(text: str) -> frozenset[str]:
    return frozenset(from_json(text))


# --- the ledger and due work ----------------------------------------------------------------------


def entry_from(columns: Sequence[Any]) -> Entry:
    """Return an entry, from `tenant` to `looks`."""
    status, phase, observation = columns[3], columns[4], columns[12]
    return Entry(*columns[:15])._replace(
        status=EntryStatus(status),
        phase=None if phase is None else Phase(phase),
        observation=None if observation is None else from_json(observation),
    )


def due_from(columns: Sequence[Any]) -> Due:
    """Return a piece of due work, from `tenant` to `since`."""
    tenant, kind, key, call_id, run_id, tool, version, body, *rest = columns[:12]
    return Due(tenant, DueKind(kind), key, call_id, run_id, tool, version, json_value(body), *rest)


def due_columns(row: DueRow) -> DbRow:
    """Return the columns of a piece of due work, from `tenant` to `due_at`."""
    due = row.due
    return (due.tenant, str(due.kind), *due[2:7], json_text(due.body), *due[8:], row.due_at)


# --- requests for approval ------------------------------------------------------------------------


def held_columns(held: Held) -> DbRow:
    """Return the columns of a request, from `tenant` to `token`."""
    row = {name: getattr(held, name) for name in _HELD}
    row.update(status=held.status.value, demand=json_text(held.demand), votes=json_text(held.votes))
    if held.version_seen is not None:
        row["version_seen"] = json_text(held.version_seen)
    return tuple(row.values())


def held_from(columns: Sequence[Any]) -> Held:
    """Return a request, from `tenant` to `token`."""
    row = dict(zip(_HELD, columns, strict=False))
    row.update(status=HeldStatus(row["status"]), demand=json_value(row["demand"]))
    if row["version_seen"] is not None:
        row["version_seen"] = from_json(row["version_seen"])
    return Held(**{**row, "votes": tuple(from_json(row["votes"]))})


# --- registered contracts -------------------------------------------------------------------------


def contract_columns(row: RegisteredContract) -> DbRow:
    """Return the columns of a registered contract."""
    return (*row[:3], json_text(row.record), json_text(row.held), row.registered_at)


def contract_from(columns: Sequence[Any]) -> RegisteredContract:
    """Return a registered contract."""
    tool, version, contract_hash, record, held, registered_at = columns
    return RegisteredContract(
        tool, version, contract_hash, json_value(record), tuple(json_value(held)), registered_at
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
    row = {name: getattr(checkpoint, name) for name in _CHECKPOINT}
    return tuple({**row, "heads": json_text(heads)}.values())


def checkpoint_from(columns: DbRow) -> Checkpoint:
    """Return a checkpoint."""
    row = dict(zip(_CHECKPOINT, columns, strict=True))
    return Checkpoint(**{**row, "heads": _heads(row["heads"])})


def _heads(text: Any) -> Mapping[str, Head]:
    """Return the heads, or none for a text that no store has written: verification reports it."""
    try:
        return {name: _head(*head) for name, head in from_json(text).items()}
    except (AttributeError, TypeError, ValueError):
        return {}


def _head(number: Any, seq: Any, own: Any) -> Head:
    if type(number) is not int or type(seq) is not int:
        raise ValueError("number and place of a head must be whole numbers")
    return Head(number, seq, bytes.fromhex(own))


# --- reads ----------------------------------------------------------------------------------------


class SqlReads(Protocol):
    """Reads that are one statement of the same name on both databases."""

    async def _row(self, query: str, *values: Any) -> Any:
        """Return the row that a statement finds, by the statement's name; None: there is none."""

    async def _rows(self, query: str, *values: Any) -> Sequence[Any]:
        """Return all rows that a statement finds."""

    async def find_held(self, tenant: str, approval_id: str) -> Held | None:
        row = await self._row("find_held", tenant, approval_id)
        return None if row is None else held_from(row)

    async def list_held(
        self,
        tenant: str | None,
        status: HeldStatus,
        limit: int,
        between: tuple[Place, Place],
        *,
        newest_first: bool,
    ) -> Sequence[Held]:
        values = (status.value, *between[0], *between[1], limit)
        if tenant is None:
            query = "newest_of_all_held" if newest_first else "list_all_held"
            rows = await self._rows(query, *values)
        else:
            query = "newest_held" if newest_first else "list_held"
            rows = await self._rows(query, tenant, *values)
        return [held_from(row) for row in rows]

    async def find_due(self, tenant: str, kind: DueKind, key: str) -> Due | None:
        row = await self._row("find_due", tenant, str(kind), key)
        return None if row is None else due_from(row)

    async def changes(self, after: int) -> Sequence[tuple[int, Mapping[str, Any]]]:
        rows = await self._rows("changes", after)
        return [(number, json_value(what)) for number, what in rows]

    async def contracts(self, tools: Collection[str]) -> Sequence[RegisteredContract]:
        rows = await self._rows("contracts", json_text(sorted(tools)))
        return sorted(map(contract_from, rows), key=lambda row: row.registered_at)

    async def find_session(self, session: str) -> SessionRow | None:
        row = await self._row("find_session", session)
        return None if row is None else session_from(row)

    async def fetch(self, tenant: str, pointer: str) -> bytes | None:
        row = await self._row("fetch", tenant, pointer)
        return None if row is None else row[0]

    async def heads(self, tenant: str, since: int) -> Mapping[str, Head]:
        rows = await self._rows("heads", tenant, since)
        return {segment: Head(*head) for segment, *head in rows}
