"""Notices to the parties: drafted, submitted for review, sent once."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from office import letters
from office.rows import By, NoSuchError, NotAllowedError, Rows, made_id, now

__all__ = ["Notices"]

_DRAFT: Final = """
    SELECT drafts.*, companies.name, companies.mailbox FROM drafts
    JOIN cases USING (tenant, case_id) JOIN companies USING (tenant, register_no)
    WHERE tenant = :tenant AND draft_id = :draft_id
"""
_SAME_REVISION: Final = """
    SELECT draft_id FROM drafts WHERE tenant = :tenant
    AND case_id = :case_id AND template = :template AND revision = :revision
"""
_FACT: Final = """
    SELECT evidence_id, kind, received_on FROM evidence
    WHERE tenant = :tenant AND case_id = :case_id AND evidence_id = :evidence_id
"""
_MOVE: Final = """
    UPDATE drafts SET status = :status, version = version + 1
    WHERE tenant = :tenant AND draft_id = :draft_id
"""
_CALL_OFF: Final = """
    DELETE FROM notices WHERE tenant = :tenant AND call_key = :key AND sent_at IS NULL
"""
_SENT: Final = """
    UPDATE notices SET sent_at = :sent_at WHERE tenant = :tenant AND call_key = :key
"""


class Notices(Rows):
    """Drafts and notices of one office."""

    __slots__ = ()

    def draft(self, draft_id: str) -> dict[str, Any]:
        """Return a draft with the mailbox on its case file."""
        with self.cases.reading() as db:
            return self._draft(db, draft_id)

    def make_draft(
        self,
        by: By,
        case_id: str,
        template: str,
        *,
        revision: int,
        channel: str,
        facts: Sequence[str],
        amount_eur: int,
    ) -> dict[str, Any]:
        """Write a draft. A case has one of each kind and revision."""
        with self.cases.writing() as db:
            done = self._made(db, "drafts", by.key)
            if done is not None:
                return self._draft(db, done["draft_id"])
            case = self._case(db, case_id)
            known = [self._one(db, _FACT, case_id=case_id, evidence_id=fact) for fact in facts]
            cited = [fact for fact in known if fact is not None]
            if len(cited) < len(facts):
                raise NotAllowedError("A notice cites evidence of its own case only.")
            named = {"case_id": case_id, "template": template, "revision": revision}
            if self._one(db, _SAME_REVISION, **named) is not None:
                raise NotAllowedError("There is a draft of this revision. Make the next one.")
            draft_id = made_id(f"drf_{template}", self.tenant, case_id, revision)
            draft = {
                "draft_id": draft_id,
                **named,
                "channel": channel,
                "amount_eur": amount_eur,
                "facts": json.dumps(list(facts)),
                "subject": letters.subject(template, case),
                "body": letters.text(template, case, cited, amount_eur),
                "made_by": by.agent,
                "made_at": now(),
            }
            self._insert(db, "drafts", by, draft)
            return self._draft(db, draft_id)

    def put_in_review(self, by: By, draft_id: str, reason: str) -> dict[str, Any]:
        """Submit a draft for review. This approves nothing."""
        with self.cases.writing() as db:
            done = self._made(db, "reviews", by.key)
            if done is not None:
                return done
            draft = self._draft(db, draft_id)
            if draft["status"] != "draft":
                raise NotAllowedError(f"The draft is {draft['status'].replace('_', ' ')} already.")
            review = {
                "review_id": made_id("rev", self.tenant, draft_id),
                "draft_id": draft_id,
                "reason": reason,
                "asked_by": by.agent,
                "asked_at": now(),
            }
            self._insert(db, "reviews", by, review)
            self._move(db, draft_id, "in_review")
            return review

    # Sending: begun, then called off or settled ---------------------------------------------------

    def begin(self, by: By, draft_id: str, recipient: str, message_id: str) -> dict[str, Any]:
        """Record that a notice is about to be sent, and return the draft."""
        with self.cases.writing() as db:
            draft = self._draft(db, draft_id)
            if recipient != draft["mailbox"]:
                raise NotAllowedError("A notice goes to the mailbox on the case file.")
            if self._made(db, "notices", by.key) is not None:
                return draft
            if draft["status"] != "in_review":
                raise NotAllowedError("Only a draft in review is sent.")
            notice = {
                "notice_id": made_id("not", self.tenant, draft_id),
                "draft_id": draft_id,
                "recipient": recipient,
                "channel": draft["channel"],
                "message_id": message_id,
                "begun_at": now(),
            }
            self._insert(db, "notices", by, notice)
            return draft

    def call_off(self, key: str) -> None:
        """Remove the record of a sending that certainly did not happen."""
        with self.cases.writing() as db:
            db.execute(_CALL_OFF, {"tenant": self.tenant, "key": key})

    def settle(self, key: str, sent_at: str) -> dict[str, Any] | None:
        """Record that the mail server has the message. None if no sending has this key."""
        with self.cases.writing() as db:
            notice = self._made(db, "notices", key)
            if notice is not None and notice["sent_at"] is None:
                db.execute(_SENT, {"tenant": self.tenant, "key": key, "sent_at": sent_at})
                self._move(db, notice["draft_id"], "sent")
            return self._made(db, "notices", key)

    def _draft(self, db: sqlite3.Connection, draft_id: str) -> dict[str, Any]:
        found = self._one(db, _DRAFT, draft_id=draft_id)
        if found is None:
            raise NoSuchError("There is no such draft.")
        return found

    def _move(self, db: sqlite3.Connection, draft_id: str, status: str) -> None:
        db.execute(_MOVE, {"tenant": self.tenant, "draft_id": draft_id, "status": status})
