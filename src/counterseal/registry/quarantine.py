"""Quarantine: tools whose definition, made elsewhere, is not the one that a person accepted.

Each process finds that out by itself, and forgets it with its end: the lock file is what lasts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Quarantine", "Why"]


class Why(StrEnum):
    CHANGED = "changed"
    NEW = "new"
    GONE = "gone"
    SHADOWED = "shadowed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """A name that is not to be used. It may have been used before, or may never have been."""

    name: str
    why: Why
    tenants: frozenset[str] = frozenset()
    """To whom the name is known at all; empty: to every tenant."""

    @classmethod
    def of(cls, name: str, why: Why, tenants: Iterable[str] = ()) -> Quarantine:
        return cls(name=name, why=why, tenants=frozenset(tenants))

    def allows_tenant(self, tenant: str) -> bool:
        return not self.tenants or tenant in self.tenants

    @property
    def message(self) -> str:
        """For the caller: nothing in it comes from who made the definition."""
        return f"{self.name} is quarantined: {_MESSAGES[self.why]}"


_MESSAGES = {
    Why.CHANGED: "its definition has changed, and nobody has accepted that yet.",
    Why.NEW: "it is new, and nobody has accepted it yet.",
    Why.GONE: "its server does not have it any more.",
    Why.SHADOWED: "another server has a tool of the same name.",
}
