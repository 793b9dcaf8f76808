"""Compensation: reversing what a call did, with the tool that its contract names.

It goes through the same gates as any call, as Counterseal itself on behalf of the original's user,
in a run of its own, under a key derived from the original's: however often
it is tried, it happens once.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import from_json

from counterseal.audit import Caller, Event, EventType
from counterseal.call.resume import Resume, contract_for, unpack
from counterseal.call.settle import due_for, pause_after
from counterseal.codes import Code, Path
from counterseal.contract.fill import compensation_arguments
from counterseal.errors import CountersealError, RegistryError
from counterseal.ledger.entry import Entry, Status
from counterseal.observation import Observation, refusal
from counterseal.observation.stored import from_stored, stored
from counterseal.proposal import Proposal, System
from counterseal.registry import Refusal, RegistryRecord
from counterseal.storage.base import Due, DueKind, Finish, Kept

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["AGENT", "compensate", "request_compensation", "undo_key"]

AGENT: Final = "counterseal.compensation"
"""The agent that a reversal is put on record for."""
_TRIES: Final = 10


class _NotHereError(CountersealError):
    """The contract of the call is not held by this process."""


_WHILE_ASKED: Final = 60.0
"""How often to look whether a person has approved a reversal that no approval covers."""


async def request_compensation(
    runtime: Runtime, tenant: str, key: str, *, reason: str, by: str
) -> Due:
    """Have what a call did reversed. RegistryError or CountersealError when that can't be.

    `key` may be the call's id, too.
    """
    kept = await runtime.store.look_up(tenant, key)
    kept = kept or await runtime.store.look_up_call(tenant, key)
    if kept is None:
        raise CountersealError(f"nothing is on record under the key {key!r}")
    entry = kept.entry
    if entry.status is not Status.COMPLETED:
        raise CountersealError(f"only what took effect can be reversed; this is {entry.status}")
    contract = runtime.registry.get(entry.tool, entry.version).contract
    undo = contract.transactional.compensation_tool
    if undo is None:
        raise RegistryError(f"{entry.tool} {entry.version} names no compensation tool")
    body = {"reason": reason[:500], "by": by[:128]}
    work = due_for(DueKind.COMPENSATE, entry, body)
    caller = Caller(
        tenant, entry.run_id, entry.call_id, entry.tool, entry.version, AGENT, by[:128], ""
    )
    told = {**body, "code": Code.COMPENSATION_REQUIRED.value, "tool": undo}
    kind = EventType.COMPENSATION_REQUIRED
    event = Event(kind, caller, runtime.clock(), "compensate", body=told)
    if await runtime.store.schedule(0.0, work, [event]):
        runtime.due.set()
        return work
    there = await runtime.store.find_due(tenant, DueKind.COMPENSATE, entry.key)
    if there is not None and there.failed is not None:
        raise CountersealError("its reversal has failed before; have it tried again, or dismiss it")
    return there or work


async def compensate(runtime: Runtime, work: Due) -> str:
    """Reverse a call. One word for what came of it."""
    kept = await runtime.store.look_up(work.tenant, work.key)
    if kept is None or kept.entry.status is Status.COMPENSATED:
        await runtime.store.finish(Finish(work))  # done before
        return "dropped"
    if kept.entry.status is not Status.COMPLETED:
        return await _failed(runtime, work, f"the call is {kept.entry.status.value} by now")
    try:
        resume = unpack(kept.resume or b"", work.tenant, work.key, runtime.vault)
        undo = _undo_for(runtime, kept.entry, resume)
        arguments = await _arguments(runtime, kept, resume, undo)
    except _NotHereError:
        # Another worker may hold it, as while a new version is being rolled out.
        if work.tries < _TRIES:
            await runtime.store.finish(Finish(work, again_after=_WHILE_ASKED))
            return "resting"
        return await _failed(runtime, work, f"no worker holds {work.tool} {work.version}")
    except CountersealError as error:
        runtime.report(work.call_id, "compensation", error)
        return await _failed(runtime, work, f"it can't be reversed: {error}")
    seen = await runtime.submit(
        Proposal(
            tool=undo.name,
            arguments=arguments,
            run_id=_run_id(work),
            key=undo_key(work),
            version=undo.version,
        ),
        System(
            covered=resume.approval_id is not None,
            tenant=work.tenant,
            agent=AGENT,
            user=resume.user,
            roles=resume.roles,
            scopes=undo.contract.security.required_scopes,
        ),
    )
    return await _finish(runtime, work, kept.entry, seen)


def _undo_for(runtime: Runtime, entry: Entry, resume: Resume) -> RegistryRecord:
    record = contract_for(runtime.registry, entry, resume)
    if record is None:
        raise _NotHereError(f"{entry.tool} {entry.version} is not here as it was called")
    undo = record.contract.transactional.compensation_tool
    if undo is None:
        raise CountersealError("its contract names no compensation tool")
    found = runtime.registry.resolve(
        undo, tenant=entry.tenant, run_id=entry.run_id, version=None, agent=AGENT
    )
    if isinstance(found, Refusal):
        raise CountersealError(found.message)
    return found


async def _arguments(
    runtime: Runtime, kept: Kept, resume: Resume, undo: RegistryRecord
) -> dict[str, Any]:
    original = runtime.registry.get(kept.entry.tool, kept.entry.version).contract
    output = await _output(runtime, kept.entry)
    return compensation_arguments(original, undo.contract, resume.arguments, output)


async def _output(runtime: Runtime, entry: Entry) -> Any:
    """What the call returned: all of it, where what the agent saw is less."""
    seen = from_stored(entry.observation or {})
    if seen.raw is None:
        return seen.data
    sealed = await runtime.store.fetch(entry.tenant, seen.raw)
    if sealed is None:
        raise CountersealError("what it returned is no longer kept")
    return from_json(runtime.vault.open(entry.tenant, entry.call_id, sealed))


def undo_key(work: Due) -> str:
    """What the reversal's own key is made of. An operator may begin anew what failed for good."""
    generation = work.body.get("generation", 0)
    named = f"{work.key}\0{generation}" if generation else work.key
    return hashlib.sha256(named.encode()).hexdigest()


