"""The kill switch: what is stopped, by which pull, and why.

Kills may overlap. Each is undone on its own, and a tool is stopped while any of them covers it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from counterseal.contract.effects import Effect
from counterseal.errors import RegistryError
from counterseal.registry.records import RegistryRecord, iso

__all__ = ["Kill", "KillSwitch", "known_effect"]

Scope = tuple[str, str]
"""Tagged, because an effect equals its text and a tool may be called "draft"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One pull of the switch. With neither tool nor effect it covers everything."""

    id: str
    reason: str
    at: datetime
    by: str = ""
    tool: str | None = None
    effect: Effect | None = None

    def __post_init__(self) -> None:
        if self.tool is not None and self.effect is not None:
            raise RegistryError("give a tool or an effect, not both: each kill stops one thing")

    @property
    def scope(self) -> Scope:
        if self.tool is not None:
            return ("tool", self.tool)
        return ("all", "") if self.effect is None else ("effect", self.effect.value)

    def covers(self, record: RegistryRecord) -> bool:
        return self.scope in _scopes_over(record)

    def export(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "tool": self.tool,
            "effect": None if self.effect is None else self.effect.value,
            "reason": self.reason,
            "by": self.by,
            "at": iso(self.at),
        }


def known_effect(name: str) -> Effect:
    """RegistryError says which there are."""
    try:
        return Effect(name)
    except ValueError:
        raise RegistryError(f"effect: {name!r} is none of {', '.join(Effect)}") from None


class KillSwitch:
    """The kills in force, oldest first."""

    def __init__(self) -> None:
        self._kills: dict[str, Kill] = {}
        self._scopes: Counter[Scope] = Counter()

    def __iter__(self) -> Iterator[Kill]:
        return iter(self._kills.values())

    def get(self, kill_id: str) -> Kill:
        if kill_id not in self._kills:
            raise RegistryError(f"{kill_id} is not in force; {', '.join(self._kills) or 'none'} is")
        return self._kills[kill_id]

    def add(self, kill: Kill) -> None:
        self._kills[kill.id] = kill
        self._scopes[kill.scope] += 1

    def remove(self, kill: Kill) -> None:
        if self._kills.get(kill.id) != kill:
            raise RegistryError(f"{kill.id} is not in force")
        del self._kills[kill.id]
        self._scopes[kill.scope] -= 1
        if not self._scopes[kill.scope]:
            del self._scopes[kill.scope]

    def discard(self, kill_id: str) -> None:
        """Undo a kill, if it is in force."""
        if kill_id in self._kills:
            self.remove(self._kills[kill_id])

    def stops(self, record: RegistryRecord) -> bool:
        if not self._scopes:
            return False
        return any(scope in self._scopes for scope in _scopes_over(record))


def _scopes_over(record: RegistryRecord) -> tuple[Scope, ...]:
    effect = record.contract.effect
    return (
        ("all", ""),
        ("tool", record.name),
        ("effect", "" if effect is None else effect.value),
    )
