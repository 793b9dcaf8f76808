"""Due work of requests for approval: executes approved calls, and notifies the webhook."""

from __future__ import annotations

from typing import Any, Final

from counterseal.call.hold import held_call
from counterseal.call.settle import pause_after
from counterseal.codes import Code, Path
from counterseal.errors import CountersealError, RegistryError
from counterseal.execution.webhook import Webhook
from counterseal.ledger.entry import EntryStatus
from counterseal.ledger.holds import usable
from counterseal.ledger.records import Due, Held, HeldStatus
from counterseal.ledger.requests import FinishRequest
from counterseal.observation import Observation
from counterseal.runtime import Runtime

_TRIES: Final = 10
_WAIT: Final = 1.0
"""Seconds to wait for the agent, if it submits the same call at the same time."""
_OTHERS_PAUSE: Final = 60.0
"""Seconds until the next worker looks at work that this one can't do."""


async def execute_approved(runtime: Runtime, work: Due) -> str:
    """Submit an approved call, with grants and policy as they are now.

    The agent may submit it at the same time: the ledger lets one of them execute it.
    """
    held = await runtime.store.find_held(work.tenant, work.key)
    if held is None or not await _still_wanted(runtime, held):
        await runtime.store.finish(FinishRequest(work))
        return "dropped"
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
        await runtime.store.finish(
            FinishRequest(work, failed=f"it can't be executed: {error}"[:500])
        )
        return "failed"
    if answer.path is Path.RETRY or answer.code is Code.IDEMPOTENCY_CONFLICT:
        if work.tries < _TRIES:
            return await _later(runtime, work, answer.retry_after or 0.0)
        failed = f"it is approved, and still ends with {answer.code.value}"
        await runtime.store.finish(FinishRequest(work, failed=failed))
        return "failed"
    unproven = answer.code is Code.CONFIRMATION_MISSING and answer.approval_id == held.approval_id
    if unproven and left is not None and usable(left, runtime.clock()):
        return await _later(runtime, work)  # a key to verify it is missing here
    await runtime.store.finish(FinishRequest(work))
    return "executed" if answer.ok else "refused"


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


async def _later(runtime: Runtime, work: Due, at_least: float = 0.0) -> str:
    pause = max(pause_after(work.tries, runtime.leases.seconds), at_least)
    await runtime.store.finish(FinishRequest(work, again_after=pause))
    return "resting"


async def leave_to_others(runtime: Runtime, work: Due) -> str:
    """Leave work about a tool that this worker lacks to others, until the request expires."""
    held = await runtime.store.find_held(work.tenant, work.key)
    if held is None or runtime.clock() >= held.expires_at:
        await runtime.store.finish(FinishRequest(work))
        return "dropped"
    await runtime.store.finish(FinishRequest(work, again_after=_OTHERS_PAUSE))
    return "resting"


async def _submit(runtime: Runtime, held: Held) -> Observation:
    call = held_call(held, runtime.vault)
    # If the agent is executing it already, wait for its answer.
    proposal, principal = call.proposed(held.version), call.principal(held.tenant)
    return await runtime.submit(proposal, principal, wait=_WAIT)


async def notify(runtime: Runtime, work: Due) -> str:
    """Notify the webhook of a request that still waits."""
    held, webhook = await runtime.store.find_held(work.tenant, work.key), runtime.webhook
    waits = held is not None and held.status is HeldStatus.WAITING
    if held is None or not waits or runtime.clock() >= held.expires_at:
        await runtime.store.finish(FinishRequest(work))
        return "dropped"
    if webhook is None:
        return await _later(runtime, work)  # another worker has the webhook
    try:
        status = await webhook.send(await _notice(runtime, held, webhook), runtime.clock())
    except Exception as error:  # noqa: BLE001 - any failure of the receiver is tried again
        runtime.report(work.call_id, "webhook", f"{type(error).__name__}: {error}")
        status = 0
    if 200 <= status < 300:
        await runtime.store.finish(FinishRequest(work))
        return "notified"
    if work.tries < _TRIES:
        return await _later(runtime, work)
    failed = f"the webhook answers {status}" if status else "the webhook could not be reached"
    await runtime.store.finish(FinishRequest(work, failed=failed))
    return "not_notified"


async def _notice(runtime: Runtime, held: Held, webhook: Webhook) -> dict[str, Any]:
    packet = await runtime.approvals.get(held.tenant, held.approval_id)
    return {
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
