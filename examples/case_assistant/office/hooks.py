"""Hooks behind the tools: the tenant's rows, probes of state, and mail accounts.

A hook reads the world for Counterseal: before a call, so that rules and approvers see the target,
and after it, to verify the call or to find out an unknown outcome.
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
"""Codes of the office's refusals; all others are SEMANTIC_INVALIDITY."""
SMTP_FILE: Final = "smtp.txt"


def home() -> Path:
    """Return the folder with the office's files."""
    return Path(os.environ.get("CASE_ASSISTANT_HOME", "."))


def _database() -> cases.Cases:
    try:
        return cases.Cases.open(home() / cases.FILE)
    except FileNotFoundError as error:
        raise NotSentError(str(error)) from None


def office(ctx: Context) -> Office:
    """Return the cases of the caller's tenant. No argument can select another tenant."""
    return Office(_database(), ctx.tenant)


def notices(ctx: Context) -> Notices:
    """Return the drafts and notices of the caller's tenant."""
    return Notices(_database(), ctx.tenant)


def by(ctx: Context) -> By:
    return By(ctx.agent, ctx.key or "")


def case_state(
    case_id: str, ctx: Context, expected_version: int | None = None
) -> dict[str, Any] | None:
    """Return the current case, and its status after the version that a change is based on."""
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
    """Return the case as a change would leave it, for the approvers."""
    return {"status": status, "version": expected_version + 1}


def draft_state(draft_id: str, ctx: Context) -> dict[str, Any] | None:
    """Return the current draft, with the mailbox on its case file."""
    try:
        draft = notices(ctx).draft(draft_id)
    except NoSuchError:
        return None
    shown = ("status", "case_id", "mailbox", "template", "channel", "subject", "body", "version")
    state = {name: draft[name] for name in shown}
    return {"company": draft["name"], **state, "laid_before_people": draft["status"] != "draft"}


def mailed_notice(ctx: Context) -> SentNotice | None:
    """Look up an unanswered sending in the mail server's records."""
    received = mail.MailBooks(home() / mail.FILE).find(message_id(ctx))
    if received is None:
        return None
    # Update our own record, so that it agrees with the server's.
    notice = notices(ctx).settle(ctx.key or "", received["received_at"])
    return None if notice is None else SentNotice.model_validate(notice)


def message_id(ctx: Context) -> str:
    return f"<{ctx.key}@{ctx.tenant}.example>"


def account(ctx: Context, password: str) -> mail.Account:
    """Return the account of the caller's tenant at the mail server."""
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
    """Drop the topic if an id is given."""
    return call.without("topic") if call.arguments.get("policy_id") is not None else None
