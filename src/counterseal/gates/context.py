"""What a tool, or a hook of its contract, may know of a call."""

from __future__ import annotations

from datetime import UTC, datetime

from counterseal.canonical import thaw
from counterseal.contract.model import Contract
from counterseal.contract.tool_context import Context
from counterseal.gates.base import GateContext
from counterseal.ledger.entry import destination_key

__all__ = ["context_for"]


def context_for(
    ctx: GateContext,
    contract: Contract | None,
    *,
    until: float,
    key: str | None = None,
    attempt: int = 1,
) -> Context:
    """The call as a running tool sees it. `until` is when this attempt must be over."""
    reads = () if contract is None else contract.state_reads
    return Context(
        principal=ctx.principal,
        run_id=ctx.run.run_id,
        call_id=ctx.call_id,
        key=None if key is None else destination_key(ctx.principal.tenant, key),
        attempt=attempt,
        deadline=datetime.fromtimestamp(until, UTC),
        expected_version=ctx.version_seen,
        # Copies: what a tool does to what it is given reaches neither the run nor another call.
        config=thaw(ctx.config),
        state={read.key: thaw(ctx.run.state.get(read.key)) for read in reads},
    )
