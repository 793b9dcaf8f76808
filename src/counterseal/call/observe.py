"""From an outcome to an observation: schema-checked, redacted, bounded, labelled."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any, Final

from counterseal.call.call import Call
from counterseal.call.events import refused_observation
from counterseal.call.services import ObserveServices
from counterseal.codes import Code
from counterseal.contract.effects import Trust
from counterseal.contract.fill import verification_of
from counterseal.contract.model import Contract, OnUnknown
from counterseal.execution.logs import masked_trace
from counterseal.gates.base import Decision, deny
from counterseal.observation import (
    NOT_VERIFIED,
    FieldError,
    Observation,
    VerificationHint,
    answer,
)
from counterseal.observation import observe as observe_output

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


def observe(call: Call, services: ObserveServices) -> Observation:
    """Return the outcome as the agent may see it. Writes nothing."""
    outcome, ctx, record = call.outcome, call.ctx, call.ctx.record
    if outcome.code is not Code.SUCCESS or record is None or ctx.compiled is None:
        return _with_words(call, refused_observation(call, _failure(call, services)), services)
    profile = ctx.compiled.profile
    try:
        call.observed = observe_output(
            outcome.value, profile, ctx.compiled.output, services.redactor, outcome.mask
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
        verification=(
            _verification(call, record.contract, services) if profile.verified else NOT_VERIFIED
        ),
        warnings=_warnings(call),
        decisions=tuple(call.decisions),
    )
    untrusted = ctx.run.untrusted
    if untrusted and any(read.key in untrusted for read in record.contract.state_reads):
        # Output that was made from untrusted state is untrusted, too.
        return observation._replace(trust=Trust.UNTRUSTED)
    return observation


def _with_words(call: Call, observation: Observation, services: ObserveServices) -> Observation:
    """Add what the tool said about its failure, as untrusted data."""
    if not call.outcome.words:
        return observation
    words = {"said": call.outcome.words[:_MAX_WORDS]}
    data, redactions = services.redactor.redact(words)
    return observation._replace(data=data, redactions=redactions, trust=Trust.UNTRUSTED)


def _failure(call: Call, services: ObserveServices) -> Decision:
    """Return the decision that describes an outcome which is not a success."""
    outcome, record = call.outcome, call.ctx.record
    if outcome.trace:
        services.report(call.call_id, "execution", outcome.trace)
    if outcome.misfit is not None:
        place, problem = outcome.misfit
        error = FieldError(place, problem, outcome.code.value)
        reason = "An argument can't be sent as it is."
        return deny("execution", outcome.code, reason, field_errors=(error,))
    reason = _FAILURES.get(outcome.code, "The tool failed.")
    retry_after = outcome.fault.retry_after if outcome.fault else None
    if not call.outcome_unknown or record is None:
        return deny("execution", outcome.code, reason, retry_after=retry_after)
    action, sentence = AFTER_UNKNOWN[record.contract.on_unknown]
    reason = f"{reason} It is not known whether the call took effect. {sentence}"
    return deny("execution", outcome.code, reason, next_action=action, rule="outcome-unknown")


def _verification(call: Call, contract: Contract, services: ObserveServices) -> VerificationHint:
    if call.observed is None or call.observed.data is None:
        return NOT_VERIFIED
    reference, expected, delay = expected_state(call, contract)
    return VerificationHint(
        required=True,
        target_state_reference=reference,
        expected_state=None if expected is None else services.redactor.redact(expected)[0],
        delay_seconds=delay,
    )


def expected_state(call: Call, contract: Contract) -> tuple[str | None, dict[str, Any] | None, int]:
    """Return what verification looks at, the state it expects, and the delay in seconds."""
    output = call.observed.output if call.observed else None
    return verification_of(contract, call.ctx.arguments, output)


def _warnings(call: Call) -> tuple[str, ...]:
    return tuple(note for timed in call.decisions for note in timed.decision.warnings)
