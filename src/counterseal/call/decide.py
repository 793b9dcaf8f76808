"""From a proposal to a decision: receive, decide, preview. Nothing is spent or executed.

Gates run here and nowhere else. A gate that raises denies the call. A gate that requires approval
does not stop it: the later gates run all the same, and any denial of theirs comes first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import inf
from random import getrandbits
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from counterseal.approvals.terms import Terms
from counterseal.call.call import Call, CallServices, End, ErrorReport, Preview
from counterseal.call.hold import hold
from counterseal.call.recall import identify, read_memory, recall
from counterseal.codes import Code
from counterseal.execution.attempt import ProgressCallback
from counterseal.gates import BEFORE_RECALL, policy
from counterseal.gates.base import (
    AsyncGate,
    Decision,
    Gate,
    GateContext,
    Learned,
    TimedDecision,
    Verdict,
    deny,
    require_approval,
)
from counterseal.ledger.records import RunRecord
from counterseal.ledger.requests import Charge, Memory
from counterseal.observation import Observation
from counterseal.proposal import Principal, Proposal
from counterseal.registry import Reason, Refusal, RegistryRecord

_MILLISECONDS: Final = 2**44 - 1
"""The largest time that eleven hexadecimal digits can hold."""


def new_call(
    proposal: Proposal,
    principal: Principal,
    services: CallServices,
    *,
    until: float = inf,
    progress: ProgressCallback | None = None,
    decided_before: bool = False,
) -> Call:
    """Return the record of a call that has just come in."""
    now, telemetry = services.clock(), services.telemetry
    # Ids begin with the time, so that a store's index grows at one end.
    time_and_noise = (int(now * 1000) & _MILLISECONDS) << 180 | getrandbits(180)
    digits = time_and_noise.to_bytes(28, "big").hex()
    tenant = services.tenants.get(principal.tenant)
    ctx = GateContext(
        proposal=proposal,
        principal=principal,
        call_id=f"call_{digits[:24]}",
        now=now,
        registry=services.registry,
        executor=services.executor,
        until=until,
        keys=services.keys,
    )
    if tenant is not None:
        ctx = ctx.replace(tenant=tenant.facts, limits=tenant.budgets)
    traced, trace_id = telemetry.listening, digits[24:]
    if traced or proposal.trace is not None:
        trace_id = telemetry.trace_of(proposal.trace) or trace_id
    return Call(
        ctx=ctx,
        started_ns=perf_counter_ns(),
        trace_id=trace_id,
        epoch=services.registry.epoch,
        progress=progress,
        traced=traced,
        decided_before=decided_before,
    )


# --- receive --------------------------------------------------------------------------------------


def receive(call: Call, run: RunRecord, services: CallServices) -> Decision | None:
    """Resolve the tool's version for this run, and run the gates parse, schema and scope.

    Reads nothing from the store.
    """
    record = _resolve(call, run)
    if isinstance(record, Refusal):
        call.learn(run=run, refusal=record)
    else:
        compiled = services.compiled_for(record)
        call.learn(run=run, record=record, compiled=compiled)
        asks, reads_run = compiled.asks or policy.asks(call.ctx), compiled.reads_run
        call.needs_counters = reads_run or asks
        # Admission finds out whether a call was made before. Recall looks it up earlier where an
        # approver or a probe comes first, because neither may be asked twice.
        before_others = compiled.keyed and (asks or record.contract.probe is not None)
        call.recall_first = reads_run or before_others or call.decided_before
    return run_gates(call, BEFORE_RECALL, services)


def _resolve(call: Call, run: RunRecord) -> RegistryRecord | Refusal:
    """Return the record of the version that the run has pinned, else the registry's choice."""
    principal, registry, proposal = call.ctx.principal, call.ctx.registry, call.ctx.proposal
    tool, version = proposal.tool, proposal.version
    try:
        pinned = run.pins.get(tool)
        if version is not None:
            hash(version), len(version)
    except TypeError:  # the name or the version is no text; the parse gate refuses it
        return Refusal(reason=Reason.UNKNOWN, message="There is no such tool here.")
    if pinned is not None:
        if version is not None and version != pinned:
            message = f"This run uses version {pinned} of {tool}."
            return Refusal(reason=Reason.VERSION_UNKNOWN, message=message)
        version = pinned
        record = registry.chosen(tool, version, principal.tenant)
        if record is not None:
            return record
    return registry.resolve(
        tool, tenant=principal.tenant, run_id=run.run_id, version=version, agent=principal.agent
    )


