"""Admits a decided call: budgets and approval spent, ledger entry reserved, events written.

With the reservation, everything is stored that another worker needs to continue: `Resume`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from counterseal.audit import EventType
from counterseal.call.call import DECIDE_AGAIN, Call, CallServices, End
from counterseal.call.capture import missing_facts, proposal_facts, proposal_row
from counterseal.call.decide import decide_over_budget
from counterseal.call.events import decisions_of, event, gate_events
from counterseal.call.execute import observe
from counterseal.call.recall import answer_repeat, identify, recall, repeated
from counterseal.call.settle import write_outcome
from counterseal.canonical import json_default
from counterseal.codes import Code
from counterseal.errors import StoreError
from counterseal.gates.base import EMPTY, Decision, deny
from counterseal.gates.budget import can_ask, exhausted, rate_limited
from counterseal.gates.parse import caller_ids
from counterseal.ledger.entry import CLIENT_WORKER, Entry, EntryStatus, Phase
from counterseal.ledger.records import token_counts
from counterseal.ledger.requests import (
    NEW_KEY,
    Admission,
    AdmissionRefusal,
    AdmissionRequest,
    Charge,
)
from counterseal.observation import Observation
from counterseal.proposal import Principal, RiskLevel, System
from counterseal.vault import Vault


async def admit(call: Call, services: CallServices) -> End | None:
    """Reserve the operation and spend its budgets and approval: ONE transaction.

    Returns a refusal when a limit or another call with the same key stands in the way, and
    DECIDE_AGAIN when something has changed since the decision.
    """
    if call.epoch != services.registry.epoch:
        return DECIDE_AGAIN
    entry = None
    if call.ctx.resolved.keyed:
        worker = CLIENT_WORKER if call.contract.by_client else services.worker
        entry = _reservation(call, call.key or identify(call), worker)
    request = _request(call, entry, services)
    since = services.leases.moment()
    if entry is None:
        admission = await services.store.admit(request)
    else:
        admission = await _reserve(call, request, services)
    if admission.refused is not None:
        return await _refused(call, admission, services)
    call.entry = admission.entry
    if call.entry is not None and call.entry.worker != CLIENT_WORKER:
        services.leases.hold(call.entry, since)
    return None


def seconds_for_client(call: Call) -> float:
    """Return the time that the client has, from the call's arrival on, to report the outcome."""
    return max(0.0, min(call.contract.runtime.timeout_ms / 1000, call.until - call.ctx.now))


async def count_tokens(call: Call, services: CallServices) -> Decision | None:
    """Count the tokens that the model used for the proposal. Returns a denial beyond the budget."""
    proposal, run = call.ctx.proposal, call.ctx.run
    if proposal.tokens is None or call.decided_before:
        return None
    try:
        counts = token_counts(proposal.tokens, repair=proposal.tool in run.refused)
    except ValueError as error:
        denied = unreadable_tokens(error)
    else:
        total = (await services.store.count(call.tenant, run.run_id, counts))["tokens"]
        tokens, limit = counts["tokens"], run.budgets.tokens
        if limit is None or total <= limit:
            return None
        charge = Charge("run.tokens", "tokens", tokens, limit, of_run=True)
        call.overdrawn = charge, total - tokens
        denied = exhausted(*call.overdrawn)
    call.add_decision(denied)
    return denied


def unreadable_tokens(error: ValueError) -> Decision:
    """Return the denial of a call whose host reports no number of tokens."""
    return deny("parse", Code.SYNTACTIC_PARSE_FAIL, f"The call can't be read: {error}.")


def _request(call: Call, entry: Entry | None, services: CallServices) -> AdmissionRequest:
    """Return the transaction's request: what to spend, reserve and write, and what to re-check."""
    ctx, events, captured = call.ctx, gate_events(call, services), None
    if ctx.resolved.announced:  # of another read, the event at its end says everything
        captured, place = proposal_row(call, services)
        # The gates' decisions, so that they are on record if the process ends here.
        body = {"gates": decisions_of(call), **proposal_facts(call, services), **place}
        if ctx.principal.parents:
            body["parents"] = [*ctx.principal.parents]
        events.append(event(call, EventType.REQUESTED, "allow", body))
        handed = {"executed_by": "client"} if call.contract.by_client else EMPTY
        events.append(event(call, EventType.STARTED, "allow", handed))
    return AdmissionRequest(
        tenant=call.tenant,
        run_id=ctx.run.run_id,
        tool=call.contract.name,
        version=call.contract.version,
        now=ctx.now,
        charges=_unlimited(ctx.charges, ctx.over_budget) if ctx.over_budget else ctx.charges,
        rates=ctx.rates,
        entry=entry,
        approval_id=None if ctx.approval_spent else ctx.approval_id,
        epoch=services.registry.stored,
        events=events,
        reads=ctx.state_read,
        takes_over=NEW_KEY if ctx.memory is None else call.takes_over,
        lease=seconds_for_client(call) if call.contract.by_client else services.leases.seconds,
        resume=None if entry is None else _packed(call, services),
        captured=captured,
    )


def _unlimited(charges: Sequence[Charge], budgets: Sequence[str]) -> Sequence[Charge]:
    """Return the charges, without a limit for budgets that approvers have allowed to exceed."""
    return [
        charge._replace(limit=inf) if charge.budget in budgets else charge for charge in charges
    ]


