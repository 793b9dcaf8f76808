"""Due work about one call: verification, compensation, executing what was approved, notices.

Each kind is a function of the runtime and the work. It finishes the work in the store, and returns
one word for the tally.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from pydantic_core import from_json

from counterseal.audit import Event, EventType
from counterseal.call.admit import Resume, unpack
from counterseal.call.call import Call
from counterseal.call.events import caller_of, event
from counterseal.call.execute import read_back
from counterseal.call.hold import held_call
from counterseal.call.recall import compensation_key
from counterseal.call.resume import contract_for, probe_target, resumed_call, run_of
from counterseal.call.settle import open_text, pause_after
from counterseal.canonical import at
from counterseal.codes import Code, Path
from counterseal.contract.fill import compensation_arguments, differences
from counterseal.contract.model import Contract
from counterseal.errors import CountersealError, RegistryError
from counterseal.execution.probes import Probe, ProbeError
from counterseal.ledger.entry import Entry, EntryStatus
from counterseal.ledger.holds import usable
from counterseal.ledger.records import Due, Held, HeldStatus
from counterseal.ledger.requests import FinishRequest, StoredEntry
from counterseal.observation import Observation, refusal
from counterseal.observation.observation import from_stored, stored
from counterseal.operations.attention import COMPENSATION_AGENT
from counterseal.proposal import Proposal, System
from counterseal.registry import Refusal, RegistryRecord
from counterseal.runtime import Runtime

_TRIES: Final = 10
_MISMATCHES: Final = 3
"""How often an unexpected state is read before it counts: some systems show changes late."""
_LONG_PAUSE: Final = 60.0
"""Seconds until the next look at what waits for a person, or for another worker."""
_WAIT: Final = 1.0
"""Seconds to wait for the agent, if it submits the same call at the same time."""


class _ContractMissingError(CountersealError):
    """This process does not hold the contract of the call."""


async def _finish(runtime: Runtime, work: Due, word: str, **more: Any) -> str:
    await runtime.store.finish(FinishRequest(work, **more))
    return word


async def _later(runtime: Runtime, work: Due, at_least: float = 0.0) -> str:
    pause = max(pause_after(work.tries, runtime.leases.seconds), at_least)
    return await _finish(runtime, work, "resting", again_after=pause)


async def _look_up(runtime: Runtime, work: Due) -> StoredEntry | None:
    """Return the entry of the call, which keeps its answer as long as this work is due."""
    kept = await runtime.store.look_up(work.tenant, work.key)
    return None if kept is None else kept._replace(entry=kept.unexpired or kept.entry)


def _contract_of(runtime: Runtime, entry: Entry, resume: Resume) -> RegistryRecord:
    """Return the record of the very contract that a call was admitted under."""
    record = contract_for(runtime.registry, entry, resume)
    if record is None:
        lacks = f"this worker lacks {entry.tool} {entry.version} as it was called"
        raise _ContractMissingError(lacks)
    return record


# --- verification ---------------------------------------------------------------------------------


async def verify(runtime: Runtime, work: Due) -> str:
    """Check whether the target of a call is in the expected state, and record the result."""
    kept = await _look_up(runtime, work)
    if kept is None or kept.entry.status is EntryStatus.COMPENSATED:
        return await _finish(runtime, work, "dropped")  # reversed: nothing to verify
    if kept.entry.status is not EntryStatus.COMPLETED or kept.resume is None:
        return await _unverified(runtime, work, "what verification needs is no longer kept")
    try:
        resume = unpack(kept.resume, work.tenant, work.key, runtime.vault)
        record = _contract_of(runtime, kept.entry, resume)
        run = await run_of(runtime, kept.entry)
        call = resumed_call(kept.entry, resume, run, record, runtime)
        has_probe = record.contract.probe is not None
        target = await probe_target(call, record.contract, runtime) if has_probe else None
        wrong = await _differences(runtime, call, target, work, kept)
    except CountersealError as error:
        trace = error.trace if isinstance(error, ProbeError) else str(error)
        runtime.report(work.call_id, "verification", trace)
        if work.tries < _TRIES:
            return await _later(runtime, work)
        return await _unverified(runtime, work, "its state could not be read")
    if not wrong:
        verified = event(call, EventType.VERIFIED, "verified", {"tries": work.tries})
        return await _finish(runtime, work, "verified", events=(verified,))
    if target is not None and _is_newer(target, record.contract, kept):
        body = {"tries": work.tries, "wrong": wrong}
        overtaken = event(call, EventType.OVERTAKEN, "overtaken", body)
        return await _finish(runtime, work, "overtaken", events=(overtaken,))
    if work.tries < _MISMATCHES:
        return await _later(runtime, work)
    reversible = record.contract.transactional.compensation_tool is not None
    code = Code.COMPENSATION_REQUIRED if reversible else Code.STALE_STATE
    body = {"code": code.value, "wrong": wrong}
    unverified = event(call, EventType.UNVERIFIED, "unverified", body)
    return await _unverified(runtime, work, f"not as expected: {', '.join(wrong)}", unverified)


async def _unverified(runtime: Runtime, work: Due, reason: str, *events: Event) -> str:
    return await _finish(runtime, work, "unverified", failed=reason[:500], events=events)


def _is_newer(target: Probe, contract: Contract, kept: StoredEntry) -> bool:
    """Return True if the target has a later version, so that this call's effect is not visible."""
    if contract.version_from is None or kept.entry.observation is None:
        return False
    version = at(from_stored(kept.entry.observation).data, contract.version_from)
    return type(target.version) is int and type(version) is int and target.version > version