# --- running gates --------------------------------------------------------------------------------


def run_gates(
    call: Call, gates: Iterable[Gate | AsyncGate | TimedDecision], services: ErrorReport
) -> Decision | None:
    """Let gates decide in turn. Returns the first denial. What *state* needs is probed before."""
    for gate in gates:
        if isinstance(gate, TimedDecision):
            call.decisions.append(gate)
            continue
        denied = _run_gate(call, gate, perf_counter_ns(), services)
        if denied is not None:
            return denied
    return None


async def _run_gates_after_recall(call: Call, services: CallServices) -> Decision | None:
    """Run semantics, policy, state, approval and budget. Returns the first denial."""
    for gate in call.ctx.resolved.gates:
        denied = None
        if isinstance(gate, Gate):
            denied = _run_gate(call, gate, perf_counter_ns(), services)
        elif isinstance(gate, TimedDecision):
            call.decisions.append(gate)
        elif not call.skip_state_gate:
            denied = await _probe(call, gate, services)
        if denied is not None:
            return denied
    return None


async def _probe(call: Call, gate: AsyncGate, services: CallServices) -> Decision | None:
    """Run the state gate, which waits for the contract's probe."""
    began = perf_counter_ns()
    try:
        call.learn(probed=await gate.look(call.ctx))
    except Exception as error:  # noqa: BLE001 - a gate that raises denies the call
        broken = _broken(call, gate.name, error, services)
        return _run_gate(call, Gate(gate.name, lambda _: broken), began, services)
    return _run_gate(call, gate, began, services)


def _run_gate(
    call: Call, gate: Gate | AsyncGate, began: int, services: ErrorReport
) -> Decision | None:
    """Run one gate; note what it decided and learned. Returns a denial, which ends the call."""
    result: Any
    try:
        result = gate.check(call.ctx)
    except Exception as error:  # noqa: BLE001 - a gate that raises denies the call
        result = _broken(call, gate.name, error, services)
    if isinstance(result, Learned):
        result, facts = result
        call.ctx = call.ctx.replace(**facts)
    if not isinstance(result, Decision):
        fault = TypeError(f"the gate returned {type(result).__name__}, not a Decision")
        result = _broken(call, gate.name, fault, services)
    decision: Decision = result
    call.decisions.append(TimedDecision(decision, perf_counter_ns() - began))
    if decision.verdict is Verdict.DENY:
        return decision
    if decision.policy_version is not None:
        call.policy_version = decision.policy_version
    if decision.verdict is Verdict.REQUIRE_APPROVAL:
        if decision.gate == "approval":
            call.approval_requirement = decision
        else:
            call.learn(requirements=(*call.ctx.requirements, decision))
    return None


def _broken(call: Call, gate: str, error: Exception, services: ErrorReport) -> Decision:
    services.report(call.call_id, f"gate {gate}", error)
    code = Code.POLICY_VIOLATION if gate == "policy" else Code.UNKNOWN_ERROR
    reason = "The call could not be judged, so it is refused."
    return deny(gate, code, reason, rule="gate-error")


# --- decide ---------------------------------------------------------------------------------------


async def decide(call: Call, services: CallServices) -> End | None:
    """Run the gates semantics, policy, state, approval and budget.

    Holds the call if approval is required.
    """
    call.first_decision = len(call.decisions)
    denied = await _run_gates_after_recall(call, services)
    if denied is not None and call.ctx.memory is None:
        # A call that is not allowed any more may have been executed before.
        return await recall(call, services, always=True) or denied
    if denied is None and call.approval_requirement and call.key is None:
        # Approval is required, so earlier requests for it matter after all.
        identify(call)
        await read_memory(call, services)
        call.forget_decisions()
        denied = await _run_gates_after_recall(call, services)
    held = call.ctx.memory.held if call.ctx.memory else None
    if held is not None and held.approval_id == call.ctx.approval_id:
        call.trace_id, call.caller = held.trace_id, None  # go on under the held call's trace
    if denied is not None or call.approval_requirement is None:
        return denied
    beyond = overdrawn(call)
    if beyond is not None:
        return await decide_over_budget(call, *beyond, services)
    return await hold(call, call.approval_requirement, services)


