"""Executes an admitted call, and observes its outcome: attempts, reading back, the observation.

Every attempt has the same payload and the same key, and is charged to the run's budgets. A call
that may have taken effect is not retried, unless the contract says that the destination honours
the key.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from math import inf
from random import random
from time import perf_counter_ns
from typing import Any, Final

from pydantic_core import from_json, to_json

from counterseal.audit import EventType
from counterseal.call.call import NOT_BEGUN, Call, CallServices
from counterseal.call.events import event, refused_observation
from counterseal.canonical import at, thaw
from counterseal.codes import Code
from counterseal.contract.effects import Trust
from counterseal.contract.fill import verification_of
from counterseal.contract.model import Contract, OnUnknown
from counterseal.errors import StoreError
from counterseal.execution.attempt import AttemptRequest, Outcome, never
from counterseal.execution.executor import Runner
from counterseal.execution.failures import reported
from counterseal.execution.logs import masked_trace
from counterseal.execution.probes import ProbeError, ask
from counterseal.gates.base import Decision, deny, hook_request, tool_context
from counterseal.ledger.entry import Entry
from counterseal.ledger.requests import AdmissionRequest, Charge
from counterseal.observation import NOT_VERIFIED, FieldError, Observation, VerificationHint, answer
from counterseal.observation import observe as observe_output
from counterseal.observation.observe import summarise

_NO_CODE: Final = Outcome(
    Code.DEPENDENCY_UNAVAILABLE, trace="this contract has no code here", began=False
)
_ABANDONED: Final = Outcome(Code.TIMEOUT, answered=False, interrupted=True)
_LONGEST_WAIT: Final = 60.0
_FAILURES: Final = {
    Code.TIMEOUT: "The tool did not answer in time.",
    Code.DEPENDENCY_UNAVAILABLE: "Something that the tool needs is not available.",
    Code.RATE_LIMITED: "The service behind the tool takes no more calls for now.",
    Code.PERMISSION_DENIED: "The service behind the tool does not permit this.",
    Code.POLICY_VIOLATION: "The tool wanted to do what its contract does not let it do.",
    Code.STALE_STATE: "The target is not, or no longer, as the call takes it to be.",
    Code.SEMANTIC_INVALIDITY: "The service behind the tool does not accept these arguments.",
    Code.OBSERVATION_NORMALIZATION_FAIL: "What came back can't be read.",
}
_MAX_WORDS: Final = 4000
AFTER_UNKNOWN: Final = {
    OnUnknown.RETRY_SAME_KEY: ("retry_same_key", "The same call may be made again."),
    OnUnknown.READ_BACK: ("retry_later", "The same call, made later, finds out."),
    OnUnknown.ESCALATE: ("escalate", "A person must find out; do not make it again."),
}
"""The next action after an unknown outcome, and the sentence that tells the agent."""


async def execute(call: Call, services: CallServices) -> None:
    """Run the tool and set the outcome.

    When the caller is cancelled, the exception is kept in `call.cancellation`: the call must still
    be settled.
    """
    contract, runner = call.contract, call.ctx.resolved.runner
    if runner is None:
        # The client would carry it out, but has no time left for that.
        call.outcome = NOT_BEGUN if contract.by_client else _NO_CODE
        return
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


async def _attempt(call: Call, runner: Runner, services: CallServices) -> bool:
    """Make one attempt within the time that is left. Returns True if it succeeded."""
    call.outcome = NOT_BEGUN
    if call.entry is not None and not await _still_ours(call, call.entry, services):
        return False
    now = services.clock()
    seconds = min(runner.seconds, call.until - now)
    if seconds <= 0:
        return False
    call.outcome = _ABANDONED  # stands if the attempt is cancelled
    # A copy, because what a tool does to its arguments must not reach the next attempt.
    arguments = thaw(call.ctx.arguments) if runner.nested else call.ctx.arguments
    tell = call.progress and partial(_tell, call, services)
    context = partial(
        tool_context, call.ctx, until=now + seconds, key=call.key, attempt=call.attempt
    )
    entry, may_have_lapsed = call.entry, services.leases.may_have_lapsed
    lapsed = never if entry is None else partial(may_have_lapsed, entry)
    call.outcome = await runner.run(AttemptRequest(arguments, context, seconds, tell, lapsed))
    return call.outcome.code is Code.SUCCESS and not call.outcome.interrupted


async def _still_ours(call: Call, entry: Entry, services: CallServices) -> bool:
    """Return False if another worker has taken over the entry, after its lease lapsed.

    Before another attempt the store is always asked: by its clock, which may have been set, the
    lease may be over.
    """
    leases = services.leases
    if call.attempt == 1 and not leases.may_have_lapsed(entry):
        return True
    try:
        return await leases.still_held(entry)
    except StoreError as error:
        services.report(call.call_id, "store", error)
        return False


def _tell(call: Call, services: CallServices, report: Any) -> None:
    """Pass a progress report of the tool on to the caller."""
    try:
        if call.progress is not None:
            call.progress(report)
    except Exception as error:  # noqa: BLE001 - the caller's own code; the call goes on
        services.report(call.call_id, "progress", error)


def _note_doubt(call: Call, services: CallServices) -> None:
    """Note that an attempt may have acted, and hand over what of it still runs."""
    call.in_doubt = call.in_doubt or call.attempt_unanswered
    late = call.outcome.late
    if late is not None and call.key is not None:
        services.executor.note_abandoned(call.tenant, call.key, late)


def _note_blocked_retry(call: Call, contract: Contract) -> None:
    """Note whether the only reason against a retry is that the call may have taken effect."""
    if call.outcome_unknown:
        transient = call.ctx.resolved.profile.responses[call.outcome.code].retryable
        call.retry_blocked = transient and contract.on_unknown is not OnUnknown.RETRY_SAME_KEY


# --- retries --------------------------------------------------------------------------------------


async def _retry(call: Call, contract: Contract, services: CallServices) -> bool:
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
    compiled, outcome = call.ctx.resolved, call.outcome
    if call.attempt > contract.runtime.max_retries:
        return False
    if not compiled.profile.responses[outcome.code].retryable:
        return False
    if outcome.not_done:
        return True
    if outcome.words:  # the tool has refused in words, and would do so again
        return False
    if not compiled.mutates or not outcome.began:
        return True
    return call.outcome_unknown and contract.on_unknown is OnUnknown.RETRY_SAME_KEY


async def spend_retry(call: Call, contract: Contract, services: CallServices) -> bool:
    """Charge another attempt in cost, rate and number. Returns False if a limit forbids it."""
    ctx = call.ctx
    limit = ctx.run.budgets.retries
    # The amount that the call spends is spent once, whatever the number of attempts.
    price = [charge for charge in ctx.charges if charge.counter.startswith("cost.")]
    number = Charge("run.retries", "retries", 1, inf if limit is None else limit, of_run=True)
    body = {"attempt": call.attempt + 1, "code": call.outcome.code.value}
    request = AdmissionRequest(
        tenant=call.tenant,
        run_id=ctx.run.run_id,
        tool=contract.name,
        version=contract.version,
        now=services.clock(),
        charges=[*price, number],
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


async def _find_out(call: Call, contract: Contract, services: CallServices) -> None:
    """Ask the destination for the outcome. That it does not know the call yet proves nothing."""
    try:
        output = await read_back(call, contract, services, call.until - services.clock())
    except ProbeError as error:
        services.report(call.call_id, "read_back", error.trace)
        return
    if output is not None:
        call.reconciled = True
        call.outcome = Outcome(Code.SUCCESS, output, mask=call.outcome.mask)


async def read_back(
    call: Call, contract: Contract, services: CallServices, most: float = inf
) -> Any:
    """Return what the destination did under this key, None if nothing. ProbeError if unknown."""
    seconds = min(contract.runtime.timeout_ms / 1000, most)
    if contract.read_back is None or seconds <= 0:
        raise ProbeError("the contract has no read_back, or no time is left for it")
    more = {"key": call.key, "attempt": call.attempt}
    request = hook_request(call.ctx, contract, seconds, services.clock(), **more)
    return await ask(contract.read_back, request)


# --- observe --------------------------------------------------------------------------------------


_MAX_REFERENCE: Final = 256


def external_ref(call: Call) -> str | None:
    """Return the destination's own reference in the output that the agent sees, if there is one."""
    pointer, observed = call.contract.external_ref, call.observed
    if pointer is None or observed is None or observed.data is None:
        return None
    value = at(observed.data, pointer)
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value)[:_MAX_REFERENCE] or None


