"""The promises, checked from outside: the effects server's own file against what is on record."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .planning import Operation, Plan
from .tools import UNDO

__all__ = ["Told", "key_of", "performed", "settled", "undo_key", "violations"]

Rows = Sequence[Mapping[str, Any]]
Record = Mapping[str, Any]


@dataclass(slots=True)
class Told:
    """What clients and approvers of one operation experienced."""

    operation: Operation
    op: str
    ok: int = 0
    """How many clients were told that it succeeded."""
    asked: int = 0
    """How often somebody was asked to approve it."""
    ended: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        return key_of(self.operation.tool, self.op)


def key_of(tool: str, op: str) -> str:
    return f"call:{tool}:{op}"


def undo_key(tool: str, op: str) -> str:
    """Under which the reversal of an operation is on record."""
    original = hashlib.sha256(key_of(tool, op).encode()).hexdigest()
    return f"undo:{UNDO[tool]}:{original}"


def performed(lines: Rows, tool: str, op: str) -> int:
    """How often the effects server did it."""
    return sum(line.get("what") == tool and line["op"] == op for line in lines)


def settled(record: Record) -> bool:
    """Whether nothing is left that a worker could do: all is settled, or waits for a person."""
    listed = {(kind, key) for kind, key in record["concerns"]}
    pending = [row for row in record["entries"] if row["status"] == "PENDING"]
    if any(("unknown", row["key"]) not in listed for row in pending):
        return False
    return all((row["kind"], row["key"]) in listed for row in record["due"])


def violations(
    plan: Plan, told: Sequence[Told], record: Record, lines: Rows, *, final: bool
) -> list[str]:
    """Every promise that was broken, one sentence each."""
    return [
        *_effects(plan, told, record, lines, final=final),
        *_entries(record),
        *_approvals(told, record, lines),
        *_budgets(record, lines),
        *_reversals(plan, told, record, lines),
        *_events(told, record, lines),
        *(f"the audit chain: {finding}" for finding in record["chain"]),
        *(f"the file is damaged: {damage}" for damage in record.get("damage", ())),
    ]


def _entry(record: Record, key: str) -> Mapping[str, Any] | None:
    return next((row for row in record["entries"] if row["key"] == key), None)


def _listed(record: Record, key: str) -> bool:
    return ["unknown", key] in [list(one) for one in record["concerns"]]


def _effects(
    plan: Plan, told: Sequence[Told], record: Record, lines: Rows, *, final: bool
) -> Iterator[str]:
    """Nothing twice, and nothing lost."""
    for one in told:
        times = performed(lines, one.operation.tool, one.op)
        entry = _entry(record, one.key)
        status = entry["status"] if entry else "no entry"
        if times > 1:
            yield f"{one.key} was performed {times} times"
        if one.ok and not times:
            yield f"{one.ok} clients were told that {one.key} succeeded; it was never performed"
        done = status in ("COMPLETED", "COMPENSATED")
        if times and not (done or _listed(record, one.key)):
            yield f"{one.key} was performed, and its entry is {status}, and on nobody's list"
        if done and not times:
            yield f"{one.key} is {status}, and was never performed"
        if final and not done:
            yield f"{one.key} ended as {status}, though its clients kept asking: {one.ended}"
    known = {(one.operation.tool, one.op) for one in told}
    known |= {(UNDO[tool], op) for tool, op in known if tool in UNDO}
    for line in lines:
        if "what" in line and (line["what"], line["op"]) not in known:
            yield f"nobody asked for {line['what']} {line['op']}"


def _entries(record: Record) -> Iterator[str]:
    """Everything ends settled, or on the operator's list."""
    for row in record["entries"]:
        if row["status"] == "PENDING" and not _listed(record, row["key"]):
            yield f"{row['key']} is PENDING ({row['phase']}), and on nobody's list"
        if row["status"] != "PENDING" and row["worker"] is not None:
            yield f"{row['key']} is {row['status']}, and still somebody's"
    for row in record["due"]:
        if row["failed"] is None:
            yield f"{row['kind']} of {row['key']} is still to be done"


def _approvals(told: Sequence[Told], record: Record, lines: Rows) -> Iterator[str]:
    """One approval for one execution; what never happened has its approval back."""
    for one in told:
        if not one.operation.approved:
            continue
        states = Counter(row["status"] for row in record["held"] if row["key"] == one.key)
        entry = _entry(record, one.key)
        status = entry["status"] if entry else "no entry"
        if one.asked > 1:
            yield f"{one.key} had to be approved {one.asked} times"
        if performed(lines, one.operation.tool, one.op) and states["spent"] != 1:
            yield f"{one.key} was performed, and its approvals are {dict(states)}"
        if status in ("no entry", "FAILED_RETRYABLE") and states["approved"] != 1:
            yield f"{one.key} never happened ({status}), and its approvals are {dict(states)}"


def _budgets(record: Record, lines: Rows) -> Iterator[str]:
    """Whatever was performed was paid for first."""
    spent: Counter[str] = Counter()
    for row in record["counters"]:
        spent[row["name"]] += row["spent"]
    for what, times in Counter(line["what"] for line in lines if "what" in line).items():
        if spent[f"tool/{what}"] < times:
            yield f"{what} was performed {times} times, and {spent[f'tool/{what}']:g} were spent"


def _reversals(plan: Plan, told: Sequence[Told], record: Record, lines: Rows) -> Iterator[str]:
    """What was reversed was reversed once, and is on record as that."""
    for one in told:
        undo = UNDO.get(one.operation.tool)
        if undo is None:
            continue
        times, entry = performed(lines, undo, one.op), _entry(record, one.key)
        status = entry["status"] if entry else "no entry"
        parked = ["compensate", one.key] in [list(concern) for concern in record["concerns"]]
        if times > 1:
            yield f"{one.key} was reversed {times} times"
        if status == "COMPENSATED" and not times:
            yield f"{one.key} is COMPENSATED, and was never reversed"
        if plan.compensates and status != "COMPENSATED" and not parked:
            yield f"{one.key} was to be reversed, is {status}, and is on nobody's list"
        if times and status != "COMPENSATED" and not parked:
            yield f"{one.key} was reversed, and is {status}"
        if status == "COMPENSATED" and _told_compensated(record) != 1:
            yield f"tool.compensated is on record {_told_compensated(record)} times"


def _events(told: Sequence[Told], record: Record, lines: Rows) -> Iterator[str]:
    """What was performed was on record before; what is done is on record as done."""
    for one in told:
        entry, tool = _entry(record, one.key), one.operation.tool
        kinds = Counter(row["type"] for row in record["events"] if row["tool"] == tool)
        times = sum(line.get("what") == tool for line in lines)
        if kinds["tool.started"] < times:
            yield f"{tool} was performed {times} times, and began {kinds['tool.started']} times"
        ends = kinds["tool.succeeded"] + kinds["tool.reconciled"]
        if entry and entry["status"] == "COMPLETED" and not ends:
            yield f"{one.key} is COMPLETED, and nothing on record says so"


def _told_compensated(record: Record) -> int:
    return sum(row["type"] == "tool.compensated" for row in record["events"])


def as_json(record: Record) -> str:
    return json.dumps(record, indent=1, default=str)
