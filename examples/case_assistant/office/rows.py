"""The rows of one tenant in the case database, for `casework` and `notices`.

Every statement names the tenant, so that cases of other tenants do not exist for it. A change is
stored under the key of its call, so that a repeated call finds its result. Refusals have texts that
an agent may read, and change nothing.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from counterseal import NotDoneError
from office.cases import Cases

__all__ = ["By", "NoSuchError", "NotAllowedError", "Rows", "StaleError", "made_id", "now"]

_CASE: Final = """
    SELECT * FROM cases JOIN companies USING (tenant, register_no)
    WHERE tenant = :tenant AND case_id = :case_id
"""


class NoSuchError(NotDoneError):
    """This office has no such row."""


class NotAllowedError(NotDoneError):
    """The office's rules forbid it."""


class StaleError(NotDoneError):
    """The case has changed since it was read."""


@dataclass(frozen=True, slots=True)
class By:
    """Author and key of a change."""

    agent: str
    key: str


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one tenant."""

    cases: Cases
    tenant: str

    def _one(self, db: sqlite3.Connection, statement: str, **asked: Any) -> dict[str, Any] | None:
        """Return the first row of this tenant, or None."""
        row = db.execute(statement, {"tenant": self.tenant, **asked}).fetchone()
        return None if row is None else dict(row)

    def _case(self, db: sqlite3.Connection, case_id: str) -> dict[str, Any]:
        """Return a case with its company."""
        found = self._one(db, _CASE, case_id=case_id)
        if found is None:
            raise NoSuchError("There is no such case.")
        return found

    def _made(self, db: sqlite3.Connection, table: str, key: str) -> dict[str, Any] | None:
        """Return the row that a call with this key has written, or None."""
        statement = f"SELECT * FROM {table} WHERE tenant = :tenant AND call_key = :key"  # noqa: S608 - a table of ours
        return self._one(db, statement, key=key)

    def _insert(self, db: sqlite3.Connection, table: str, by: By, row: Mapping[str, Any]) -> None:
        whole = {**row, "tenant": self.tenant, "call_key": by.key}
        columns, values = ", ".join(whole), ", ".join(f":{name}" for name in whole)
        db.execute(f"INSERT INTO {table} ({columns}) VALUES ({values})", whole)  # noqa: S608 - as above


def made_id(prefix: str, *parts: object) -> str:
    """Return an id that depends only on the content."""
    return f"{prefix}_{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