def _reservation(call: Call, key: str, worker: str) -> Entry:
    return Entry(
        tenant=call.tenant,
        key=key,
        request_hash=call.request_hash,
        status=EntryStatus.PENDING,
        call_id=call.call_id,
        tool=call.contract.name,
        version=call.contract.version,
        phase=Phase.RESERVED,
        run_id=call.ctx.run.run_id,
        worker=worker,
    )


def _packed(call: Call, services: CallServices) -> bytes:
    """Return what another worker needs to continue from the reservation, sealed."""
    try:
        return pack(call, services.vault)
    except (TypeError, ValueError) as error:
        raise StoreError("the call can't be stored in a form to continue from") from error


async def _reserve(call: Call, request: AdmissionRequest, services: CallServices) -> Admission:
    """Reserve a ledger entry. A caller that is cancelled meanwhile leaves no reservation."""
    admission = asyncio.ensure_future(services.store.admit(request))
    try:
        return await asyncio.shield(admission)
    except asyncio.CancelledError as error:
        # Goes on to its end, even if the caller is cancelled once more.
        await services.tasks.shielded(_release(call, admission, error, services))
        raise


async def _release(
    call: Call,
    admission: asyncio.Future[Admission],
    error: BaseException,
    services: CallServices,
) -> None:
    """Wait for an admission that no caller waits for, and settle it as not executed."""
    try:
        result = await admission
    except StoreError as failure:
        services.report(call.call_id, "store", failure)
        return
    if result.refused is None:
        call.entry, call.cancellation = result.entry, error
        await write_outcome(call, observe(call, services), services)


async def _refused(call: Call, admission: Admission, services: CallServices) -> End | None:
    """Return how a call ends whose admission was refused."""
    if admission.refused is AdmissionRefusal.BUDGET and admission.charge is not None:
        return await _over_budget(call, admission.charge, admission.spent, services)
    if admission.refused is AdmissionRefusal.RATE:
        return call.overrule(rate_limited(admission.retry_after))
    if admission.refused is AdmissionRefusal.DUPLICATE and admission.entry is not None:
        if call.ctx.memory is None:
            return await recall(call, services, always=True) or DECIDE_AGAIN
        call.learn(memory=call.ctx.memory._replace(entry=admission.entry))
        end = repeated(call, admission.entry)
        if isinstance(end, Observation):
            return await answer_repeat(call, admission.entry, end, services)
        return end or DECIDE_AGAIN
    if admission.refused is AdmissionRefusal.EPOCH:
        await services.catch_up()
    return DECIDE_AGAIN


async def _over_budget(
    call: Call, charge: Charge, spent: int, services: CallServices
) -> End | None:
    """Refuse a call that exceeds a budget, or ask approvers where the budget says so.

    A call that approvers have allowed is submitted to admission again. Each time, one more budget
    is in `over_budget` and its charges have no limit, so the recursion ends.
    """
    if not can_ask(call.ctx, charge):
        call.overdrawn = charge, spent
        return call.overrule(exhausted(charge, spent))
    return await decide_over_budget(call, charge, spent, services) or await admit(call, services)


# --- what is stored to continue from --------------------------------------------------------------


class Resume(NamedTuple):
    """A call as it was admitted. Its scopes are a ceiling for the worker that continues it."""

    agent: str
    user: str | None
    roles: list[str]
    scopes: list[str]
    contract_hash: str
    arguments: dict[str, Any]
    """As they were executed, after corrections."""
    config: dict[str, Any]
    version_seen: str | int | None
    approval_id: str | None
    trace_id: str
    covered: bool | None = None
    """Of a reversal: whether the original's approval covers it. None for any other call."""
    risk_level: str = RiskLevel.LOW
    ids: dict[str, str] | None = None
    """The caller's own ids; None for a call of an earlier version."""
    parents: Sequence[str] = ()
    lacks: Mapping[str, Any] = EMPTY
    """What the capture of the proposal lacks; see `capture.missing_facts`."""

    def principal(self, tenant: str) -> Principal:
        names = ("agent", "user", "roles", "scopes", "risk_level", "parents")
        fields: dict[str, Any] = {name: getattr(self, name) for name in names}
        if self.covered is None:
            return Principal(tenant=tenant, **fields)
        return System(tenant=tenant, covered=self.covered, **fields)


def pack(call: Call, vault: Vault) -> bytes:
    """Return what is stored with a reservation, sealed because arguments may be personal data."""
    ctx, principal, lacks = call.ctx, call.ctx.principal, missing_facts(call)
    fields = (
        principal.agent,
        principal.user,
        sorted(principal.roles),
        sorted(principal.scopes),
        ctx.resolved.contract.hash,
        ctx.arguments,
        dict(ctx.config_shown),
        ctx.version_seen,
        ctx.approval_id,
        call.trace_id,
        principal.covered if isinstance(principal, System) else None,
        principal.risk_level,
        caller_ids(ctx.proposal),
        *([principal.parents] if principal.parents or lacks else ()),
        *([lacks] if lacks else ()),
    )
    return vault.seal(principal.tenant, call.key or "", to_json(fields, fallback=json_default))


def unpack(sealed: bytes, tenant: str, key: str, vault: Vault) -> Resume:
    """Return what `pack` stored. VaultError if no key here opens it."""
    return Resume(*from_json(vault.open(tenant, key, sealed)))
