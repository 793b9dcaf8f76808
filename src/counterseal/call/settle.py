"""Settles a call: ledger entry, events and effects on the run's state, in ONE transaction.

What may have changed something is settled even if the caller is cancelled. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final

from pydantic_core import from_json, to_json

from counterseal.audit import Event, EventType
from counterseal.call.call import MAX_LOOKS, Call, CallServices
from counterseal.call.capture import (
    announced_facts,
    keep_proposal,
    proposal_facts,
    proposal_row,
    vault_row,
)
from counterseal.call.events import (
    NOT_RECORDED,
    UNKNOWN_TOOL,
    count_refusal,
    emit_span,
    event,
    event_body,
    note_path,
    refused_observation,
)
from counterseal.call.execute import AFTER_UNKNOWN, verification_plan
from counterseal.canonical import at
from counterseal.codes import Code, Path
from counterseal.contract.effects import Trust
from counterseal.contract.fill import resource_of
from counterseal.contract.model import Contract, KeepReads, OnUnknown
from counterseal.contract.tool_context import state_updates
from counterseal.errors import StoreError
from counterseal.gates.base import EMPTY, deny
from counterseal.ledger.entry import CLIENT_WORKER, Entry, EntryStatus, Phase
from counterseal.ledger.records import Due, DueKind
from counterseal.ledger.requests import SettlementRequest
from counterseal.ledger.rows import VaultRow
from counterseal.observation import Observation
from counterseal.observation.observation import pack_read, stored
from counterseal.observation.observe import without_redacted
from counterseal.vault import Vault

_NOT_EXECUTED: Final = {Code.RATE_LIMITED, Code.STALE_STATE, Code.SEMANTIC_INVALIDITY}
"""The destination refused before it did anything, so the key is free again."""
_PAUSES: Final = (0.05, 0.5)
"""Seconds to wait before the store is tried again."""


async def settle(call: Call, observation: Observation, services: CallServices) -> Observation:
    """Write down what came of a call. Returns the observation, with what settling adds to it.

    If the caller was cancelled while the tool ran, the cancellation is raised afterwards.
    """
    call.answered = True
    alone = call.entry is None and call.cancellation is None
    if alone and _leaves_only_an_event(call, observation):
        return _note(call, observation, services)
    work, tasks = write_outcome(call, observation, services), services.tasks
    # Of a success, only the transaction is waited for, and `_settle` shields it.
    needs_no_shield = observation.ok and call.cancellation is None
    answer = await (tasks.watched(work) if needs_no_shield else tasks.shielded(work))
    if call.cancellation is not None:
        emit_span(call, answer, services.telemetry)
        raise call.cancellation
    return answer


def _leaves_only_an_event(call: Call, observation: Observation) -> bool:
    """Return True if the event that ends the call is all there is to write: so for most reads."""
    ctx, observed = call.ctx, call.observed
    return (
        observation.ok
        and ctx.resolved.leaves_nothing
        and not ctx.run.refused
        and observed is not None
        and observed.raw is None
        and not observed.redactions
    )


def _note(call: Call, observation: Observation, services: CallServices) -> Observation:
    def ending() -> tuple[Event, VaultRow | None]:
        row, place = proposal_row(call, services)
        return _success(
            call, observation, {**proposal_facts(call, services), **place}, services
        ), row

    made = ending() if call.traced else None  # the span says whether the call can be replayed
    try:
        services.store.note_later(ending if made is None else lambda: made)
    except StoreError as error:
        services.report(call.call_id, "store", error)
        return _unrecorded(call)
    return observation


async def write_outcome(
    call: Call, observation: Observation, services: CallServices
) -> Observation:
    """Settle a call without shielding it. A store that fails is part of the answer."""
    entry = call.entry
    try:
        return await _write(call, observation, services)
    except StoreError as error:
        services.report(call.call_id, "store", error)
        return _unrecorded(call)
    finally:
        if entry is not None and not call.still_running:
            services.leases.let_go(entry)


async def _write(call: Call, observation: Observation, services: CallServices) -> Observation:
    before_counting, ok = observation, observation.ok
    if not ok:
        observation = await _counted(call, observation, services)
    raw = _raw_output(call)
    if raw is not None:
        observation = observation._replace(raw=_keep(call, raw, services))
    # Of an announced call, the event of its admission says where the arguments are kept.
    facts = (announced_facts if call.ctx.resolved.announced else keep_proposal)(call, services)
    if ok:
        ending = _success(call, observation, facts, services)
    else:
        ending = _failure(call, before_counting, facts, services)
    if call.entry is None and _keeps_read(call, observation):
        kept = _keep_read(call, observation, services)
        ending = ending._replace(body={**ending.body, "seen": kept})
    request = _request(call, before_counting, observation, ending, services)
    if request is None:
        services.store.note(ending)
    else:
        await _settle(call, request, services)
    if not ok:
        note_path(call, observation, services)
    return observation


def _request(
    call: Call,
    before_counting: Observation,
    observation: Observation,
    ending: Event,
    services: CallServices,
) -> SettlementRequest | None:
    """Return the settling transaction; None if the event is all there is to write."""
    ctx, ok = call.ctx, observation.ok
    seen, state = _effects(call, observation, services)
    announced = ctx.resolved.announced
    mended = _mended(call) if ok and ctx.run.refused else None
    unused = None if ok else _unused_approval(call, before_counting)
    if call.entry is None and not (seen or state or announced or mended or unused):
        return None
    entry = call.entry
    if entry is not None:
        entry = settled_entry(call, entry, before_counting, observation.raw, services)
    follow_up = {"gives_back": unused} if entry is None else _follow_up(call, entry, services)
    return SettlementRequest(
        tenant=call.tenant,
        run_id=ctx.run.run_id,
        now=services.clock(),
        entry=entry,
        seen=seen,
        state=state,
        events=(ending,),
        mended=mended,
        untrusted=observation.trust is Trust.UNTRUSTED,
        held_by=CLIENT_WORKER if call.reported else None,
        **follow_up,
    )


async def _settle(call: Call, request: SettlementRequest, services: CallServices) -> None:
    entry, (ending,) = request.entry, request.events
    running = None
    if entry is not None and entry.status is EntryStatus.PENDING:
        running = services.executor.abandoned(entry.tenant, entry.key)
    if running is not None:
        # The entry is kept until the abandoned attempt ends: no other may run beside it.
        call.still_running = True
        later = request._replace(events=())
        running.add_done_callback(
            lambda _: services.tasks.begin_if_open(_settle_late(call, later, services))
        )
        services.store.note(ending)
        return
    settling = asyncio.ensure_future(services.store.settle(request))
    try:
        settled = await asyncio.shield(settling)
    except (StoreError, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError):
            call.cancellation = error  # raised when this is over
        work = _settle_persistently(call, request, settling, services)
        settled = await services.tasks.shielded(work)
    if any(delay <= 0 for delay, _ in request.due):
        services.due.set()
    call.settled = settled
    if not settled:
        # Another worker has settled it by now; what happened here is recorded all the same.
        services.store.note(ending._replace(body={**ending.body, "settled": False}))
    elif entry is not None:
        services.leases.orphaned_for(entry)  # if unknown, that is the first look


async def _settle_late(call: Call, request: SettlementRequest, services: CallServices) -> None:
    """Settle an entry as unknown, once the abandoned attempt has ended."""
    try:
        if await services.store.settle(request) and request.entry is not None:
            services.leases.orphaned_for(request.entry)
    except StoreError as error:
        services.report(call.call_id, "store", error)
    finally:
        if request.entry is not None:
            services.leases.let_go(request.entry)


async def _settle_persistently(
    call: Call, request: SettlementRequest, settling: Awaitable[bool], services: CallServices
) -> bool:
    """Settle, with further tries if the store fails. Returns False if another worker has."""
    for pause in _PAUSES:
        try:
            return await settling
        except StoreError as error:
            services.report(call.call_id, "store", error)
            await services.pause(pause)
            settling = services.store.settle(request)
    return await settling


async def _counted(call: Call, observation: Observation, services: CallServices) -> Observation:
    """Count a failure. A store that can't count must not keep a call from being settled."""
    try:
        return await count_refusal(call, observation, services)
    except StoreError as error:
        services.report(call.call_id, "store", error)
        return observation


