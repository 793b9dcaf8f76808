"""What people look at and do: approvals, calls, tools, concerns, the record, metrics.

A `Desk` is one person's in one tenant. Roles are checked here, and nothing of another tenant can be
reached from here, so that neither the console nor the API can forget it. Every record that it gives
has `.record()`, so that all of them say the same.
"""

from __future__ import annotations

from counterseal.views.approvals import confirmation, packet_record
from counterseal.views.base import NotAllowed, NotThere, Page
from counterseal.views.calls import Attempt, CallPage, CallRow, CallSearch, GateRow
from counterseal.views.cards import ToolPage, ToolRow, ToolUse
from counterseal.views.concerns import ACTIONS, ConcernRow
from counterseal.views.desk import Desk
from counterseal.views.exposition import prometheus
from counterseal.views.inbox import InboxRow
from counterseal.views.metrics import METRICS, Metric
from counterseal.views.quarantine import Quarantined, Quarantines
from counterseal.views.record import ChainStatus, EventRow
from counterseal.views.runs import BudgetRow, RunPage, RunRow, StateRow

__all__ = [
    "ACTIONS",
    "METRICS",
    "Attempt",
    "BudgetRow",
    "CallPage",
    "CallRow",
    "CallSearch",
    "ChainStatus",
    "ConcernRow",
    "Desk",
    "EventRow",
    "GateRow",
    "InboxRow",
    "Metric",
    "NotAllowed",
    "NotThere",
    "Page",
    "Quarantined",
    "Quarantines",
    "RunPage",
    "RunRow",
    "StateRow",
    "ToolPage",
    "ToolRow",
    "ToolUse",
    "confirmation",
    "packet_record",
    "prometheus",
]
