"""Rules on approval: terms that somebody can meet."""

from __future__ import annotations

from collections.abc import Iterator

from counterseal.contract.approval_terms import Then, term_faults
from counterseal.contract.lint.base import Breach, breach, rule
from counterseal.contract.model import Contract


@rule("approval-terms", "terms of approval can be met, and fit its pattern")
def approval_terms(contract: Contract) -> Iterator[Breach]:
    terms = contract.approval
    if terms is None:
        return
    for fault in term_faults(terms, contract.approvers):
        place = f"/approval/{fault.field}" if fault.field else "/approvers"
        yield breach(place, fault.message, fault.fix)
    if terms.then is Then.EXECUTE and not contract.idempotency.supported:
        yield breach(
            "/approval/then",
            "is execute, but without a key nobody could ask for the outcome",
            "Let the agent come again: resubmit.",
        )
