"""Unknown outcomes: entries whose worker is gone, or whose call got no answer.

The contract says what to do. A call that may have taken effect is not executed again, unless the
destination honours the key. What can't be found out goes to an operator.
"""

from __future__ import annotations

from typing import Final

from counterseal.audit import Event, EventType
from counterseal.call.admit import Resume, unpack
from counterseal.call.call import MAX_LOOKS, Call, Moment
from counterseal.call.events import caller_of
from counterseal.call.execute import read_back
from counterseal.call.recall import seconds_until_not_executed
from counterseal.call.resume import (
    check_again,
    contract_for,
    execute_again,
    resumed_call,
    run_of,
    settle_as_executed,
    settle_as_not_executed,
)
from counterseal.call.settle import pause_after
from counterseal.contract.model import OnUnknown
from counterseal.errors import CountersealError
from counterseal.execution.probes import ProbeError
from counterseal.ledger.entry import Entry, Phase
from counterseal.ledger.requests import SettlementRequest, StoredEntry
from counterseal.registry import RegistryRecord
from counterseal.runtime import Runtime

_UNCLAIMED_SECONDS: Final = 600.0
"""Seconds without a worker that holds its contract, after which an operator has to decide."""


async def find_out(
    runtime: Runtime, orphan: StoredEntry, since: Moment, *, waits: bool = False
) -> str:
    """Find out what became of a call, and settle it. Returns one word for the tally.

    `since` is a moment before this worker's lease began. `waits` is for a process that makes one
    pass only: it waits for its second look at the destination.
    """
    entry = orphan.entry
    runtime.leases.hold(entry, since)
    try:
        if entry.looks > MAX_LOOKS + 3:
            return await _escalate(runtime, entry, "its outcome could not be found out")
        if orphan.resume is None:
            return await _escalate(runtime, entry, "nothing was stored to continue from")
        try:
            resume = unpack(orphan.resume, entry.tenant, entry.key, runtime.vault)
        except CountersealError as error:
            return await _escalate(runtime, entry, f"what was stored can't be read: {error}")
        record = contract_for(runtime.registry, entry, resume)
        if record is None:
            return await _leave_to_others(runtime, entry, resume)
        return await _continue(runtime, entry, resume, record, waits=waits)
    finally:
        runtime.leases.let_go(entry)


async def _continue(
    runtime: Runtime, entry: Entry, resume: Resume, record: RegistryRecord, *, waits: bool
) -> str:
    call = resumed_call(entry, resume, await run_of(runtime, entry), record, runtime)
    on_unknown = record.contract.on_unknown
    if on_unknown is OnUnknown.ESCALATE:
        return await _escalate(runtime, entry, "its contract leaves it to a person", resume)
    if runtime.executor.abandoned(entry.tenant, entry.key):
        return await _look_later(runtime, entry, 1.0)
    if on_unknown is OnUnknown.READ_BACK:
        return await _read_back(runtime, call, entry, waits=waits)
    refused = check_again(call, runtime)
    if refused is not None:
        reason = f"it may not be executed again: {refused.reason}"
        return await _escalate(runtime, entry, reason, resume)
    answer = await execute_again(call, record.contract, runtime)
    if answer is None:
        return await _look_later(runtime, entry)
    return "retried" if answer.ok else "resting"


async def _read_back(runtime: Runtime, call: Call, entry: Entry, *, waits: bool) -> str:
    contract = call.contract
    # Before the question, because the answer is as old as that.
    seconds = seconds_until_not_executed(entry, contract, runtime)
    try:
        output = await read_back(call, contract, runtime)
    except ProbeError as error:
        runtime.report(entry.call_id, "read_back", error.trace)
        if entry.looks >= MAX_LOOKS:
            return await _escalate(runtime, entry, "the destination can't be read back")
        return await _look_later(runtime, entry)
    if output is not None:
        await settle_as_executed(call, output, runtime)
        return "found"
    if seconds > 0 and waits:
        await runtime.pause(seconds)
        return await _read_back(runtime, call, entry, waits=False)
    if seconds > 0:
        return await _look_later(runtime, entry, seconds)
    await settle_as_not_executed(call, runtime)
    return "not_done"


async def _leave_to_others(runtime: Runtime, entry: Entry, resume: Resume) -> str:
    """Leave an entry to a worker that holds its contract, for a limited time."""
    since = runtime.clock() if entry.unknown_since is None else entry.unknown_since
    if entry.looks < 2 or runtime.clock() - since < _UNCLAIMED_SECONDS:
        return await _look_later(runtime, entry, 60.0)
    reason = f"no worker holds {entry.tool} {entry.version} as it was called"
    return await _escalate(runtime, entry, reason, resume)


async def _look_later(runtime: Runtime, entry: Entry, seconds: float | None = None) -> str:
    if seconds is None:
        seconds = pause_after(entry.looks, runtime.leases.seconds)
    await _leave(runtime, entry, Phase.UNKNOWN, seconds)
    return "resting"


async def _escalate(
    runtime: Runtime, entry: Entry, reason: str, resume: Resume | None = None
) -> str:
    caller = caller_of(entry, "counterseal", None)
    if resume is not None:
        caller = caller_of(entry, resume.agent, resume.user, resume.trace_id)
    body = {"reason": reason, "looks": entry.looks}
    event = Event(EventType.ESCALATED, caller, runtime.clock(), "escalate", body=body)
    await _leave(runtime, entry, Phase.ESCALATED, None, event)
    return "escalated"


async def _leave(
    runtime: Runtime, entry: Entry, phase: Phase, again_after: float | None, *events: Event
) -> None:
    now = runtime.clock()
    since = now if entry.unknown_since is None else entry.unknown_since
    request = SettlementRequest(
        tenant=entry.tenant,
        run_id=entry.run_id,
        now=now,
        entry=entry._replace(phase=phase, unknown_since=since),
        seen={},
        state=(),
        events=events,
        again_after=again_after,
    )
    await runtime.store.settle(request)
