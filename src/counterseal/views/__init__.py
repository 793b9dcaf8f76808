"""One typed row per thing that people see, and the queries behind it.

`TenantView` has a section for each subject: `approvals`, `attention`, `calls`, `metrics`, `record`,
`runs`, `tools`. It checks roles and reaches the data of one tenant only, so that the HTTP API and
the console cannot forget to. Rows are pydantic models: the API returns them, the console's
templates read them, the command line prints `row.model_dump(mode="json")`.
"""

from __future__ import annotations

from counterseal.views.approvals import (
    ApprovalPage,
    ApprovalRow,
    VoteRow,
    approval_page,
    approval_row,
    confirmation,
)
from counterseal.views.attention import ACTIONS, AttentionRow
from counterseal.views.base import Items, NotFoundError, Page, RoleRequiredError
from counterseal.views.call_page import AttemptRow, CallPage, CallRow, GateRow
from counterseal.views.calls import BudgetRow, CallSearch, RunPage, RunRow, StateRow
from counterseal.views.metrics import METRICS, MetricRow, prometheus
from counterseal.views.record import AuditReport, ChainStatus, EventRow
from counterseal.views.tenant import Me, TenantView
from counterseal.views.tools import GrantRow, KillRow, QuarantineSource, ToolPage, ToolRow, ToolUse

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