def observe(call: Call, services: CallServices) -> Observation:
    """Return the outcome as the agent may see it. Writes nothing."""
    outcome, ctx, compiled = call.outcome, call.ctx, call.ctx.resolved
    if outcome.code is not Code.SUCCESS:
        return _with_words(call, refused_observation(call, _failure(call, services)), services)
    profile = compiled.profile
    try:
        call.observed = observe_output(
            outcome.value, profile, compiled.output, services.redactor, outcome.mask
        )
    # The tool has run: whatever its output is, the call must be settled.
    except Exception as error:  # noqa: BLE001 - an output may run code of its own
        services.report(call.call_id, "observing", masked_trace(error, outcome.mask))
        code = Code.OBSERVATION_NORMALIZATION_FAIL
        return refused_observation(
            call, deny("execution", code, "The tool's output can't be read.")
        )
    observation = answer(
        call.observed,
        profile,
        call_id=ctx.call_id,
        timestamp=ctx.now,
        latency_ms=(perf_counter_ns() - call.started_ns) // 1_000_000,
        trace_id=call.trace_id,
        attempt=call.attempt if call.entry is None else call.attempt + call.entry.attempts - 1,
        approval_id=ctx.approval_id,
        verification=_verification(call, services) if profile.verified else NOT_VERIFIED,
        warnings=tuple(note for timed in call.decisions for note in timed.decision.warnings),
        external_ref=external_ref(call),
        decisions=tuple(call.decisions),
    )
    untrusted = ctx.run.untrusted
    if untrusted and any(read.key in untrusted for read in call.contract.state_reads):
        # Output that was made from untrusted state is untrusted, too.
        return observation._replace(trust=Trust.UNTRUSTED)
    return observation


