"""One typed row per thing that people see, and the queries behind it.

`TenantView` has a section for each subject: `approvals`, `attention`, `calls`, `metrics`, `record`,
`runs`, `tools`. It checks roles and reaches the data of one tenant only, so that the HTTP API and
the console cannot forget to. Rows are pydantic models: the API returns them, the console's
templates read them, the command line prints `row.model_dump(mode="json")`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from counterseal.accounts.users import Person, Role
from counterseal.views.approvals import ApprovalViews
from counterseal.views.attention import AttentionViews
from counterseal.views.audit_log import RecordViews
from counterseal.views.base import RoleRequiredError, RowModel
from counterseal.views.calls import CallViews, RunViews
from counterseal.views.metrics import MetricViews
from counterseal.views.tools import QuarantineSource, ToolViews

if TYPE_CHECKING:
    from counterseal.runtime import Runtime


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
