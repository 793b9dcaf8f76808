"""Requests for approval, afterwards: carrying out what was approved, and telling who is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from counterseal.call.hold import held_call
from counterseal.call.settle import pause_after
from counterseal.codes import Code, Path
from counterseal.errors import CountersealError, RegistryError
from counterseal.execution.webhook import Webhook
from counterseal.ledger.entry import Status
from counterseal.ledger.rules import usable
from counterseal.observation import Observation
from counterseal.storage.base import Due, Finish, Held, HeldStatus

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["carry_out", "notify", "put_off"]

_TRIES: Final = 10
_PATIENCE: Final = 1.0
"""For how many seconds an agent that is carrying out the same call is waited for."""
_FOR_OTHERS: Final = 60.0
"""After how many seconds to look again whether a worker has come that holds the tool."""


async def carry_out(runtime: Runtime, work: Due) -> str:
    """Make an approved call: the same way as any, with grants and policy of today.

    Whether it is done once is the ledger's business: the agent may send it again meanwhile.
    """
    held = await runtime.store.find_held(work.tenant, work.key)
    if held is None or not await _still_wanted(runtime, held):
        await runtime.store.finish(Finish(work))
        return "dropped"
    if held.status is HeldStatus.SPENT or not _is_here(runtime, held):
        # The agent was faster, but may not get to the end of it; or it is for another worker.
        return await _later(runtime, work)
    try:
        seen = await _submit(runtime, held)
        left = await runtime.store.find_held(work.tenant, work.key)
        if left is not None and left.status is HeldStatus.VOID:
            seen = await _submit(runtime, held)  # the world has changed: somebody is asked anew
    except CountersealError as error:
        runtime.report(work.call_id, "approved call", error)
        await runtime.store.finish(Finish(work, failed=f"it can't be carried out: {error}"[:500]))
        return "failed"
    if seen.path is Path.RETRY or seen.code is Code.IDEMPOTENCY_CONFLICT:
        if work.tries < _TRIES:
            return await _later(runtime, work, seen.retry_after or 0.0)
        failed = f"it is approved, and still ends with {seen.code.value}"
        await runtime.store.finish(Finish(work, failed=failed))
        return "failed"
    unproven = seen.code is Code.CONFIRMATION_MISSING and seen.approval_id == held.approval_id
    if unproven and left is not None and usable(left, runtime.clock()):
        return await _later(runtime, work)  # it can't be checked here, or not yet
    await runtime.store.finish(Finish(work))
    return "executed" if seen.ok else "refused"


async def _still_wanted(runtime: Runtime, held: Held) -> bool:
    """Whether it is neither over nor done, and nothing else was asked for under its key since."""
    memory = await runtime.store.recall(held.tenant, held.run_id, held.key, (held.agent, held.user))
    if memory.held is None or memory.held.approval_id != held.approval_id:
        return False
    if runtime.clock() >= held.expires_at:
        return False
    if held.status is HeldStatus.SPENT:
        return memory.entry is not None and memory.entry.status is Status.PENDING
    return held.status is HeldStatus.APPROVED


def _is_here(runtime: Runtime, held: Held) -> bool:
    """Whether this worker holds the very contract that was approved."""
    try:
        contract = runtime.registry.get(held.tool, held.version).contract
    except RegistryError:
        return False
    return contract.hash == held.contract_hash


async def _later(runtime: Runtime, work: Due, at_least: float = 0.0) -> str:
    pause = max(pause_after(work.tries, runtime.leases.seconds), at_least)
    await runtime.store.finish(Finish(work, again_after=pause))
    return "resting"


async def put_off(runtime: Runtime, work: Due) -> str:
    """Leave to others what is about a tool that this worker lacks, as long as it can be done."""
    held = await runtime.store.find_held(work.tenant, work.key)
    if held is None or runtime.clock() >= held.expires_at:
        await runtime.store.finish(Finish(work))
        return "dropped"
    await runtime.store.finish(Finish(work, again_after=_FOR_OTHERS))
    return "resting"


async def _submit(runtime: Runtime, held: Held) -> Observation:
    call = held_call(held, runtime.vault)
    # The agent may be at it already: then its answer is waited for, and nobody is refused.
    proposal, principal = call.proposed(held.version), call.principal(held.tenant)
    return await runtime.submit(proposal, principal, wait=_PATIENCE)


async def notify(runtime: Runtime, work: Due) -> str:
    """Tell of a request, as long as it waits."""
    held, webhook = await runtime.store.find_held(work.tenant, work.key), runtime.webhook
    waits = held is not None and held.status is HeldStatus.WAITING
    if held is None or not waits or runtime.clock() >= held.expires_at:
        await runtime.store.finish(Finish(work))
        return "dropped"
    if webhook is None:
        return await _later(runtime, work)  # another worker knows whom to tell
    try:
        status = await webhook.send(await _notice(runtime, held, webhook), runtime.clock())
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the other side
        runtime.report(work.call_id, "webhook", f"{type(error).__name__}: {error}")
        status = 0
    if 200 <= status < 300:
        await runtime.store.finish(Finish(work))
        return "notified"
    if work.tries < _TRIES:
        return await _later(runtime, work)
    failed = f"the webhook answers {status}" if status else "the webhook could not be told"
    await runtime.store.finish(Finish(work, failed=failed))
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