def _with_words(call: Call, observation: Observation, services: CallServices) -> Observation:
    """Add what the tool said about its failure, as untrusted data, redacted and bounded."""
    outcome, said = call.outcome, dict[str, Any]()
    if outcome.words:
        said["said"] = outcome.words[:_MAX_WORDS]
    fields: dict[str, Any] = {}
    for name, value in outcome.error_fields.items():
        with suppress(Exception):  # no JSON form: the failure must be settled, whatever it holds
            fields[name] = from_json(to_json(value, inf_nan_mode="strings"))
    if fields:
        said["details"] = outcome.mask.data(fields)
    if not said:
        return observation
    data, redactions = services.redactor.redact(said)
    details = data.get("details", {})
    size = len(to_json(details))
    if size > _MAX_WORDS:
        data["details"] = summarise(details, size, _MAX_WORDS, lambda one: one)
    return observation._replace(data=data, redactions=redactions, trust=Trust.UNTRUSTED)


def _failure(call: Call, services: CallServices) -> Decision:
    """Return the decision that describes an outcome which is not a success."""
    outcome = call.outcome
    if outcome.trace:
        services.report(call.call_id, "execution", outcome.trace)
    if outcome.misfit is not None:
        place, problem = outcome.misfit
        error = FieldError(place, problem, outcome.code.value)
        reason = "An argument can't be sent as it is."
        return deny("execution", outcome.code, reason, field_errors=(error,))
    reason = _FAILURES.get(outcome.code, "The tool failed.")
    if reported(outcome.fault):
        reason = "The tool reported a failure."
        if outcome.not_done and call.contract.mutates:
            reason = "The tool reported a failure, and that nothing was done."
    retry_after = outcome.fault.retry_after if outcome.fault else None
    if not call.outcome_unknown:
        return deny("execution", outcome.code, reason, retry_after=retry_after)
    action, sentence = AFTER_UNKNOWN[call.contract.on_unknown]
    reason = f"{reason} It is not known whether the call took effect. {sentence}"
    return deny("execution", outcome.code, reason, next_action=action, rule="outcome-unknown")


def _verification(call: Call, services: CallServices) -> VerificationHint:
    if call.observed is None or call.observed.data is None:
        return NOT_VERIFIED
    reference, expected, delay = verification_plan(call)
    return VerificationHint(
        required=True,
        target_state_reference=reference,
        expected_state=None if expected is None else services.redactor.redact(expected)[0],
        delay_seconds=delay,
    )


def verification_plan(call: Call) -> tuple[str | None, dict[str, Any] | None, int]:
    """Return what verification looks at, the state it expects, and the delay in seconds."""
    output = call.observed.output if call.observed else None
    return verification_of(call.contract, call.ctx.arguments, output)