def _unrecorded(call: Call) -> Observation:
    """Return the answer when the tool ran and the store failed."""
    code = Code.DEPENDENCY_UNAVAILABLE
    if call.entry is None or not call.outcome.began:
        return refused_observation(call, deny("ledger", code, NOT_RECORDED))
    action, sentence = AFTER_UNKNOWN[call.contract.on_unknown]
    reason = f"What came of it could not be written down. {sentence}"
    decision = deny("ledger", code, reason, next_action=action, rule="outcome-unknown")
    return refused_observation(call, decision)


# --- the event that ends a call -------------------------------------------------------------------


def _success(
    call: Call, observation: Observation, facts: Mapping[str, Any], services: CallServices
) -> Event:
    """Return the event of a success. `facts` are what events say of the proposal."""
    kind = EventType.RECONCILED if call.reconciled else EventType.SUCCEEDED
    body = _ending_body(call, observation, facts, services)
    if observation.verification.required:
        body["verify"] = True
    if observation.redactions:
        body["redactions"] = [redaction.record() for redaction in observation.redactions]
    now = None if call.entry is None else services.clock()
    ending = event(call, kind, observation.code.value, body, now)
    reference = observation.external_ref
    return ending if reference is None else ending._replace(external_ref=reference)


def _failure(
    call: Call, observation: Observation, facts: Mapping[str, Any], services: CallServices
) -> Event:
    """Return the event of a failure, with what an operator needs to look into it."""
    body, outcome = _ending_body(call, observation, facts, services), call.outcome
    if not outcome.began:
        body["began"] = False
    if call.retry_blocked:
        body["retry_blocked"] = True
    if call.outcome_unknown:
        body["unknown"] = call.contract.on_unknown.value
    if outcome.fault is not None:
        body["error"] = outcome.mask.text(outcome.fault.kinds[0])
    if outcome.trace:
        body["trace"] = _keep(call, outcome.trace.encode(errors="replace"), services)
    kind = EventType.RECONCILED if call.reconciled else EventType.FAILED
    return event(call, kind, observation.code.value, body, services.clock())