async def _differences(
    runtime: Runtime, call: Call, target: Probe | None, work: Due, kept: StoredEntry
) -> list[str]:
    """Return JSON Pointers to what is not as expected; values are not recorded."""
    if call.contract.probe is None:
        output = await read_back(call, call.contract, runtime)
        return ["the call itself"] if output is None else []
    if target is None:
        return ["the target itself"]
    sealed = work.body.get("expected")
    expected = open_text(runtime.vault, kept.entry, sealed) if isinstance(sealed, str) else None
    if expected is None:
        return []
    return [pointer for pointer, _, _ in differences(expected, target.state)]


# --- compensation ---------------------------------------------------------------------------------


async def compensate(runtime: Runtime, work: Due) -> str:
    """Reverse a call with the tool that its contract names.

    The reversal passes the same gates as any call, with Counterseal as the agent on behalf of the
    original's user, in a run of its own, under a key derived from the original's: however often it
    is tried, it happens once.
    """
    kept = await _look_up(runtime, work)
    if kept is None or kept.entry.status is EntryStatus.COMPENSATED:
        return await _finish(runtime, work, "dropped")  # reversed before
    if kept.entry.status is not EntryStatus.COMPLETED:
        return await _not_reversed(runtime, work, f"the call is {kept.entry.status.value} now")
    try:
        resume = unpack(kept.resume or b"", work.tenant, work.key, runtime.vault)
        original = _contract_of(runtime, kept.entry, resume).contract
        undo = _undo_for(runtime, kept.entry, original)
        output = await _output(runtime, kept.entry)
        arguments = compensation_arguments(original, undo.contract, resume.arguments, output)
    except _ContractMissingError:
        # Another worker may hold it, as while a new version is being rolled out.
        if work.tries < _TRIES:
            return await _finish(runtime, work, "resting", again_after=_LONG_PAUSE)
        return await _not_reversed(runtime, work, f"no worker holds {work.tool} {work.version}")
    except CountersealError as error:
        runtime.report(work.call_id, "compensation", error)
        return await _not_reversed(runtime, work, f"it can't be reversed: {error}")
    answer = await runtime.submit(
        Proposal(
            tool=undo.name,
            arguments=arguments,
            run_id=f"undo_{hashlib.sha256(work.key.encode()).hexdigest()[:24]}",
            key=compensation_key(work.key, work.body.get("generation", 0)),
            version=undo.version,
        ),
        System(
            covered=resume.approval_id is not None,
            reverses={
                "call_id": kept.entry.call_id,
                "tool": kept.entry.tool,
                "external_ref": from_stored(kept.entry.observation or {}).external_ref,
            },
            tenant=work.tenant,
            agent=COMPENSATION_AGENT,
            user=resume.user,
            roles=resume.roles,
            risk_level=resume.risk_level,
            scopes=undo.contract.security.required_scopes,
        ),
    )
    return await _finish_reversal(runtime, work, kept.entry, answer)


