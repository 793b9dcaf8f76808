"""Entries whose worker is gone, or whose outcome nobody knows: the contract says what then.

Nothing is run again that might have taken effect, unless its contract says that the destination
honours the key. What nobody here can find out goes to a person.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from counterseal.audit import Caller, Event, EventType
from counterseal.call.call import MAX_LOOKS, Call
from counterseal.call.execute import read_back
from counterseal.call.recall import seconds_until_not_executed
from counterseal.call.resume import (
    Resume,
    check_again,
    contract_for,
    execute_again,
    resumed_call,
    settle_as_executed,
    settle_as_not_executed,
    unpack,
)
from counterseal.call.settle import pause_after
from counterseal.contract.model import OnUnknown
from counterseal.errors import CountersealError
from counterseal.execution.probes import ProbeError
from counterseal.ledger.entry import Entry, Phase
from counterseal.registry import RegistryRecord
from counterseal.storage.base import Kept, RunRecord, Settle

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["run_of", "settle_orphan"]

_STRANGER: Final = 600.0
"""After how many seconds without anybody who holds its contract a person is asked."""


async def settle_orphan(runtime: Runtime, orphan: Kept, since: float) -> str:
    """Find out what became of it. One word for what was done about it.

    `since` is when it was asked for, by the monotonic clock.
    """
    entry = orphan.entry
    runtime.leases.hold(entry, since)
    try:
        if entry.looks > MAX_LOOKS + 3:
            return await _ask_a_person(runtime, entry, "nobody could find out in many tries")
        if orphan.resume is None:
            return await _ask_a_person(runtime, entry, "nothing was stored to go on from")
        try:
            resume = unpack(orphan.resume, entry.tenant, entry.key, runtime.vault)
        except CountersealError as error:
            return await _ask_a_person(runtime, entry, f"what was stored can't be read: {error}")
        record = contract_for(runtime.registry, entry, resume)
        if record is None:
            return await _not_ours(runtime, entry, resume)
        return await _go_on(runtime, entry, resume, record)
    finally:
        runtime.leases.let_go(entry)


async def _go_on(runtime: Runtime, entry: Entry, resume: Resume, record: RegistryRecord) -> str:
    call = resumed_call(entry, resume, await run_of(runtime, entry), record, runtime)
    on_unknown = record.contract.on_unknown
    if on_unknown is OnUnknown.ESCALATE:
        return await _ask_a_person(runtime, entry, "its contract asks for a person", resume)
    if runtime.executor.still_runs(entry.tenant, entry.key):
        return await _rest(runtime, entry, 1.0)
    if on_unknown is OnUnknown.READ_BACK:
        return await _read_back(runtime, call, entry)
    refused = check_again(call, runtime)
    if refused is not None:
        reason = f"it may not be run again: {refused.reason}"
        return await _ask_a_person(runtime, entry, reason, resume)
    seen = await execute_again(call, record.contract, runtime)
    if seen is None:
        return await _rest(runtime, entry)
    return "retried" if seen.ok else "resting"


async def _read_back(runtime: Runtime, call: Call, entry: Entry) -> str:
    contract = call.ctx.record.contract if call.ctx.record else None
    if contract is None:
        return await _rest(runtime, entry)
    # Before the question: an answer is as old as that.
    rest = seconds_until_not_executed(entry, contract, runtime.clock())
    try:
        found = await read_back(call, contract, runtime)
    except ProbeError as error:
        runtime.report(entry.call_id, "read_back", error.trace)
        if entry.looks >= MAX_LOOKS:
            return await _ask_a_person(runtime, entry, "the destination can't be asked")
        return await _rest(runtime, entry)
    if found is not None:
        await settle_as_executed(call, found, runtime)
        return "found"
    if rest > 0:
        return await _rest(runtime, entry, rest)
    await settle_as_not_executed(call, runtime)
    return "not_done"


async def _not_ours(runtime: Runtime, entry: Entry, resume: Resume) -> str:
    """Somebody else may hold its contract; not for ever, though."""
    since = runtime.clock() if entry.unknown_since is None else entry.unknown_since
    if entry.looks < 2 or runtime.clock() - since < _STRANGER:
        return await _rest(runtime, entry, 60.0)
    reason = f"no worker holds {entry.tool} {entry.version} as it was called"
    return await _ask_a_person(runtime, entry, reason, resume)


async def _rest(runtime: Runtime, entry: Entry, seconds: float | None = None) -> str:
    if seconds is None:
        seconds = pause_after(entry.looks, runtime.leases.seconds)
    await _leave(runtime, entry, Phase.UNKNOWN, seconds)
    return "resting"


async def _ask_a_person(
    runtime: Runtime, entry: Entry, reason: str, resume: Resume | None = None
) -> str:
    who = (
        ("counterseal", None, "")
        if resume is None
        else (resume.agent, resume.user, resume.trace_id)
    )
    agent, user, trace_id = who
    caller = Caller(
        entry.tenant, entry.run_id, entry.call_id, entry.tool, entry.version, agent, user, trace_id
    )
    body = {"reason": reason, "looks": entry.looks}
    event = Event(EventType.ESCALATED, caller, runtime.clock(), "escalate", body=body)
    await _leave(runtime, entry, Phase.ESCALATED, None, event)
    return "escalated"


async def _leave(
    runtime: Runtime, entry: Entry, phase: Phase, again_after: float | None, *events: Event
) -> None:
    now = runtime.clock()
    since = now if entry.unknown_since is None else entry.unknown_since
    left = entry._replace(phase=phase, unknown_since=since)
    request = Settle(entry.tenant, entry.run_id, now, left, {}, (), events)
    await runtime.store.settle(request._replace(again_after=again_after))


async def run_of(runtime: Runtime, entry: Entry) -> RunRecord:
    """The run that a call belongs to; one that is gone is made up, and not kept."""
    found = await runtime.store.find_run(entry.tenant, entry.run_id)
    now = runtime.clock()
    return found or RunRecord(tenant=entry.tenant, run_id=entry.run_id, started_at=now)
