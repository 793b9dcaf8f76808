"""The views of one person in one tenant, section by section."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from counterseal.accounts.users import Person, Role
from counterseal.views.approvals import ApprovalViews
from counterseal.views.attention import AttentionViews
from counterseal.views.base import RoleRequiredError, RowModel
from counterseal.views.calls import CallViews, RunViews
from counterseal.views.metrics import MetricViews
from counterseal.views.record import RecordViews
from counterseal.views.tools import QuarantineSource, ToolViews

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["Me", "TenantView"]


class TenantView:
    """Everything that a signed-in person can read or do in one tenant.

    Raises RoleRequiredError for a person who is not even a viewer. `quarantine` is the gateway's.
    """

    def __init__(
        self, runtime: Runtime, person: Person, *, quarantine: QuarantineSource | None = None
    ) -> None:
        if not person.may(Role.VIEWER):
            raise RoleRequiredError(Role.VIEWER)
        self.person = person
        self.approvals = ApprovalViews(runtime, person)
        self.attention = AttentionViews(runtime, person)
        self.calls = CallViews(runtime, person)
        self.metrics = MetricViews(runtime, person)
        self.record = RecordViews(runtime, person)
        self.runs = RunViews(runtime, person)
        self.tools = ToolViews(runtime, person, quarantine)

    @property
    def tenant(self) -> str:
        return self.person.tenant


class Me(RowModel):
    """The caller, as this server knows it."""

    kind: Literal["agent", "person"]
    tenant: str
    agent: str | None
    user: str | None
    roles: list[str]
    scopes: list[str]
    everywhere: list[str] = Field(description="A person's roles that count in every tenant.")