def _ending_body(
    call: Call, answer: Observation, facts: Mapping[str, Any], services: CallServices
) -> dict[str, Any]:
    ctx, body = call.ctx, event_body(call, None if answer.ok else answer)
    if ctx.corrections:
        body["corrections"] = len(ctx.corrections)
    if ctx.config_shown:
        config, _ = services.redactor.redact(ctx.config_shown)
        body["config"] = call.outcome.mask.data(config)
    attempts = call.attempt + (call.entry.attempts - 1 if call.entry else 0)
    if attempts > 1:
        body["attempts"] = attempts
    if ctx.approval_id is not None:
        body["approval_id"] = ctx.approval_id
    if call.reported:
        body["reported_by"] = "client"
    return {**body, **facts, "latency_ms": answer.latency_ms}


# --- the ledger entry -----------------------------------------------------------------------------


def settled_entry(
    call: Call, entry: Entry, observation: Observation, raw: str | None, services: CallServices
) -> Entry:
    """Return the entry with the outcome. `raw` is where the whole output is kept."""
    attempts = entry.attempts + call.attempt - 1
    if call.outcome_unknown:
        gives_up = call.resumed and entry.looks >= MAX_LOOKS
        asks = gives_up or call.contract.on_unknown is OnUnknown.ESCALATE
        phase = Phase.ESCALATED if asks else Phase.UNKNOWN
        since = services.clock() if entry.unknown_since is None else entry.unknown_since
        return entry.left(entry.status, attempts, phase=phase, unknown_since=since)
    outcome = call.outcome
    if not outcome.began or outcome.not_done or outcome.code in _NOT_EXECUTED:
        wrong = outcome.began and outcome.code is Code.SEMANTIC_INVALIDITY
        kept = _stored(call, observation, raw) if wrong else None
        return entry.left(EntryStatus.FAILED_RETRYABLE, attempts, observation=kept)
    unreadable = observation.code is Code.OBSERVATION_NORMALIZATION_FAIL
    status = EntryStatus.COMPLETED if observation.ok or unreadable else EntryStatus.FAILED_FINAL
    return entry.left(status, attempts, observation=_stored(call, observation, raw))


def _stored(call: Call, observation: Observation, raw: str | None) -> dict[str, Any]:
    """Return what a repeated call is answered from, with the decisions that say something."""
    kept = stored(observation, [timed for timed in call.decisions if not timed.decision.plain])
    if raw is not None:
        kept["raw"] = raw
    return kept


def _follow_up(call: Call, entry: Entry, services: CallServices) -> dict[str, Any]:
    """Return when to look again, how long to keep the answer, and what to verify."""
    contract, status = call.contract, entry.status
    if status is EntryStatus.PENDING:
        escalated = entry.phase is Phase.ESCALATED
        return {"again_after": None if escalated else _next_look(call, services)}
    keep_for = contract.idempotency.ttl_seconds
    if status is EntryStatus.COMPLETED and _verifiable(contract):
        _, expected, delay = verification_plan(call)
        body = {"expected": _seal_text(services.vault, entry, expected)}
        return {"keep_for": keep_for, "due": ((delay, due_for(DueKind.VERIFY, entry, body)),)}
    # An approval is not used up by a call that was not executed.
    gives_back = call.ctx.approval_id if status is EntryStatus.FAILED_RETRYABLE else None
    return {"keep_for": keep_for, "gives_back": gives_back}


