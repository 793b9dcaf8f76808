"""What is kept out until a person has looked at it. The gateway knows; without one, nothing is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from counterseal.accounts.users import Role
from counterseal.contract.sources.mcp.definition import Change
from counterseal.views.base import NotAllowed, NotThere, Seat

if TYPE_CHECKING:
    from counterseal.operations.operator import Operator

__all__ = ["QuarantineDesk", "Quarantined", "Quarantines"]


class Quarantined(Protocol):
    """A tool that nobody may use until somebody has looked at it."""

    @property
    def name(self) -> str:
        """As agents know it."""

    @property
    def server(self) -> str: ...

    @property
    def tool(self) -> str:
        """As its server calls it."""

    @property
    def why(self) -> str:
        """changed, new, gone, shadowed."""

    @property
    def definition(self) -> str:
        """The hash of what its server says of it now; empty when it says nothing any more."""

    @property
    def pinned(self) -> str:
        """The hash of what was accepted; empty when nothing was."""

    def record(self) -> dict[str, Any]: ...


class Quarantines(Protocol):
    """What is kept out of a gateway, and the way in."""

    def list(self, tenant: str | None = None) -> Sequence[Quarantined]:
        """By name; only what a tenant may know of, where one is given."""

    def changes(self, name: str, tenant: str | None = None) -> Sequence[Change]:
        """What is different from what was accepted."""

    def accept(self, name: str, definition: str, *, by: str, tenant: str | None = None) -> None:
        """Let a tool in as it was shown, by its hash. CountersealError: it is not so any more."""

    def refuse(self, name: str, *, by: str, reason: str, tenant: str | None = None) -> None:
        """Put on record that it stays out, and why."""


class QuarantineDesk(Seat):
    """Looking is for every viewer. A definition is everybody's: accepting takes a role for all."""

    quarantines: Quarantines | None = None

    def quarantined(self) -> list[Quarantined]:
        """What is kept out of this tenant until a person accepts it, by name."""
        return [] if self.quarantines is None else list(self.quarantines.list(self.tenant))

    def definition_changes(self, name: str) -> list[Change]:
        """What differs from what was accepted. NotThere."""
        return list(self._holding(name).changes(name, self.tenant))

    async def accept(self, name: str, definition: str) -> None:
        """Let exactly this definition in, by its hash. NotThere."""
        quarantines = self._holding(name, to_decide=True)
        quarantines.accept(name, definition, by=self.person.name, tenant=self.tenant)

    async def refuse(self, name: str, *, reason: str) -> None:
        """Keep it out, and say so on record. NotThere."""
        quarantines = self._holding(name, to_decide=True)
        quarantines.refuse(name, by=self.person.name, reason=reason, tenant=self.tenant)

    def _holding(self, name: str, *, to_decide: bool = False) -> Quarantines:
        if to_decide:
            self.needs(Role.OPERATOR)
        if self.quarantines is None or not any(one.name == name for one in self.quarantined()):
            raise NotThere("tool")
        if to_decide and not self.person.may_everywhere(Role.OPERATOR):
            raise NotAllowed(Role.OPERATOR, everywhere=True)
        return self.quarantines

    def _operator(self) -> Operator:
        return self.runtime.operator(self.person.name)