async def decide_over_budget(
    call: Call, charge: Charge, spent: int, services: CallServices
) -> End | None:
    """Decide anew on a call that exceeds a budget, with approval of that required."""
    if call.key is not None and not call.counters_recalled:
        await read_memory(call, services)  # approvers are asked about all budgets at once
    ask_beyond(call, charge, spent)
    return await decide(call, services)


def ask_beyond(call: Call, charge: Charge, spent: int) -> None:
    """Require approval of one call beyond a budget, and take back the gates' decisions."""
    call.budget_requirements += (_budget_requirement(charge, spent),)
    call.learn(over_budget=(*call.ctx.over_budget, charge.budget))
    call.forget_decisions()


def overdrawn(call: Call) -> tuple[Charge, int] | None:
    """Return the first budget that the call would exceed, and how much of it is spent."""
    memory, known = call.ctx.memory, call.ctx.over_budget
    if memory is None:
        return None
    for charge in call.ctx.charges:
        counters = memory.run_counters if charge.of_run else memory.tenant_counters
        spent = counters.get(charge.counter, 0)
        if charge.budget not in known and charge.exceeds(spent):
            return charge, spent
    return None


def _budget_requirement(charge: Charge, spent: int) -> Decision:
    """Return the decision that requires approval of one call beyond a budget."""
    limit, more = charge.words(charge.limit), charge.words(charge.amount)
    state = f"is spent: {charge.words(spent)} of {limit}" if charge.limit else "grants nothing"
    reason = f"The budget {charge.budget} {state}, and this call takes {more} more."
    rule = f"budget:{charge.budget}"
    terms = Terms(approvers=1, reason=reason, rule=rule)
    return require_approval("budget", reason, rule=rule, approvers=1, terms=terms)


# --- preview --------------------------------------------------------------------------------------


class PlannedSpending(NamedTuple):
    """What the earlier steps of a plan will spend, and whether they will change anything."""

    of_run: defaultdict[str, int]
    of_tenant: defaultdict[str, int]
    mutates: bool

    def added_to(self, memory: Memory) -> Memory:
        """Return the memory that the next step will find."""
        return memory._replace(
            run_counters=_sum(memory.run_counters, self.of_run),
            tenant_counters=_sum(memory.tenant_counters, self.of_tenant),
        )


def _sum(spent: Mapping[str, int], planned: Mapping[str, int]) -> dict[str, int]:
    return {**spent, **{key: spent.get(key, 0) + more for key, more in planned.items()}}


async def preview(
    call: Call, run: RunRecord, services: CallServices, planned: PlannedSpending | None = None
) -> Preview:
    """Run the gates. Nothing is recorded, held, spent or executed."""
    call.learn(preview=True)
    # What an earlier step may change need not be probed yet.
    call.skip_state_gate = planned is not None and planned.mutates
    end: Decision | None = receive(call, run, services)
    if end is None:
        known = await recall(call, services, always=True)
        if isinstance(known, Observation):
            reason = "It was done before; it would be answered from the ledger."
            return Preview.of(call, Verdict.ALLOW, known.code, reason)
        end = known
        if end is not None:
            call.add_decision(end)  # by the ledger, not by a gate
        memory = call.ctx.memory or await read_memory(call, services)
        if planned is not None:
            call.learn(memory=planned.added_to(memory))
    if end is None:
        end = await _run_gates_after_recall(call, services) or call.approval_requirement
        beyond = overdrawn(call)
        if end is None and beyond is not None:
            call.approval_requirement = end = _budget_requirement(*beyond)
    last = end or call.decisions[-1].decision
    return Preview.of(call, last.verdict, last.code, last.reason)