def _next_look(call: Call, services: CallServices) -> float:
    """Return the seconds until a worker should find out what became of an unknown call."""
    if call.resumed:
        return pause_after(call.entry.looks if call.entry else 0, services.leases.seconds)
    return call.contract.runtime.timeout_ms / 1000


def pause_after(looks: int, lease: float) -> float:
    """Return the seconds until the next look: doubling, a minute at most."""
    return float(min(60.0, lease / 30 * 2 ** min(looks, 16)))


def _verifiable(contract: Contract) -> bool:
    """Return True if the contract demands verification, and has a hook to do it with."""
    required = contract.transactional.post_action_verification_required
    return required and (contract.probe is not None or contract.read_back is not None)


def _unused_approval(call: Call, observation: Observation) -> str | None:
    """Return the approval of a read that failed and may be made again."""
    if call.entry is not None or call.contract.mutates:
        return None
    return call.ctx.approval_id if observation.path is Path.RETRY else None


def _mended(call: Call) -> str | None:
    """Return the tool whose counted refusals are over, now that a call has succeeded."""
    names, refused = (call.contract.name, UNKNOWN_TOOL), call.ctx.run.refused
    return next((name for name in names if name in refused), None)


def due_for(kind: DueKind, entry: Entry, body: Mapping[str, Any]) -> Due:
    """Return due work about a call."""
    return Due(
        tenant=entry.tenant,
        kind=kind,
        key=entry.key,
        call_id=entry.call_id,
        run_id=entry.run_id,
        tool=entry.tool,
        version=entry.version,
        body=body,
    )


def _seal_text(vault: Vault, entry: Entry, value: Any) -> str:
    """Return a JSON value as text that only the vault's key opens."""
    return b64encode(vault.seal(entry.tenant, entry.key, to_json(value))).decode()


def open_text(vault: Vault, entry: Entry, sealed: str) -> Any:
    """Return the value of a sealed text in due work. VaultError if no key here opens it."""
    return from_json(vault.open(entry.tenant, entry.key, b64decode(sealed)))


# --- what is kept beside the entry ----------------------------------------------------------------


def _raw_output(call: Call) -> bytes | None:
    """Return the output as it came, if it has to be kept.

    That is where the agent is shown less of it, or where it may be needed to reverse the call.
    """
    observed = call.observed
    if observed is None or observed.raw is not None or not observed.redactions:
        return None if observed is None else observed.raw
    reversible = call.contract.transactional.compensation_tool is not None
    return to_json(observed.output) if reversible else None


def _keep(call: Call, raw: bytes, services: CallServices) -> str | None:
    """Put bytes into the vault. Returns their place, or None: a call is settled without it."""
    try:
        row = vault_row(call, raw, services)
        services.store.keep(row)
    except Exception as error:  # noqa: BLE001 - a broken vault must not keep a call from its end
        services.report(call.call_id, "vault", error)
        return None
    return row.pointer


def _keeps_read(call: Call, observation: Observation) -> bool:
    """Return True if the observation of this read has to be kept."""
    keeps = call.ctx.resolved.keeps
    if keeps is KeepReads.REDACTED:
        return bool(observation.redactions)
    return keeps is KeepReads.ALL


def _keep_read(call: Call, observation: Observation, services: CallServices) -> str | None:
    """Put the observation of a read into the vault. Returns its place, or None."""
    try:
        packed = pack_read(observation, services.keep_reads_bytes)
    except Exception as error:  # noqa: BLE001 - as with a vault that fails
        services.report(call.call_id, "vault", error)
        return None
    return _keep(call, packed, services)


def _effects(
    call: Call, observation: Observation, services: CallServices
) -> tuple[Mapping[str, str | int], Sequence[tuple[str, str, Any]]]:
    """Return the resource version that the run has seen, and the declared effects on its state."""
    contract, profile = call.contract, call.ctx.resolved.profile
    output = call.observed.output if call.observed else None
    if output is None or not observation.ok:
        return EMPTY, ()
    if not (contract.version_from or contract.state_effects):
        return EMPTY, ()
    # The output as checked, not as shown: what is shown may be a summary, or wrapped in steps.
    data = output.get("data") if observation.code is Code.PARTIAL_SUCCESS else output
    if not isinstance(data, Mapping):
        return EMPTY, ()
    data = without_redacted(data, profile)
    clean, _ = services.redactor.redact(data)
    declared = contract.affordance.output_schema.get("properties", {})
    effects = state_updates(contract.state_effects, clean, declared, wrapped=profile.wrapped)
    resource = resource_of(contract, call.ctx.arguments)
    version = at(data, contract.version_from) if contract.version_from else None
    if resource is None or not isinstance(version, str | int):
        return EMPTY, effects
    return {resource: version}, effects
