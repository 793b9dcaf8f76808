"""Cases, evidence and policies of one office, and changes of a case's status."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from typing import Any, Final

from office.rows import By, NoSuchError, NotAllowedError, Rows, StaleError, now

__all__ = ["TRANSITIONS", "Office"]

TRANSITIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "open": ("under_review",),
    "under_review": ("awaiting_reply", "decided"),
    "awaiting_reply": ("under_review", "decided"),
    "decided": ("under_review", "closed"),
    "closed": ("under_review",),
}
"""The statuses that can follow each status."""

_WORD: Final = re.compile(r"\w+")
_DRAFTS: Final = """
    SELECT count(*) AS draft_count FROM drafts WHERE tenant = :tenant AND case_id = :case_id
"""
_EVIDENCE: Final = """
    SELECT evidence_id FROM evidence WHERE tenant = :tenant AND case_id = :case_id
    ORDER BY evidence_id
"""
_SEARCH: Final = """
    SELECT evidence_id, kind, evidence.title, received_on, substr(evidence.text, 1, 2000) AS text
    FROM evidence_words JOIN evidence ON evidence.rowid = evidence_words.rowid
    WHERE tenant = :tenant AND case_id = :case_id AND evidence_words MATCH :words
    ORDER BY bm25(evidence_words), evidence_id
"""
_POLICY: Final = """
    SELECT * FROM policies
    WHERE tenant = :tenant AND (policy_id = :policy_id OR topic = :topic)
"""
_CHANGE: Final = """
    SELECT * FROM status_history
    WHERE tenant = :tenant AND case_id = :case_id AND version = :version
"""
_MOVE: Final = """
    UPDATE cases SET status = :status, version = :version
    WHERE tenant = :tenant AND case_id = :case_id AND version = :version - 1
"""


class Office(Rows):
    """Reads cases, evidence and policies, and changes the status of cases."""

    __slots__ = ()

    def case(self, case_id: str) -> dict[str, Any]:
        """Return a case with its company and its possible next statuses."""
        asked = {"tenant": self.tenant, "case_id": case_id}
        with self.cases.reading() as db:
            case = self._case(db, case_id)
            drafts = self._one(db, _DRAFTS, case_id=case_id) or {}
            evidence = [row["evidence_id"] for row in db.execute(_EVIDENCE, asked)]
        follow = list(TRANSITIONS[case["status"]])
        return {**case, **drafts, "evidence_ids": evidence, "next_statuses": follow}

    def status_in(self, case: Mapping[str, Any], version: int) -> str | None:
        """Return the status of a case in a version, or None if it has no such version."""
        if case["version"] == version:
            return str(case["status"])
        with self.cases.reading() as db:
            change = self._one(db, _CHANGE, case_id=case["case_id"], version=version)
        return None if change is None else change["status"]

    def search(self, case_id: str, query: str, limit: int) -> tuple[int, list[dict[str, Any]]]:
        """Return how much evidence matches any of the words, and the best matches."""
        words = " OR ".join(f'"{word}"' for word in _WORD.findall(query))
        asked = {"tenant": self.tenant, "case_id": case_id, "words": words}
        with self.cases.reading() as db:
            self._case(db, case_id)
            found = db.execute(_SEARCH, asked).fetchall() if words else []
        return len(found), [dict(row) for row in found[:limit]]

    def policy(self, *, policy_id: str | None, topic: str | None) -> dict[str, Any]:
        """Return the policy with this id, or on this topic."""
        with self.cases.reading() as db:
            found = self._one(db, _POLICY, policy_id=policy_id, topic=topic)
        if found is None:
            raise NoSuchError("There is no such policy.")
        return found

    def change_status(
        self, by: By, case_id: str, status: str, *, expected_version: int, reason: str
    ) -> dict[str, Any]:
        """Change the status of a case, and record the change in the same transaction."""
        with self.cases.writing() as db:
            done = self._made(db, "status_history", by.key)
            if done is not None:
                return done
            case = self._case_in(db, case_id, expected_version)
            follow = TRANSITIONS[case["status"]]
            if status not in follow:
                raise NotAllowedError(f"After {case['status']} can come: {', '.join(follow)}.")
            return self._move(db, by, case, status, reason)

    def take_back(
        self, by: By, case_id: str, *, expected_version: int, reason: str
    ) -> dict[str, Any]:
        """Restore the status that a case had before its last change."""
        with self.cases.writing() as db:
            done = self._made(db, "status_history", by.key)
            if done is not None:
                return done
            case = self._case_in(db, case_id, expected_version)
            last = self._one(db, _CHANGE, case_id=case_id, version=expected_version)
            if last is None:
                raise NotAllowedError("The case was never changed.")
            return self._move(db, by, case, last["previous"], reason)

    def _case_in(self, db: sqlite3.Connection, case_id: str, version: int) -> dict[str, Any]:
        case = self._case(db, case_id)
        if case["version"] != version:
            told = f"The case is at version {case['version']}, not {version}. Read it again."
            raise StaleError(told)
        return case

    def _move(
        self, db: sqlite3.Connection, by: By, case: Mapping[str, Any], status: str, reason: str
    ) -> dict[str, Any]:
        change = {
            "case_id": case["case_id"],
            "version": case["version"] + 1,
            "previous": case["status"],
            "status": status,
            "reason": reason,
            "changed_by": by.agent,
            "changed_at": now(),
        }
        moved = db.execute(_MOVE, {"tenant": self.tenant, **change})
        if moved.rowcount != 1:
            raise StaleError("The case was changed meanwhile. Read it again.")
        self._insert(db, "status_history", by, change)
        return change
