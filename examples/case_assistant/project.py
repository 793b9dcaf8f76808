"""The offices' project folder: configuration, secrets, keys and the case database.

`write_project(home)`, or `python project.py HOME`, writes what `counterseal serve` needs. Existing
cases, keys and passwords are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from office import cases, register
from office.hooks import SMTP_FILE
from office.stock import TENANTS

from counterseal.contract.sources.mcp.definition import Definition
from counterseal.contract.sources.mcp.lock import Lock
from counterseal.keys import Purpose, new_key

__all__ = ["ROLES", "TENANTS", "Role", "add_register", "mailboxes", "write_project"]

HERE: Final = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Role:
    """Tools of an agent, with the number of calls per run."""

    tools: Mapping[str, int]
    scopes: Sequence[str]


ROLES: Final[Mapping[str, Role]] = {
    "intake-agent": Role(
        {
            "get_case_summary": 20,
            "search_case_evidence": 10,
            "fetch_policy_excerpt": 10,
            "update_case_status": 3,
        },
        ("case:read", "evidence:read", "policy:read", "case:write"),
    ),
    "risk-agent": Role(
        {
            "get_case_summary": 20,
            "search_case_evidence": 20,
            "fetch_policy_excerpt": 10,
            "create_notice_draft": 5,
            "request_human_approval": 5,
        },
        ("case:read", "evidence:read", "policy:read", "notice:draft", "approval:request"),
    ),
    "notice-agent": Role(
        {
            "get_case_summary": 20,
            "fetch_policy_excerpt": 10,
            "send_approved_notice": 3,
            "update_case_status": 5,
        },
        ("case:read", "policy:read", "notice:send", "case:write"),
    ),
}
"""The three agents. Each works in both offices, with one key per office."""


REGISTER_TOOLS: Final[Mapping[str, int]] = {
    "search_filings": 5,
    "file_entry": 3,
    "revoke_permit": 1,
}
"""What the risk agent may use of the companies register, with the number of calls per run."""


def mailboxes(tenant: str) -> str:
    """The domain of an office's register, with the official mailboxes of companies."""
    return f"register.{tenant}.example"


def write_project(
    home: Path | str,
    *,
    store_url: str = "sqlite:///counterseal.db",
    smtp: tuple[str, int] = ("127.0.0.1", 2525),
    host: str = "127.0.0.1",
    port: int = 8787,
    public_url: str | None = None,
    approval_wait_seconds: float = 20,
    approvers: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Write the project and return the path of its counterseal.toml.

    `approvers` may decide on the command line: names with roles. The console's users are in the
    store.
    """
    home = Path(home)
    home.mkdir(parents=True, exist_ok=True)
    cases.Cases.make(home / cases.FILE)
    _make_secrets(home / "secrets")
    _make_keys(home / "keys")
    (home / SMTP_FILE).write_text(f"{smtp[0]}:{smtp[1]}\n", encoding="utf-8")
    gateway = {"host": host, "port": port, "approval_wait_seconds": approval_wait_seconds}
    if public_url is not None:
        gateway["public_url"] = public_url
    file = home / "counterseal.toml"
    file.write_text(_config(store_url, gateway, approvers or {}), encoding="utf-8")
    return file


def _config(
    store_url: str, gateway: Mapping[str, Any], approvers: Mapping[str, Sequence[str]]
) -> str:
    tables = [
        _table("store", {"url": store_url}),
        _table("tools", {"paths": [str(HERE / "tools.py"), str(HERE / "office" / "reversals.py")]}),
        _table("policy", {"paths": [str(HERE / "rules.yaml")]}),
        _table("secrets", {"path": "secrets"}),
        _table("keys", {"path": "keys"}),
        _table("gateway", gateway),
    ]
    tables += [
        _table(f"tenants.{tenant}.facts", {"mailboxes": mailboxes(tenant)}) for tenant in TENANTS
    ]
    for agent, role in ROLES.items():
        # For `counterseal call --as`; over HTTP the key names the agent.
        mine = {"tenant": TENANTS[-1], "user": f"{agent}-desk", "scopes": list(role.scopes)}
        tables.append(_table(f"agents.{agent}", mine))
        for tool, calls in role.tools.items():
            grant = {"agent": agent, "tool": tool, "max_calls_per_run": calls}
            tables.append(_table("[grants]", grant))
    tables += [_table(f"approvers.{name}", {"roles": list(r)}) for name, r in approvers.items()]
    # A notice that the rules allow, for `counterseal evaluate`.
    fixture = str(HERE / "good_notice.yaml")
    tables.append(_table("evaluation.send_approved_notice", {"fixture": fixture}))
    return "\n".join(tables)


def add_register(home: Path) -> None:
    """Put the companies register behind the gateway of a project.

    counterseal.lock has the definitions that were reviewed; one of them is not the server's today.
    """
    command = [sys.executable, "-m", "office.register", str(home / register.BOOKS)]
    upstream = {"command": command, "cwd": str(HERE), "tenants": [TENANTS[-1]]}
    tables = [_table(f"upstreams.{register.SERVER}", upstream)]
    for tool, calls in REGISTER_TOOLS.items():
        grant = {"agent": "risk-agent", "tool": tool, "max_calls_per_run": calls}
        tables.append(_table("[grants]", grant))
    with (home / "counterseal.toml").open("a", encoding="utf-8") as file:
        file.write("\n" + "\n".join(tables))
    overlay = home / "overlays" / f"{register.SERVER}.yaml"
    overlay.parent.mkdir(exist_ok=True)
    overlay.write_text(register.OVERLAY, encoding="utf-8")
    lock = home / "counterseal.lock"
    if not lock.exists():
        Lock.update(lock, _with_register)


def _with_register(lock: Lock) -> Lock:
    at = datetime.now(UTC).isoformat(timespec="seconds")
    for wire in register.accepted_definitions():
        lock = lock.accept(register.SERVER, Definition.of(wire), by="reviewer", at=at)
    return lock


def _table(name: str, values: Mapping[str, Any]) -> str:
    """Return a value as TOML, which shares the syntax of texts, numbers and lists with JSON."""
    lines = (f"{key} = {json.dumps(value)}" for key, value in values.items())
    return "\n".join([f"[{name}]", *lines, ""])


def _make_secrets(folder: Path) -> None:
    """Write a password for each office's mail account."""
    for tenant in TENANTS:
        file = folder / tenant / "smtp_password"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o600)
            file.write_text(secrets.token_urlsafe(24), encoding="utf-8")


def _make_keys(folder: Path) -> None:
    """Make the keys that sign approvals, seal the record and encrypt stored values."""
    for purpose in Purpose:
        if not list(folder.glob(f"{purpose.value}-*")):
            new_key(folder, purpose, datetime.now(UTC))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("home", type=Path, help="the folder to write it to")
    parser.add_argument("--smtp", default="127.0.0.1:2525", help="where the mail server listens")
    parser.add_argument("--port", type=int, default=8787, help="where the gateway will listen")
    options = parser.parse_args()
    smtp_host, _, smtp_port = options.smtp.rpartition(":")
    file = write_project(options.home, smtp=(smtp_host, int(smtp_port)), port=options.port)
    print(f"{os.path.relpath(file)} is written.")


if __name__ == "__main__":
    main()
