"""Executes an admitted call: attempts within the deadline, and reading back an unknown outcome.

Every attempt has the same payload and the same key, and is charged to the run's budgets. A call
that may have taken effect is not retried, unless the contract says that the destination honours
the key.
"""

from __future__ import annotations

import asyncio
from functools import partial
from math import inf
from random import random
from typing import Any, Final

from counterseal.audit import EventType
from counterseal.call.call import NOT_BEGUN, Call
from counterseal.call.events import event
from counterseal.call.services import ExecuteServices
from counterseal.canonical import thaw
from counterseal.codes import Code
from counterseal.contract.model import Contract, OnUnknown
from counterseal.contract.tool_context import Context
from counterseal.errors import StoreError
from counterseal.execution.attempt import AttemptRequest, Outcome
from counterseal.execution.executor import Runner
from counterseal.execution.failures import said_not_done
from counterseal.execution.probes import ProbeError, ProbeRequest, ask
from counterseal.gates.base import tool_context
from counterseal.ledger.requests import AdmissionRequest, Charge

_NO_CODE: Final = Outcome(
    Code.DEPENDENCY_UNAVAILABLE, trace="this contract has no code here", began=False
)
_ABANDONED: Final = Outcome(Code.TIMEOUT, answered=False, interrupted=True)
_LONGEST_WAIT: Final = 60.0


async def execute(call: Call, services: ExecuteServices) -> None:
    """Run the tool and set the outcome.

    When the caller is cancelled, the exception is kept in `call.cancellation`: the call must still
    be settled.
    """
    compiled = call.ctx.compiled
    if compiled is None or compiled.runner is None:
        call.outcome = _NO_CODE
        return
    contract, runner = compiled.contract, compiled.runner
    try:
        while not await _attempt(call, runner, services):
            _note_doubt(call, services)
            if call.outcome.interrupted or not await _retry(call, contract, services):
                _note_blocked_retry(call, contract)
                break
            call.attempt += 1
        if call.outcome.interrupted:
            call.cancellation = asyncio.CancelledError()
        elif call.outcome_unknown and contract.on_unknown is OnUnknown.READ_BACK:
            await _find_out(call, contract, services)
    except (asyncio.CancelledError, KeyboardInterrupt) as error:
        call.cancellation = error  # the last attempt's outcome stands


async def _attempt(call: Call, runner: Runner, services: ExecuteServices) -> bool:
    """Make one attempt within the time that is left. Returns True if it succeeded."""
    seconds = 0.0
    if await _still_ours(call, services):
        now = services.clock()
        seconds = min(runner.seconds, call.until - now)
        call.attempt_until = now + seconds
    if seconds <= 0:
        call.outcome = NOT_BEGUN
        return False
    call.outcome = _ABANDONED  # stands if the attempt is cancelled
    # A copy, because what a tool does to its arguments must not reach the next attempt.
    arguments = thaw(call.ctx.arguments) if runner.nested else call.ctx.arguments
    tell = call.progress and partial(_tell, call, services)
    request = AttemptRequest(arguments, partial(_context, call), seconds, tell)
    call.outcome = await runner.run(request)
    return call.outcome.code is Code.SUCCESS and not call.outcome.interrupted


async def _still_ours(call: Call, services: ExecuteServices) -> bool:
    """Return False if another worker has taken over the entry, after its lease lapsed."""
    if call.entry is None or not services.leases.may_have_lapsed(call.entry):
        return True
    try:
        return await services.leases.still_held(call.entry)
    except StoreError as error:
        services.report(call.call_id, "store", error)
        return False


def _tell(call: Call, services: ExecuteServices, report: Any) -> None:
    """Pass a progress report of the tool on to the caller."""
    try:
        if call.progress is not None:
            call.progress(report)
    except Exception as error:  # noqa: BLE001 - the caller's own code; the call goes on
        services.report(call.call_id, "progress", error)


def _context(call: Call) -> Context:
    contract = call.ctx.compiled.contract if call.ctx.compiled else None
    return tool_context(
        call.ctx, contract, until=call.attempt_until, key=call.key, attempt=call.attempt
    )


def _note_doubt(call: Call, services: ExecuteServices) -> None:
    """Note that an attempt may have acted, and hand over what of it still runs."""
    call.in_doubt = call.in_doubt or call.attempt_unanswered
    late = call.outcome.late
    if late is not None and call.key is not None:
        services.executor.leave_behind(call.tenant, call.key, late)


