"""Compensation: reverses a call with the tool that its contract names.

The reversal passes the same gates as any call, with Counterseal as the agent on behalf of the
original's user, in a run of its own, under a key derived from the original's: however often it is
tried, it happens once.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from pydantic_core import from_json

from counterseal.audit import Caller, Event, EventType
from counterseal.call.resume import Resume, contract_for, unpack
from counterseal.call.settle import pause_after
from counterseal.codes import Code, Path
from counterseal.contract.fill import compensation_arguments
from counterseal.errors import CountersealError
from counterseal.ledger.entry import Entry, EntryStatus
from counterseal.ledger.records import Due
from counterseal.ledger.requests import FinishRequest, StoredEntry
from counterseal.observation import Observation, refusal
from counterseal.observation.observation import from_stored, stored
from counterseal.operations.attention import COMPENSATION_AGENT, compensation_key
from counterseal.proposal import Proposal, System
from counterseal.registry import Refusal, RegistryRecord
from counterseal.runtime import Runtime

_TRIES: Final = 10
_APPROVAL_PAUSE: Final = 60.0
"""Seconds between two looks whether a reversal that needs its own approval has it."""


class _ContractMissingError(CountersealError):
    """This process does not hold the contract of the call."""


async def compensate(runtime: Runtime, work: Due) -> str:
    """Reverse a call. Returns one word for the tally."""
    kept = await runtime.store.look_up(work.tenant, work.key)
    if kept is None or kept.entry.status is EntryStatus.COMPENSATED:
        await runtime.store.finish(FinishRequest(work))  # reversed before
        return "dropped"
    if kept.entry.status is not EntryStatus.COMPLETED:
        return await _failed(runtime, work, f"the call is {kept.entry.status.value} now")
    try:
        resume = unpack(kept.resume or b"", work.tenant, work.key, runtime.vault)
        undo = _undo_for(runtime, kept.entry, resume)
        arguments = await _arguments(runtime, kept, resume, undo)
    except _ContractMissingError:
        # Another worker may hold it, as while a new version is being rolled out.
        if work.tries < _TRIES:
            await runtime.store.finish(FinishRequest(work, again_after=_APPROVAL_PAUSE))
            return "resting"
        return await _failed(runtime, work, f"no worker holds {work.tool} {work.version}")
    except CountersealError as error:
        runtime.report(work.call_id, "compensation", error)
        return await _failed(runtime, work, f"it can't be reversed: {error}")
    answer = await runtime.submit(
        Proposal(
            tool=undo.name,
            arguments=arguments,
            run_id=_run_id(work),
            key=compensation_key(work),
            version=undo.version,
        ),
        System(
            covered=resume.approval_id is not None,
            tenant=work.tenant,
            agent=COMPENSATION_AGENT,
            user=resume.user,
            roles=resume.roles,
            scopes=undo.contract.security.required_scopes,
        ),
    )
    return await _finish(runtime, work, kept.entry, answer)


def _undo_for(runtime: Runtime, entry: Entry, resume: Resume) -> RegistryRecord:
    record = contract_for(runtime.registry, entry, resume)
    if record is None:
        raise _ContractMissingError(
            f"this worker lacks {entry.tool} {entry.version} as it was called"
        )
    undo = record.contract.transactional.compensation_tool
    if undo is None:
        raise CountersealError("its contract names no compensation tool")
    resolved = runtime.registry.resolve(
        undo, tenant=entry.tenant, run_id=entry.run_id, version=None, agent=COMPENSATION_AGENT
    )
    if isinstance(resolved, Refusal):
        raise CountersealError(resolved.message)
    return resolved


async def _arguments(
    runtime: Runtime, kept: StoredEntry, resume: Resume, undo: RegistryRecord
) -> dict[str, Any]:
    original = runtime.registry.get(kept.entry.tool, kept.entry.version).contract
    output = await _output(runtime, kept.entry)
    return compensation_arguments(original, undo.contract, resume.arguments, output)


async def _output(runtime: Runtime, entry: Entry) -> Any:
    """Return the whole output of the call, from the vault if the agent was shown less."""
    observation = from_stored(entry.observation or {})
    if observation.raw is None:
        return observation.data
    sealed = await runtime.store.fetch(entry.tenant, observation.raw)
    if sealed is None:
        raise CountersealError("its output is no longer kept")
    return from_json(runtime.vault.open(entry.tenant, entry.call_id, sealed))


def _run_id(work: Due) -> str:
    return f"undo_{hashlib.sha256(work.key.encode()).hexdigest()[:24]}"


async def _finish(runtime: Runtime, work: Due, entry: Entry, answer: Observation) -> str:
    if answer.ok:
        repeated = stored(_reversed(runtime, entry, answer))
        event = _event(runtime, work, EventType.COMPENSATED, {"by": answer.call_id})
        await runtime.store.finish(FinishRequest(work, compensated=repeated, events=(event,)))
        return "compensated"
    if answer.code is Code.CONFIRMATION_MISSING and answer.approval_id and not answer.replan:
        await runtime.store.finish(FinishRequest(work, again_after=_APPROVAL_PAUSE))
        return "waiting"
    later = answer.path is Path.RETRY or answer.code is Code.IDEMPOTENCY_CONFLICT
    if later and work.tries < _TRIES:
        pause = pause_after(work.tries, runtime.leases.seconds)
        pause = max(pause, answer.retry_after or 0.0)
        await runtime.store.finish(FinishRequest(work, again_after=pause))
        return "resting"
    return await _failed(runtime, work, f"the reversal ended with {answer.code.value}", answer)


def _reversed(runtime: Runtime, entry: Entry, answer: Observation) -> Observation:
    """Return the answer to a repeated call from now on: it took effect, and was reversed."""
    contract = runtime.registry.get(entry.tool, entry.version).contract
    original = from_stored(entry.observation or {})
    observation = refusal(
        Code.STALE_STATE,
        tool=entry.tool,
        version=entry.version,
        contract=contract,
        call_id=entry.call_id,
        timestamp=runtime.clock(),
        reason="This call took effect, and was reversed afterwards.",
        trace_id=original.trace_id,
        attempt=original.attempt,
    )
    data = {"compensated": True, "compensation_call_id": answer.call_id}
    hint = original.verification._replace(required=True)
    return observation._replace(data=data, verification=hint)


async def _failed(
    runtime: Runtime, work: Due, reason: str, answer: Observation | None = None
) -> str:
    body = {"code": Code.COMPENSATION_FAILED.value, "reason": reason}
    if answer is not None:
        body["call_id"] = answer.call_id
    event = _event(runtime, work, EventType.COMPENSATION_FAILED, body)
    await runtime.store.finish(FinishRequest(work, failed=reason[:500], events=(event,)))
    return "compensation_failed"


def _event(runtime: Runtime, work: Due, kind: EventType, body: dict[str, Any]) -> Event:
    caller = Caller(
        tenant=work.tenant,
        run_id=work.run_id,
        call_id=work.call_id,
        tool=work.tool,
        version=work.version,
        agent=COMPENSATION_AGENT,
        user=None,
        trace_id="",
    )
    return Event(kind, caller, runtime.clock(), kind.value.partition(".")[2], body=body)
