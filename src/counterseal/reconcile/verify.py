"""Verification: checks after a call whether its target is in the expected state."""

from __future__ import annotations

from typing import Any, Final

from counterseal.audit import Event, EventType
from counterseal.call.call import Call
from counterseal.call.events import event
from counterseal.call.execute import read_back
from counterseal.call.resume import contract_for, probe_target, resumed_call, unpack
from counterseal.call.settle import open_text, pause_after
from counterseal.canonical import at
from counterseal.codes import Code
from counterseal.contract.fill import differences
from counterseal.contract.model import Contract
from counterseal.errors import CountersealError
from counterseal.execution.probes import Probe, ProbeError
from counterseal.ledger.entry import EntryStatus
from counterseal.ledger.records import Due
from counterseal.ledger.requests import FinishRequest, StoredEntry
from counterseal.observation.observation import from_stored
from counterseal.reconcile.unknown import run_of
from counterseal.runtime import Runtime

_MISMATCHES: Final = 3
"""How often an unexpected state is read before it counts: some systems show changes late."""
_TRIES: Final = 10
"""How often reading the state is tried."""


async def verify(runtime: Runtime, work: Due) -> str:
    """Check the target's state and record the result. Returns one word for the tally."""
    kept = await runtime.store.look_up(work.tenant, work.key)
    if kept is None or kept.entry.status is EntryStatus.COMPENSATED:
        await runtime.store.finish(FinishRequest(work))  # reversed: nothing to verify
        return "dropped"
    if kept.entry.status is not EntryStatus.COMPLETED or kept.resume is None:
        return await _failed(runtime, work, None, "what verification needs is no longer kept")
    try:
        call = await _call_of(runtime, work, kept)
        contract = _contract(call)
        target = None if contract.probe is None else await probe_target(call, contract, runtime)
        wrong = await _differences(runtime, call, target, work, kept)
    except CountersealError as error:
        trace = error.trace if isinstance(error, ProbeError) else str(error)
        runtime.report(work.call_id, "verification", trace)
        if work.tries < _TRIES:
            return await _again(runtime, work)
        return await _failed(runtime, work, None, "its state could not be read")
    if not wrong:
        recorded = _event(call, EventType.VERIFIED, {"tries": work.tries})
        await runtime.store.finish(FinishRequest(work, events=(recorded,)))
        return "verified"
    if target is not None and _is_newer(target, _contract(call), kept):
        recorded = _event(call, EventType.OVERTAKEN, {"tries": work.tries, "wrong": wrong})
        await runtime.store.finish(FinishRequest(work, events=(recorded,)))
        return "overtaken"
    if work.tries < _MISMATCHES:
        return await _again(runtime, work)
    return await _failed(runtime, work, call, f"not as expected: {', '.join(wrong)}"[:500], wrong)


async def _call_of(runtime: Runtime, work: Due, kept: StoredEntry) -> Call:
    resume = unpack(kept.resume or b"", work.tenant, work.key, runtime.vault)
    record = contract_for(runtime.registry, kept.entry, resume)
    if record is None:
        raise CountersealError(f"this worker lacks {work.tool} {work.version} as it was called")
    run = await run_of(runtime, kept.entry)
    return resumed_call(kept.entry, resume, run, record, runtime)


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
    contract = _contract(call)
    if contract.probe is None:
        return [] if await read_back(call, contract, runtime) is not None else ["the call itself"]
    if target is None:
        return ["the target itself"]
    sealed = work.body.get("expected")
    expected = open_text(runtime.vault, kept.entry, sealed) if isinstance(sealed, str) else None
    if expected is None:
        return []
    return [pointer for pointer, _, _ in differences(expected, target.state)]


async def _again(runtime: Runtime, work: Due) -> str:
    pause = pause_after(work.tries, runtime.leases.seconds)
    await runtime.store.finish(FinishRequest(work, again_after=pause))
    return "resting"


async def _failed(
    runtime: Runtime, work: Due, call: Call | None, reason: str, wrong: list[str] | None = None
) -> str:
    events: tuple[Event, ...] = ()
    if call is not None:
        reversible = _contract(call).transactional.compensation_tool is not None
        code = Code.COMPENSATION_REQUIRED if reversible else Code.STALE_STATE
        body = {"code": code.value, "wrong": wrong or []}
        events = (_event(call, EventType.UNVERIFIED, body),)
    await runtime.store.finish(FinishRequest(work, failed=reason, events=events))
    return "unverified"


def _contract(call: Call) -> Contract:
    record = call.ctx.record
    if record is None:
        raise CountersealError("the contract is gone")
    return record.contract


def _event(call: Call, kind: EventType, body: dict[str, Any]) -> Event:
    return event(call, kind, kind.value.partition(".")[2], body)
