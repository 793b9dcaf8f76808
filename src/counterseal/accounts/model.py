"""Who somebody is once they have signed in, and what their roles let them do. Pure.

Roles are per tenant; those that a user has under `EVERYWHERE` count in every tenant, and only they
reach what all tenants share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

__all__ = ["EVERYWHERE", "Person", "Role"]

EVERYWHERE: Final = "*"
"""In a user's tenants: every one of them."""


class Role(StrEnum):
    """What the product asks for. Beside these, people have roles that approvals ask for."""

    VIEWER = "viewer"
    """Looks."""
    APPROVER = "approver"
    """Looks and votes."""
    OPERATOR = "operator"
    """Looks, stops and grants tools, and settles what no machine can."""
    ADMIN = "admin"
    """All of that, and says who the others are."""


_ENOUGH: Final[Mapping[Role, frozenset[str]]] = {
    Role.VIEWER: frozenset(Role),
    Role.APPROVER: frozenset({Role.APPROVER, Role.ADMIN}),
    Role.OPERATOR: frozenset({Role.OPERATOR, Role.ADMIN}),
    Role.ADMIN: frozenset({Role.ADMIN}),
}
"""Which roles are enough for what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A user at work in one tenant."""

    name: str
    tenant: str
    roles: frozenset[str] = frozenset()
    """All that count in this tenant."""
    everywhere: frozenset[str] = frozenset()
    """Those of them that count in every tenant."""

    @classmethod
    def of(cls, name: str, tenant: str, tenants: Mapping[str, frozenset[str]]) -> Self | None:
        """A user's roles as they count in a tenant. None: the user has none there."""
        everywhere = frozenset(tenants.get(EVERYWHERE, ()))
        roles = everywhere | frozenset(tenants.get(tenant, ()))
        if not roles or tenant == EVERYWHERE:
            return None
        return cls(name=name, tenant=tenant, roles=roles, everywhere=everywhere)

    def may(self, what: Role) -> bool:
        """Whether the roles that count here are enough."""
        return not self.roles.isdisjoint(_ENOUGH[what])

    def may_everywhere(self, what: Role) -> bool:
        """The same for what concerns every tenant."""
        return not self.everywhere.isdisjoint(_ENOUGH[what])
