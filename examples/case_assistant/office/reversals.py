"""Compensation: Counterseal calls it when an operator reverses a change. No agent may."""

from __future__ import annotations

from counterseal import Context, tool
from office.forms import CaseId, Reason, StatusChange, Version
from office.hooks import ERRORS, OWNER, by, case_state, office

__all__ = ["restore_case_status"]


@tool(
    effect="internal_mutation",
    version="1.0.0",
    owner=OWNER,
    scopes=["case:write"],
    usage="Never by an agent: it reverses update_case_status when a person says so.",
    data_classification="confidential",
    exposed=False,
    timeout_ms=5000,
    on_unknown="retry_same_key",
    max_retries=2,
    resource="case:{case_id}",
    version_argument="expected_version",
    version_from="/version",
    probe=case_state,
    expected={"became": "{output.status}"},
    observability=ERRORS,
)
def restore_case_status(
    case_id: CaseId, expected_version: Version, reason: Reason, ctx: Context
) -> StatusChange:
    """Restore the status that a case had before its last change."""
    change = office(ctx).take_back(
        by(ctx), case_id, expected_version=expected_version, reason=reason
    )
    return StatusChange.model_validate({**change, "previous_status": change["previous"]})
