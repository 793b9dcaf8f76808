"""The operator's list: what no machine will settle, and what a person can do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from counterseal.desk.base import Page, Seat, iso

__all__ = ["ACTIONS", "ConcernRow", "ConcernsDesk"]

ACTIONS: Mapping[str, tuple[str, ...]] = {
    "unknown": ("happened", "did_not_happen"),
    "verify": ("again", "compensate", "dismiss"),
    "compensate": ("again", "dismiss"),
    "execute": ("again", "dismiss"),
    "notify": ("again", "dismiss"),
}
"""What can be done about each kind of concern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcernRow:
    """One line of the list."""

    kind: str
    """unknown, verify, compensate, execute, notify."""
    key: str
    call_id: str
    run_id: str
    tool: str
    version: str
    since: float
    reason: str
    actions: tuple[str, ...]
    """What can be done about it."""

    def record(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in self.__slots__},
            "since": iso(self.since) if self.since else None,
            "actions": list(self.actions),
        }


class ConcernsDesk(Seat):
    async def concerns(self, *, limit: int = 50, cursor: str | None = None) -> Page[ConcernRow]:
        """What waits for a person, oldest first."""
        raise NotImplementedError

    async def happened(
        self, key: str, *, reason: str, data: Mapping[str, Any] | None = None
    ) -> None:
        """Say that a call took effect. NotThere where none waits under this key."""
        raise NotImplementedError

    async def did_not_happen(self, key: str, *, reason: str) -> None:
        """Say that a call had no effect."""
        raise NotImplementedError

    async def compensate(self, key: str, *, reason: str) -> None:
        """Have what a call did reversed."""
        raise NotImplementedError

    async def again(self, kind: str, key: str, *, reason: str) -> None:
        """Have work that failed tried once more."""
        raise NotImplementedError

    async def dismiss(self, kind: str, key: str, *, reason: str) -> None:
        """Take work that failed off the list."""
        raise NotImplementedError

    async def act(
        self,
        kind: str,
        key: str,
        action: str,
        *,
        reason: str,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Any of the above by name. NotThere for an action that there is not."""
        raise NotImplementedError
