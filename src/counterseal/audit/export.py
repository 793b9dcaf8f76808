"""Writes events as lines of text for other programs: JSON Lines, or CSV for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from typing import Any, Final

from counterseal.audit.events import Caller, Event

COLUMNS: Final = (
    "event_id",
    "type",
    *Caller._fields,
    "occurred_at",
    "decision",
    "policy_version",
    "external_ref",
    "body",
)
"""The fields of an event's record, in its order; in CSV the body is a cell of JSON."""

_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")
"""Characters that a spreadsheet takes for the beginning of a formula."""


def json_line(event_id: str, event: Event) -> str:
    """Return an event as one line of JSON, in ASCII, so that nothing in it can break the line."""
    return f"{_json(event.record(event_id))}\n"


def csv_head() -> str:
    """Return the header line: the column names."""
    return _line(COLUMNS)


def csv_line(event_id: str, event: Event) -> str:
    """Return an event as a line of CSV.

    A cell that a spreadsheet would run as a formula starts with an apostrophe.
    """
    record = event.record(event_id)
    record["body"] = _json(record["body"]) if record["body"] else ""
    return _line(_harmless(record[name]) for name in COLUMNS)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=dict)


def _harmless(value: Any) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(_FORMULAS) else text


def _line(cells: Iterable[str]) -> str:
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue()
