"""Names of the store's requests and records, in one place."""

from __future__ import annotations

from counterseal.ledger.records import (
    Asker,
    Budgets,
    Concern,
    Due,
    DueKind,
    Held,
    HeldStatus,
    RunRecord,
    SessionRow,
)
from counterseal.ledger.requests import (
    NEW_KEY,
    Admission,
    Admit,
    Ballot,
    Calls,
    Charge,
    Claim,
    Erasure,
    Finish,
    Kept,
    Memory,
    Rate,
    Recorded,
    Refused,
    Search,
    Settle,
    Tallied,
)
from counterseal.ledger.run_changes import IDLE_SECONDS
from counterseal.storage.store import Store

__all__ = [
    "IDLE_SECONDS",
    "NEW_KEY",
    "Admission",
    "Admit",
    "Asker",
    "Ballot",
    "Budgets",
    "Calls",
    "Charge",
    "Claim",
    "Concern",
    "Due",
    "DueKind",
    "Erasure",
    "Finish",
    "Held",
    "HeldStatus",
    "Kept",
    "Memory",
    "Rate",
    "Recorded",
    "Refused",
    "RunRecord",
    "Search",
    "SessionRow",
    "Settle",
    "Store",
    "Tallied",
]