def _undo_for(runtime: Runtime, entry: Entry, original: Contract) -> RegistryRecord:
    undo = original.transactional.compensation_tool
    if undo is None:
        raise CountersealError("its contract names no compensation tool")
    resolved = runtime.registry.resolve(
        undo, tenant=entry.tenant, run_id=entry.run_id, version=None, agent=COMPENSATION_AGENT
    )
    if isinstance(resolved, Refusal):
        raise CountersealError(resolved.message)
    return resolved


async def _output(runtime: Runtime, entry: Entry) -> Any:
    """Return the whole output of the call, from the vault if the agent was shown less."""
    observation = from_stored(entry.observation or {})
    if observation.raw is None:
        return observation.data
    sealed = await runtime.store.fetch(entry.tenant, observation.raw)
    if sealed is None:
        raise CountersealError("its output is no longer kept")
    return from_json(runtime.vault.open(entry.tenant, entry.call_id, sealed))


async def _finish_reversal(runtime: Runtime, work: Due, entry: Entry, answer: Observation) -> str:
    if answer.ok:
        # From now on, a repeated call is told that it took effect, and was reversed.
        original = from_stored(entry.observation or {})
        observation = refusal(
            Code.STALE_STATE,
            tool=entry.tool,
            version=entry.version,
            contract=runtime.registry.get(entry.tool, entry.version).contract,
            call_id=entry.call_id,
            timestamp=runtime.clock(),
            reason="This call took effect, and was reversed afterwards.",
            trace_id=original.trace_id,
            attempt=original.attempt,
        )
        data = {"compensated": True, "compensation_call_id": answer.call_id}
        hint = original.verification._replace(required=True)
        repeated = stored(observation._replace(data=data, verification=hint))
        done = _reversal_event(runtime, work, EventType.COMPENSATED, {"by": answer.call_id})
        return await _finish(runtime, work, "compensated", compensated=repeated, events=(done,))
    if answer.code is Code.CONFIRMATION_MISSING and answer.approval_id and not answer.replan:
        return await _finish(runtime, work, "waiting", again_after=_LONG_PAUSE)
    later = answer.path is Path.RETRY or answer.code is Code.IDEMPOTENCY_CONFLICT
    if later and work.tries < _TRIES:
        return await _later(runtime, work, answer.retry_after or 0.0)
    reason = f"the reversal ended with {answer.code.value}"
    return await _not_reversed(runtime, work, reason, call_id=answer.call_id)


async def _not_reversed(runtime: Runtime, work: Due, reason: str, **more: str) -> str:
    body = {"code": Code.COMPENSATION_FAILED.value, "reason": reason, **more}
    events = (_reversal_event(runtime, work, EventType.COMPENSATION_FAILED, body),)
    return await _finish(runtime, work, "compensation_failed", failed=reason[:500], events=events)


def _reversal_event(runtime: Runtime, work: Due, kind: EventType, body: dict[str, Any]) -> Event:
    caller = caller_of(work, COMPENSATION_AGENT, None)
    return Event(kind, caller, runtime.clock(), kind.value.partition(".")[2], body=body)


# --- approved calls -------------------------------------------------------------------------------


