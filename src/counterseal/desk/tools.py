"""Tools: the registry as one tenant sees it, and what operators do about it.

The registry is shared. Who stops, enables or rolls out a tool does so for every tenant that has
it, and needs the operator's role everywhere, unless nobody else has that tool. Grants are a
tenant's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from counterseal.contract.effects import Effect
from counterseal.contract.mcp.changes import Change as DefinitionChange
from counterseal.desk.base import Seat
from counterseal.registry import Change, Grant, Kill

__all__ = ["Quarantined", "Quarantines", "ToolPage", "ToolRow", "ToolsDesk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A name that is not to be used until a person has looked at its definition."""

    name: str
    server: str
    why: str
    """changed, new, gone, shadowed."""
    message: str
    hash: str | None = None
    """Of the definition as it is now: what would be accepted. None: there is none."""
    accepted: str | None = None
    """Of the one that was accepted; None: none was."""
    tenants: frozenset[str] = frozenset()
    """Who knows the name at all; empty: every tenant."""

    def record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "server": self.server,
            "why": self.why,
            "message": self.message,
            "hash": self.hash,
            "accepted": self.accepted,
        }


class Quarantines(Protocol):
    """What is kept out, and the way in. The gateway has one; others have none."""

    def list(self) -> Sequence[Quarantined]: ...

    def changes(self, name: str) -> Sequence[DefinitionChange]:
        """What differs from the definition that was accepted."""

    async def accept(self, name: str, hash: str, by: str) -> None:  # noqa: A002 - its name
        """Let exactly this definition in. CountersealError when it is another by now."""

    async def refuse(self, name: str, by: str, reason: str) -> None:
        """Keep it out, and say so on record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRow:
    """One tool: its newest version, and what stops it."""

    name: str
    version: str
    """The newest one."""
    versions: int
    effect: str | None
    risk: str
    owner: str
    status: str
    """Of the newest: active, disabled, killed, quarantined, deprecated…"""
    drift: int
    """How many of its settings operators have left other than code declares."""
    grants: int
    """Of this tenant."""
    kills: Sequence[str]
    """Ids of the kills that cover it."""

    def record(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in self.__slots__ if name != "kills"},
            "kills": list(self.kills),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPage:
    """A tool's card."""

    row: ToolRow
    contract: Mapping[str, Any]
    """The newest version's, as its record."""
    versions: Sequence[Mapping[str, Any]]
    """Newest first: version, status, enabled, note, rollout_percentage, deprecation, drift, hash."""
    grants: Sequence[Mapping[str, Any]]
    kills: Sequence[Kill]
    changes: Sequence[Mapping[str, Any]]
    """What operators changed about it, newest first."""
    quarantine: Quarantined | None
    definition_changes: Sequence[DefinitionChange]
    may_operate: bool
    """Whether this person may stop, enable, disable and roll it out."""

    def record(self) -> dict[str, Any]:
        return {
            **self.row.record(),
            "contract": dict(self.contract),
            "version_list": [dict(one) for one in self.versions],
            "grant_list": [dict(one) for one in self.grants],
            "kill_list": [kill.export() for kill in self.kills],
            "changes": [dict(one) for one in self.changes],
            "quarantine": None if self.quarantine is None else self.quarantine.record(),
            "definition_changes": [change._asdict() for change in self.definition_changes],
            "may_operate": self.may_operate,
        }


class ToolsDesk(Seat):
    quarantines: Quarantines | None = None

    def tools(self) -> list[ToolRow]:
        """Every tool that this tenant can have, by name; quarantined ones too."""
        raise NotImplementedError

    def tool(self, name: str) -> ToolPage:
        """NotThere."""
        raise NotImplementedError

    def versions(self, name: str) -> list[dict[str, Any]]:
        """Its versions, newest first. NotThere."""
        raise NotImplementedError

    async def use(self, name: str, window: str = "24h") -> dict[str, int]:
        """How its calls ended in a window: code to count. NotThere."""
        raise NotImplementedError

    def grants(self, *, tool: str | None = None, agent: str | None = None) -> list[Grant]:
        """Those that count in this tenant."""
        raise NotImplementedError

    def kills(self) -> list[Kill]:
        """What is stopped here, for the banner: all kills that cover a tool of this tenant."""
        raise NotImplementedError

    async def preview_kill(
        self, *, tool: str | None = None, effect: Effect | str | None = None
    ) -> list[ToolRow]:
        """What such a kill would stop that nothing else has stopped yet."""
        raise NotImplementedError

    async def kill(
        self, *, tool: str | None = None, effect: Effect | str | None = None, reason: str
    ) -> Kill:
        """Stop a tool, every tool of an effect, or (with neither) everything."""
        raise NotImplementedError

    async def restore(self, kill_id: str, *, reason: str) -> Change:
        """Undo one kill. NotThere."""
        raise NotImplementedError

    async def enable(self, name: str, version: str | None = None, *, reason: str) -> Change:
        raise NotImplementedError

    async def disable(self, name: str, version: str | None = None, *, reason: str) -> Change:
        raise NotImplementedError

    async def set_rollout(self, name: str, version: str, percentage: int, *, reason: str) -> Change:
        raise NotImplementedError

    async def grant(self, grant: Grant, *, reason: str) -> Change:
        """Add a grant of this tenant's."""
        raise NotImplementedError

    async def revoke(self, grant: Grant, *, reason: str) -> Change:
        """Take a grant of this tenant's back. NotThere."""
        raise NotImplementedError

    def quarantined(self) -> list[Quarantined]:
        """What is kept out of this tenant's sight until a person accepts it."""
        raise NotImplementedError

    def definition_changes(self, name: str) -> list[DefinitionChange]:
        """What differs from what was accepted. NotThere."""
        raise NotImplementedError

    async def accept(self, name: str, hash: str) -> None:  # noqa: A002 - what the caller has seen
        """Let exactly this definition in. NotThere."""
        raise NotImplementedError

    async def refuse(self, name: str, *, reason: str) -> None:
        """Keep it out, and say so on record. NotThere."""
        raise NotImplementedError
