"""Admits a decided call: budgets and approval spent, ledger entry reserved, events written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from time import monotonic

from counterseal.audit import EventType
from counterseal.call.call import DECIDE_AGAIN, Call, End
from counterseal.call.decide import decide_over_budget
from counterseal.call.events import event
from counterseal.call.observe import observe
from counterseal.call.recall import identify, note_repeat, recall, repeated
from counterseal.call.resume import pack
from counterseal.call.services import CallServices
from counterseal.call.settle import write_outcome
from counterseal.errors import StoreError
from counterseal.gates.base import Decision
from counterseal.gates.budget import can_ask, exhausted, rate_limited
from counterseal.ledger.entry import Entry, EntryStatus, Phase
from counterseal.ledger.requests import (
    NEW_KEY,
    Admission,
    AdmissionRefusal,
    AdmissionRequest,
    Charge,
)
from counterseal.observation import Observation
from counterseal.registry import RegistryRecord


async def admit(call: Call, services: CallServices) -> End | None:
    """Reserve the operation and spend its budgets and approval: ONE transaction.

    Returns a refusal when a limit or another call with the same key stands in the way, and
    DECIDE_AGAIN when something has changed since the decision.
    """
    record, compiled = call.ctx.record, call.ctx.compiled
    if record is None or compiled is None or call.epoch != services.registry.epoch:
        return DECIDE_AGAIN
    entry = None
    if compiled.keyed:
        if call.key is None:
            identify(call, record)
        entry = _reservation(call, record, services.worker)
    request = _request(call, record, entry, services)
    since = monotonic()
    if entry is None:
        admission = await services.store.admit(request)
    else:
        admission = await _reserve(call, request, services)
    if admission.refused is not None:
        return await _refused(call, admission, services)
    call.entry = admission.entry
    if call.entry is not None:
        services.leases.hold(call.entry, since)
    return None


def _request(
    call: Call, record: RegistryRecord, entry: Entry | None, services: CallServices
) -> AdmissionRequest:
    """Return the transaction's request: what to spend, reserve and write, and what to re-check."""
    ctx, announced = call.ctx, call.resolved[1].announced
    events = (
        (event(call, EventType.REQUESTED, "allow"), event(call, EventType.STARTED, "allow"))
        if announced
        else ()  # a read can't be half done: the event at its end says everything
    )
    return AdmissionRequest(
        tenant=call.tenant,
        run_id=ctx.run.run_id,
        tool=record.name,
        version=record.version,
        now=ctx.now,
        charges=_unlimited(ctx.charges, ctx.over_budget) if ctx.over_budget else ctx.charges,
        rates=ctx.rates,
        entry=entry,
        approval_id=None if ctx.approval_spent else ctx.approval_id,
        epoch=services.registry.stored,
        events=events,
        reads=ctx.state_read,
        takes_over=NEW_KEY if ctx.memory is None else call.takes_over,
        lease=services.leases.seconds,
        resume=None if entry is None else _packed(call, record, services),
    )


def _unlimited(charges: Sequence[Charge], budgets: Sequence[str]) -> Sequence[Charge]:
    """Return the charges, without a limit for budgets that approvers have allowed to exceed."""
    return [
        charge._replace(limit=inf) if charge.budget in budgets else charge for charge in charges
    ]


def _reservation(call: Call, record: RegistryRecord, worker: str) -> Entry | None:
    if call.key is None:
        return None
    return Entry(
        tenant=call.tenant,
        key=call.key,
        request_hash=call.request_hash,
        status=EntryStatus.PENDING,
        call_id=call.call_id,
        tool=record.name,
        version=record.version,
        phase=Phase.RESERVED,
        run_id=call.ctx.run.run_id,
        worker=worker,
    )


def _packed(call: Call, record: RegistryRecord, services: CallServices) -> bytes:
    """Return what another worker needs to continue from the reservation, sealed."""
    try:
        hashed, key = record.contract.hash, call.key or ""
        return pack(call.ctx, hashed, call.trace_id, key, services.vault)
    except (TypeError, ValueError) as error:
        raise StoreError("the call can't be stored in a form to continue from") from error


async def _reserve(call: Call, request: AdmissionRequest, services: CallServices) -> Admission:
    """Reserve a ledger entry. A caller that is cancelled meanwhile leaves no reservation."""
    admission = services.tasks.begin(services.store.admit(request))
    try:
        return await asyncio.shield(admission)
    except asyncio.CancelledError:
        # Goes on to its end, even if the caller is cancelled once more.
        await services.tasks.shielded(_release(call, admission, services))
        raise


async def _release(
    call: Call, admission: asyncio.Future[Admission], services: CallServices
) -> None:
    """Wait for an admission that no caller waits for, and settle it as not executed."""
    try:
        result = await admission
    except StoreError as error:
        services.report(call.call_id, "store", error)
        return
    if result.refused is None:
        call.entry = result.entry
        await write_outcome(call, observe(call, services), services)


async def _refused(call: Call, admission: Admission, services: CallServices) -> End | None:
    """Return how a call ends whose admission was refused."""
    if admission.refused is AdmissionRefusal.BUDGET and admission.charge is not None:
        return await _over_budget(call, admission.charge, admission.spent, services)
    if admission.refused is AdmissionRefusal.RATE:
        return _overruled(call, rate_limited(admission.retry_after))
    if admission.refused is AdmissionRefusal.DUPLICATE and admission.entry is not None:
        if call.ctx.memory is None:
            return await recall(call, services, always=True) or DECIDE_AGAIN
        end = repeated(call, admission.entry)
        if isinstance(end, Observation):
            note_repeat(call, end, services)
        return end or DECIDE_AGAIN
    if admission.refused is AdmissionRefusal.EPOCH:
        await services.catch_up()
    return DECIDE_AGAIN


async def _over_budget(
    call: Call, charge: Charge, spent: float, services: CallServices
) -> End | None:
    """Refuse a call that exceeds a budget, or ask approvers where the budget says so.

    A call that approvers have allowed is submitted to admission again. Each time, one more budget
    is in `over_budget` and its charges have no limit, so the recursion ends.
    """
    if not can_ask(call.ctx, charge):
        return _overruled(call, exhausted(charge, spent))
    return await decide_over_budget(call, charge, spent, services) or await admit(call, services)


def _overruled(call: Call, decision: Decision) -> Decision:
    """Put the transaction's decision in the place of the budget gate's."""
    call.overrule(decision)
    return decision