async def execute_approved(runtime: Runtime, work: Due) -> str:
    """Submit an approved call, with grants and policy as they are now.

    The agent may submit it at the same time: the ledger lets one of them execute it.
    """
    held = await runtime.store.find_held(work.tenant, work.key)
    if held is None or not await _still_wanted(runtime, held):
        return await _finish(runtime, work, "dropped")
    if held.status is HeldStatus.SPENT or not _holds_contract(runtime, held):
        # The agent was faster, and may still fail; or another worker holds the contract.
        return await _later(runtime, work)
    try:
        answer = await _submit(runtime, held)
        left = await runtime.store.find_held(work.tenant, work.key)
        if left is not None and left.status is HeldStatus.VOID:
            answer = await _submit(runtime, held)  # the target has changed: approval is asked anew
    except CountersealError as error:
        runtime.report(work.call_id, "approved call", error)
        failed = f"it can't be executed: {error}"[:500]
        return await _finish(runtime, work, "failed", failed=failed)
    if answer.path is Path.RETRY or answer.code is Code.IDEMPOTENCY_CONFLICT:
        if work.tries < _TRIES:
            return await _later(runtime, work, answer.retry_after or 0.0)
        failed = f"it is approved, and still ends with {answer.code.value}"
        return await _finish(runtime, work, "failed", failed=failed)
    unproven = answer.code is Code.CONFIRMATION_MISSING and answer.approval_id == held.approval_id
    if unproven and left is not None and usable(left, runtime.clock()):
        return await _later(runtime, work)  # a key to verify it is missing here
    if answer.ok or left is None or left.status is not HeldStatus.APPROVED:
        return await _finish(runtime, work, "executed" if answer.ok else "refused")
    body = {"approval_id": held.approval_id, "by": answer.call_id, "code": answer.code.value}
    caller = caller_of(held, held.agent, held.user, held.trace_id)
    refused = Event(EventType.APPROVAL_NOT_EXECUTED, caller, runtime.clock(), "deny", body=body)
    return await _finish(runtime, work, "refused", events=(refused,))


async def _still_wanted(runtime: Runtime, held: Held) -> bool:
    """Return False if it has expired or been executed, or another request has replaced it."""
    memory = await runtime.store.recall(held.tenant, held.run_id, held.key, (held.agent, held.user))
    if memory.held is None or memory.held.approval_id != held.approval_id:
        return False
    if runtime.clock() >= held.expires_at:
        return False
    if held.status is HeldStatus.SPENT:
        return memory.entry is not None and memory.entry.status is EntryStatus.PENDING
    return held.status is HeldStatus.APPROVED


def _holds_contract(runtime: Runtime, held: Held) -> bool:
    """Return True if this worker holds the very contract that was approved."""
    try:
        contract = runtime.registry.get(held.tool, held.version).contract
    except RegistryError:
        return False
    return contract.hash == held.contract_hash


async def _submit(runtime: Runtime, held: Held) -> Observation:
    call = held_call(held, runtime.vault)
    # If the agent is executing it already, wait for its answer.
    proposal, principal = call.proposed(held.version), call.principal(held.tenant)
    return await runtime.submit(proposal, principal, wait=_WAIT)


async def leave_to_others(runtime: Runtime, work: Due) -> str:
    """Leave work about a tool that this worker lacks to others, until the request expires."""
    held = await runtime.store.find_held(work.tenant, work.key)
    if held is None or runtime.clock() >= held.expires_at:
        return await _finish(runtime, work, "dropped")
    return await _finish(runtime, work, "resting", again_after=_LONG_PAUSE)


async def notify(runtime: Runtime, work: Due) -> str:
    """Notify the webhook of a request that still waits."""
    held, webhook = await runtime.store.find_held(work.tenant, work.key), runtime.webhook
    if held is None or held.status is not HeldStatus.WAITING or runtime.clock() >= held.expires_at:
        return await _finish(runtime, work, "dropped")
    if webhook is None:
        return await _later(runtime, work)  # another worker has the webhook
    try:
        packet = await runtime.approvals.get(held.tenant, held.approval_id)
        notice = {
            "type": "approval.required",
            "approval_id": held.approval_id,
            "tenant": held.tenant,
            "tool": held.tool,
            "version": held.version,
            "risk_class": held.risk,
            "consequence": packet.consequence,
            "expires_at": held.expires_at,
            "url": webhook.link(held.approval_id),
        }
        status = await webhook.send(notice, runtime.clock())
    except Exception as error:  # noqa: BLE001 - any failure of the receiver is tried again
        runtime.report(work.call_id, "webhook", f"{type(error).__name__}: {error}")
        status = 0
    if 200 <= status < 300:
        return await _finish(runtime, work, "notified")
    if work.tries < _TRIES:
        return await _later(runtime, work)
    failed = f"the webhook answers {status}" if status else "the webhook could not be reached"
    return await _finish(runtime, work, "not_notified", failed=failed)
