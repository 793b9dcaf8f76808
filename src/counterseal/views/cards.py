"""A tool as people see it: a row of the list, its card, and how it was used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterseal.contract.sources.mcp.definition import Change as DefinitionChange
from counterseal.registry import Grant, Kill
from counterseal.views.quarantine import Quarantined
from counterseal.views.rollout import StepBack

__all__ = ["ToolPage", "ToolRow", "ToolUse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRow:
    """One tool: its newest version, and what stops it."""

    name: str
    version: str
    """The newest one; empty where only a quarantine knows the name."""
    versions: int
    effect: str | None
    risk: str
    owner: str
    status: str
    """Of the newest: active, deprecated, disabled, killed, sunset, quarantined."""
    drift: int
    """How many of its settings operators have left other than code declares."""
    grants: int
    """That count in this tenant."""
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
    """The newest version's, as its record; empty where only a quarantine knows the name."""
    versions: Sequence[Mapping[str, Any]]
    """Newest first, each as the registry exports it, with its `status` and `drift`."""
    grants: Sequence[Grant]
    kills: Sequence[Kill]
    changes: Sequence[Mapping[str, Any]]
    """What operators changed about it, newest first."""
    quarantine: Quarantined | None
    definition_changes: Sequence[DefinitionChange]
    steps_back: Sequence[StepBack]
    """Rollouts that can be undone, each with what it was before."""
    may_operate: bool
    """Whether this person may stop, enable, disable and roll it out."""

    def record(self) -> dict[str, Any]:
        return {
            **self.row.record(),
            "contract": dict(self.contract),
            "version_list": [dict(one) for one in self.versions],
            "grant_list": [grant.export() for grant in self.grants],
            "kill_list": [kill.export() for kill in self.kills],
            "changes": [dict(one) for one in self.changes],
            "quarantine": None if self.quarantine is None else self.quarantine.record(),
            "definition_changes": [change._asdict() for change in self.definition_changes],
            "steps_back": [one._asdict() for one in self.steps_back],
            "may_operate": self.may_operate,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """How a tool's latest calls ended."""

    window: str
    calls: int
    codes: Mapping[str, int]
    more: bool
    """Whether there were more calls than were counted."""

    def record(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in self.__slots__}, "codes": dict(self.codes)}
