"""What operators changed, in a few words each: kills, changes, and where code is left behind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from counterseal.cli.output import one_line

if TYPE_CHECKING:
    from counterseal.registry import Kill, RegistryChange

__all__ = ["drift", "in_force", "scope", "told", "which"]


def which(tool: str, version: str | None) -> str:
    """A tool, or one version of it."""
    return tool if version is None else f"{tool} {version}"


def scope(kill: Kill) -> str:
    """What a kill stops."""
    if kill.tool is not None:
        return kill.tool
    return "everything" if kill.effect is None else f"every {kill.effect.value} tool"


def in_force(kill: Kill) -> str:
    """A kill, what it stops, who pulled it and why."""
    return one_line(f"{kill.id} stops {scope(kill)} ({kill.by}: {kill.reason})")


def told(change: RegistryChange) -> str:
    """What was changed."""
    if change.kill is not None:
        return f"kill {scope(change.kill)} ({change.kill.id})"
    if change.restores is not None:
        return f"restore {change.restores}"
    if change.op in ("key", "unkey", "user", "unuser"):
        return _who(change)
    if change.grant is not None:
        side = "to" if change.op == "grant" else "from"
        named = which(change.grant.tool, change.grant.version)
        return f"{change.op} {named} {side} {one_line(change.grant.agent)}"
    if change.credential is not None:
        who = change.credential.principal
        return f"key {change.credential.key_id} for {one_line(f'{who.agent} of {who.tenant}')}"
    if change.unkeys is not None:
        return f"unkey {change.unkeys}"
    named = f"{change.op} {which(change.tool or '', change.version)}"
    share = change.sets.get("rollout_percentage")
    return named if share is None else f"{named} to {share}%"


def _who(change: RegistryChange) -> str:
    """Who is let in, or no more."""
    if change.credential is not None:
        return (
            f"issue key {change.credential.key_id} to {one_line(change.credential.principal.agent)}"
        )
    if change.unkeys is not None:
        return f"revoke key {change.unkeys}"
    if change.user is not None:
        return f"user {change.user.name}: {change.did.replace('_', ' ')}"
    return f"remove user {change.unuser}"


def drift(row: dict[str, Any]) -> str:
    """One line of a record's drift: what is stored, instead of what, by whom and why."""
    who = f"({one_line(row['by'])}: {one_line(row['reason'])})"
    declared, stored = row["declared"], row["stored"]
    if row["field"] == "grants" and stored is None:
        return f"taken from {one_line(declared['agent'])} {who}"
    if row["field"] == "grants":
        return f"granted to {one_line(stored['agent'])} {who}"
    if row["field"] == "deprecation":
        return f"{'not deprecated' if stored is None else 'deprecated'} {who}"
    return f"{row['field']}: {json.dumps(stored)}, not {json.dumps(declared)} {who}"
