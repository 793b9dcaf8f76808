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
from counterseal.views.approvals import (
    ApprovalPage,
    ApprovalRow,
    ApprovalViews,
    VoteRow,
    approval_page,
    approval_row,
    confirmation,
)
from counterseal.views.attention import ACTIONS, AttentionRow, AttentionViews
from counterseal.views.base import Items, NotFoundError, Page, RoleRequiredError, RowModel
from counterseal.views.call_page import AttemptRow, CallPage, CallRow, GateRow
from counterseal.views.calls import (
    BudgetRow,
    CallSearch,
    CallViews,
    RunPage,
    RunRow,
    RunViews,
    StateRow,
)
from counterseal.views.formulas import METRICS
from counterseal.views.metrics import MetricRow, MetricViews, prometheus
from counterseal.views.record import AuditReport, ChainStatus, EventRow, RecordViews
from counterseal.views.tools import (
    GrantRow,
    KillRow,
    QuarantineSource,
    ToolPage,
    ToolRow,
    ToolUse,
    ToolViews,
)

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = [
    "ACTIONS",
    "METRICS",
    "ApprovalPage",
    "ApprovalRow",
    "AttemptRow",
    "AttentionRow",
    "AuditReport",
    "BudgetRow",
    "CallPage",
    "CallRow",
    "CallSearch",
    "ChainStatus",
    "EventRow",
    "GateRow",
    "GrantRow",
    "Items",
    "KillRow",
    "Me",
    "MetricRow",
    "NotFoundError",
    "Page",
    "QuarantineSource",
    "RoleRequiredError",
    "RunPage",
    "RunRow",
    "StateRow",
    "TenantView",
    "ToolPage",
    "ToolRow",
    "ToolUse",
    "VoteRow",
    "approval_page",
    "approval_row",
    "confirmation",
    "prometheus",
]


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