def _run_id(work: Due) -> str:
    return f"undo_{hashlib.sha256(work.key.encode()).hexdigest()[:24]}"


async def _finish(runtime: Runtime, work: Due, entry: Entry, seen: Observation) -> str:
    if seen.ok:
        answer = _reversed(runtime, entry, seen)
        event = _event(runtime, work, EventType.COMPENSATED, {"by": seen.call_id})
        await runtime.store.finish(Finish(work, compensated=stored(answer), events=(event,)))
        return "compensated"
    if seen.code is Code.CONFIRMATION_MISSING and seen.approval_id and not seen.replan:
        await runtime.store.finish(Finish(work, again_after=_WHILE_ASKED))
        return "waiting"
    later = seen.path is Path.RETRY or seen.code is Code.IDEMPOTENCY_CONFLICT
    if later and work.tries < _TRIES:
        pause = pause_after(work.tries, runtime.leases.seconds)
        await runtime.store.finish(Finish(work, again_after=max(pause, seen.retry_after or 0.0)))
        return "resting"
    return await _failed(runtime, work, f"the reversal ended with {seen.code.value}", seen)


def _reversed(runtime: Runtime, entry: Entry, seen: Observation) -> Observation:
    """What a repeated request gets from now on: it was done, and it was reversed."""
    contract = runtime.registry.get(entry.tool, entry.version).contract
    original = from_stored(entry.observation or {})
    told = refusal(
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
    data = {"compensated": True, "compensation_call_id": seen.call_id}
    hint = original.verification._replace(required=True)
    return told._replace(data=data, verification=hint)


async def _failed(runtime: Runtime, work: Due, reason: str, seen: Observation | None = None) -> str:
    body = {"code": Code.COMPENSATION_FAILED.value, "reason": reason}
    if seen is not None:
        body["call_id"] = seen.call_id
    event = _event(runtime, work, EventType.COMPENSATION_FAILED, body)
    await runtime.store.finish(Finish(work, failed=reason[:500], events=(event,)))
    return "compensation_failed"


def _event(runtime: Runtime, work: Due, kind: EventType, body: dict[str, Any]) -> Event:
    caller = Caller(
        work.tenant, work.run_id, work.call_id, work.tool, work.version, AGENT, None, ""
    )
    return Event(kind, caller, runtime.clock(), kind.value.partition(".")[2], body=body)
