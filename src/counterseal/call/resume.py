"""Continues a call that another worker began: same contract, same arguments, same key."""

from __future__ import annotations

from typing import Any, Final

from counterseal.call.admit import Resume
from counterseal.call.call import Call, CallServices
from counterseal.call.decide import new_call, run_gates
from counterseal.call.execute import execute, observe, spend_retry
from counterseal.call.settle import settle
from counterseal.codes import Code
from counterseal.contract.model import Contract
from counterseal.errors import RegistryError
from counterseal.execution.attempt import Outcome
from counterseal.execution.probes import Probe, ProbeError, probe
from counterseal.gates import GATES
from counterseal.gates.base import Decision, Gate, hook_request
from counterseal.ledger.entry import Entry
from counterseal.ledger.records import RunRecord
from counterseal.observation import Observation
from counterseal.proposal import Proposal
from counterseal.registry import Refusal, Registry, RegistryRecord

_CHECKED_AGAIN: Final = tuple(
    gate for gate in GATES if isinstance(gate, Gate) and gate.name in ("schema", "scope", "policy")
)


def contract_for(registry: Registry, entry: Entry, resume: Resume) -> RegistryRecord | None:
    """Return the very contract that a call was admitted under, if this process holds it."""
    try:
        record = registry.get(entry.tool, entry.version)
    except RegistryError:
        return None
    return record if record.contract.hash == resume.contract_hash else None


async def run_of(services: CallServices, entry: Entry) -> RunRecord:
    """Return the run of a call. For a run that is gone, a record that is not stored."""
    run = await services.store.find_run(entry.tenant, entry.run_id)
    now = services.clock()
    return run or RunRecord(tenant=entry.tenant, run_id=entry.run_id, started_at=now)


def resumed_call(
    entry: Entry, resume: Resume, run: RunRecord, record: RegistryRecord, services: CallServices
) -> Call:
    """Return the call as it was admitted. Its budgets are spent, and its approval remains valid."""
    own: dict[str, Any] = {**(resume.ids or {})}
    own |= {"tool": entry.tool, "version": entry.version, "run_id": entry.run_id}
    proposal = Proposal(arguments=resume.arguments, **own)
    call = new_call(proposal, resume.principal(entry.tenant), services)
    call.resumed = call.in_doubt = True
    call.captured = resume.lacks
    call.trace_id, call.key, call.entry = resume.trace_id, entry.key, entry
    call.learn(
        call_id=entry.call_id,
        run=run,
        record=record,
        compiled=services.compiled_for(record),
        arguments=resume.arguments,
        config=resume.config,
        config_shown=resume.config,
        version_seen=resume.version_seen,
        approval_id=resume.approval_id,
    )
    return call


def check_again(call: Call, services: CallServices) -> Decision | None:
    """Check kill switch, grants, scopes and policy as they are now. Returns a denial."""
    ctx, principal = call.ctx, call.ctx.principal
    record = ctx.registry.resolve(
        ctx.proposal.tool,
        tenant=principal.tenant,
        run_id=ctx.run.run_id,
        version=ctx.proposal.version,
        agent=principal.agent,
    )
    if isinstance(record, Refusal):
        call.learn(refusal=record, record=None)
    return run_gates(call, _CHECKED_AGAIN, services)


async def execute_again(
    call: Call, contract: Contract, services: CallServices
) -> Observation | None:
    """Execute under the same key and settle. None if the run's budgets or rates forbid it."""
    if call.entry is None or not await spend_retry(call, contract, services):
        return None
    call.entry = call.entry._replace(attempts=call.entry.attempts + 1)
    await execute(call, services)
    call.reconciled = True
    return await settle(call, observe(call, services), services)


async def settle_as_executed(call: Call, output: object, services: CallServices) -> Observation:
    """Settle with the output that the destination reports."""
    return await _settle_reconciled(call, Outcome(Code.SUCCESS, output), services)


async def settle_as_not_executed(call: Call, services: CallServices) -> Observation:
    """Settle a call that the destination does not know, and never will: its key is free again."""
    call.in_doubt = False
    not_executed = Outcome(Code.DEPENDENCY_UNAVAILABLE, began=False)
    return await _settle_reconciled(call, not_executed, services)


async def _settle_reconciled(call: Call, outcome: Outcome, services: CallServices) -> Observation:
    call.outcome, call.reconciled = outcome, True
    return await settle(call, observe(call, services), services)


async def probe_target(call: Call, contract: Contract, services: CallServices) -> Probe | None:
    """Return the target's state now, None if there is no target. ProbeError if it is unknown."""
    if contract.probe is None:
        raise ProbeError("the contract has no probe")
    seconds = contract.runtime.timeout_ms / 1000
    more = {"key": call.key, "attempt": call.attempt}
    request = hook_request(call.ctx, contract, seconds, services.clock(), **more)
    return await probe(contract.probe, request)