def _note_blocked_retry(call: Call, contract: Contract) -> None:
    """Note whether the only reason against a retry is that the call may have taken effect."""
    compiled = call.ctx.compiled
    if compiled is not None and call.outcome_unknown:
        transient = compiled.profile.responses[call.outcome.code].retryable
        call.retry_blocked = transient and contract.on_unknown is not OnUnknown.RETRY_SAME_KEY


# --- retries --------------------------------------------------------------------------------------


async def _retry(call: Call, contract: Contract, services: ExecuteServices) -> bool:
    """Spend a retry and wait before it. Returns False if there must be none."""
    if not _may_retry(call, contract) or call.epoch != services.registry.epoch:
        return False
    # Doubling, with jitter, so that callers spread out.
    wait = float(0.05 * 2**call.attempt * (0.5 + random()))  # noqa: S311 - no secret
    if call.outcome.fault is not None and call.outcome.fault.retry_after is not None:
        wait = max(wait, call.outcome.fault.retry_after)
    if wait > _LONGEST_WAIT or services.clock() + wait >= call.until:
        return False
    if not await spend_retry(call, contract, services):
        return False
    await services.pause(wait)
    return call.epoch == services.registry.epoch  # a kill stops the next attempt, too


def _may_retry(call: Call, contract: Contract) -> bool:
    compiled, outcome = call.ctx.compiled, call.outcome
    if compiled is None or call.attempt > contract.runtime.max_retries:
        return False
    if not compiled.profile.responses[outcome.code].retryable:
        return False
    if said_not_done(outcome.fault):
        return True
    if outcome.words:  # the tool has refused in words, and would do so again
        return False
    if not compiled.mutates or not outcome.began:
        return True
    return call.outcome_unknown and contract.on_unknown is OnUnknown.RETRY_SAME_KEY


async def spend_retry(call: Call, contract: Contract, services: ExecuteServices) -> bool:
    """Charge another attempt in money, rate and number. Returns False if a limit forbids it."""
    ctx = call.ctx
    limit = ctx.run.budgets.retries
    money = [charge for charge in ctx.charges if charge.budget.endswith(".money")]
    number = Charge("run.retries", "retries", 1, inf if limit is None else limit, of_run=True)
    body = {"attempt": call.attempt + 1, "code": call.outcome.code.value}
    request = AdmissionRequest(
        tenant=call.tenant,
        run_id=ctx.run.run_id,
        tool=contract.name,
        version=contract.version,
        now=services.clock(),
        charges=[*money, number],
        rates=ctx.rates,
        entry=None,
        approval_id=None,
        epoch=services.registry.stored,
        events=(event(call, EventType.RETRIED, "retry", body),),
    )
    try:
        return (await services.store.admit(request)).refused is None
    except Exception as error:  # noqa: BLE001 - the attempts so far must still be settled
        services.report(call.call_id, "store", error)
        return False


# --- reading back ---------------------------------------------------------------------------------


async def _find_out(call: Call, contract: Contract, services: ExecuteServices) -> None:
    """Ask the destination for the outcome. That it does not know the call yet proves nothing."""
    mask = call.outcome.mask
    try:
        output = await read_back(call, contract, services, call.until - services.clock())
    except ProbeError as error:
        services.report(call.call_id, "read_back", error.trace)
        return
    if output is not None:
        call.reconciled = True
        call.outcome = Outcome(Code.SUCCESS, output, mask=mask)


async def read_back(
    call: Call, contract: Contract, services: ExecuteServices, most: float = inf
) -> Any:
    """Return what the destination did under this key, None if nothing. ProbeError if unknown."""
    seconds = min(contract.runtime.timeout_ms / 1000, most)
    if contract.read_back is None or seconds <= 0:
        raise ProbeError("the contract has no read_back, or no time is left for it")
    return await ask(contract.read_back, hook_request(call, contract, services, seconds))


def hook_request(
    call: Call, contract: Contract, services: ExecuteServices, seconds: float
) -> ProbeRequest:
    """Return the request that a hook of the contract is run with."""
    call.attempt_until = services.clock() + seconds
    ctx, context = call.ctx, partial(_context, call)
    return ProbeRequest(contract, ctx.arguments, context, ctx.registry, ctx.executor, seconds)
