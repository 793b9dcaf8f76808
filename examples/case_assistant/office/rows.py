"""The rows of one tenant in the case database: what `casework` and `notices` are made of.

Every statement names the tenant, so that a case of somebody else's is as good as one that does not
exist. A change is written down under the key of its call: the same call made again finds what it
did. What is refused is refused in words that an agent may read, and nothing of it is done.
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
    """What is asked for is not there: not in this office, at least."""


class NotAllowedError(NotDoneError):
    """The office's own rules don't let it happen."""


class StaleError(NotDoneError):
    """The case was changed since it was read."""


@dataclass(frozen=True, slots=True)
class By:
    """Who changes something, and under which key."""

    agent: str
    key: str


@dataclass(frozen=True, slots=True)
class Rows:
    """What one tenant has in the database."""

    cases: Cases
    tenant: str

    def _one(self, db: sqlite3.Connection, statement: str, **asked: Any) -> dict[str, Any] | None:
        """The first row that is this tenant's."""
        row = db.execute(statement, {"tenant": self.tenant, **asked}).fetchone()
        return None if row is None else dict(row)

    def _case(self, db: sqlite3.Connection, case_id: str) -> dict[str, Any]:
        """A case with its company."""
        found = self._one(db, _CASE, case_id=case_id)
        if found is None:
            raise NoSuchError("There is no such case.")
        return found

    def _made(self, db: sqlite3.Connection, table: str, key: str) -> dict[str, Any] | None:
        """What a call under this key has written before."""
        statement = f"SELECT * FROM {table} WHERE tenant = :tenant AND call_key = :key"  # noqa: S608 - a table of ours
        return self._one(db, statement, key=key)

    def _insert(self, db: sqlite3.Connection, table: str, by: By, row: Mapping[str, Any]) -> None:
        whole = {**row, "tenant": self.tenant, "call_key": by.key}
        columns, values = ", ".join(whole), ", ".join(f":{name}" for name in whole)
        db.execute(f"INSERT INTO {table} ({columns}) VALUES ({values})", whole)  # noqa: S608 - as above


def made_id(prefix: str, *parts: object) -> str:
    """The same thing has the same id, whoever writes it down."""
    return f"{prefix}_{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
