"""What stands behind the tools: whose rows, which state is probed, how mail goes out.

A hook reads the world for Counterseal: before a call, so that rules and approvers see what it acts
on, and after it, to verify it or to find out what became of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from counterseal import Context, NotSentError, ProposedCall
from office import cases, mail
from office.casework import Office
from office.forms import SentNotice
from office.notices import Notices
from office.rows import By, NoSuchError

__all__ = [
    "ERRORS",
    "OWNER",
    "SMTP_FILE",
    "account",
    "by",
    "by_policy_id",
    "case_after",
    "case_state",
    "draft_state",
    "home",
    "mailed_notice",
    "message_id",
    "named_one_way",
    "notices",
    "office",
]

OWNER: Final = "case-office"
ERRORS: Final = {
    "error_taxonomy_mapping": {
        "StaleError": "STALE_STATE",
        "MailDownError": "DEPENDENCY_UNAVAILABLE",
    }
}
"""What the office refuses is SEMANTIC_INVALIDITY, with the exception of these."""
SMTP_FILE: Final = "smtp.txt"


def home() -> Path:
    """The folder that the office's files lie in."""
    return Path(os.environ.get("CASE_ASSISTANT_HOME", "."))


def _database() -> cases.Cases:
    try:
        return cases.Cases.open(home() / cases.FILE)
    except FileNotFoundError as error:
        raise NotSentError(str(error)) from None


def office(ctx: Context) -> Office:
    """The cases of whom the call is made for. No argument can choose another tenant's."""
    return Office(_database(), ctx.tenant)


def notices(ctx: Context) -> Notices:
    """Their drafts and notices."""
    return Notices(_database(), ctx.tenant)


def by(ctx: Context) -> By:
    return By(ctx.agent, ctx.key or "")


def case_state(
    case_id: str, ctx: Context, expected_version: int | None = None
) -> dict[str, Any] | None:
    """A case as it is now, and what it became after the version that a change rests on."""
    rows = office(ctx)
    try:
        case = rows.case(case_id)
    except NoSuchError:
        return None
    shown = ("status", "next_statuses", "evidence_ids", "version")
    state = {"company": case["name"], **{name: case[name] for name in shown}}
    became = None if expected_version is None else rows.status_in(case, expected_version + 1)
    return state if became is None else {**state, "became": became}


def case_after(status: str, expected_version: int) -> dict[str, Any]:
    """What approvers are told that a change would lead to."""
    return {"status": status, "version": expected_version + 1}


def draft_state(draft_id: str, ctx: Context) -> dict[str, Any] | None:
    """A draft as it is now, and the mailbox on the file of its case."""
    try:
        draft = notices(ctx).draft(draft_id)
    except NoSuchError:
        return None
    shown = ("status", "case_id", "mailbox", "template", "channel", "subject", "body", "version")
    state = {name: draft[name] for name in shown}
    return {"company": draft["name"], **state, "laid_before_people": draft["status"] != "draft"}


def mailed_notice(ctx: Context) -> SentNotice | None:
    """What became of a sending without an answer: the mail server's books tell."""
    received = mail.MailBooks(home() / mail.FILE).find(message_id(ctx))
    if received is None:
        return None
    # Our own books follow the server's, so that both say the same from now on.
    notice = notices(ctx).settle(ctx.key or "", received["received_at"])
    return None if notice is None else SentNotice.model_validate(notice)


def message_id(ctx: Context) -> str:
    return f"<{ctx.key}@{ctx.tenant}.example>"


def account(ctx: Context, password: str) -> mail.Account:
    """The caller's own account at the mail server."""
    place = os.environ.get("CASE_ASSISTANT_SMTP")
    if place is None:
        place = (home() / SMTP_FILE).read_text(encoding="utf-8").strip()
    host, _, port = place.rpartition(":")
    return mail.Account(host, int(port), ctx.tenant, password)


def named_one_way(
    call: ProposedCall, _state: Mapping[str, Any], _config: Mapping[str, Any]
) -> bool:
    return (call.arguments.get("policy_id") is None) != (call.arguments.get("topic") is None)


def by_policy_id(
    call: ProposedCall, _state: Mapping[str, Any], _config: Mapping[str, Any]
) -> ProposedCall | None:
    """An id says it all: a topic beside it is one too many."""
    return call.without("topic") if call.arguments.get("policy_id") is not None else None
