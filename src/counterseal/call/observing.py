"""From an outcome to what the agent is shown of it: checked, redacted, bounded, labelled."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from counterseal.call.executing import Executing
from counterseal.codes import Code
from counterseal.contract.effects import Trust
from counterseal.contract.fill import verification_of
from counterseal.contract.model import Contract, OnUnknown
from counterseal.execution.logs import masked_trace
from counterseal.gates.base import Decision, deny
from counterseal.ledger.entry import Entry
from counterseal.observation import (
    NOT_VERIFIED,
    FieldError,
    Observation,
    Observed,
    VerificationHint,
    answer_as,
    observe_as,
)

__all__ = ["THEN", "Observing"]

_SUCCESS = Code.SUCCESS
_FAILURES = {
    Code.TIMEOUT: "The tool did not answer in time.",
    Code.DEPENDENCY_UNAVAILABLE: "Something that the tool needs is not available.",
    Code.RATE_LIMITED: "The service behind the tool takes no more calls for now.",
    Code.PERMISSION_DENIED: "The service behind the tool does not permit this.",
    Code.POLICY_VIOLATION: "The tool wanted to do what its contract does not let it do.",
    Code.STALE_STATE: "The target is not, or no longer, as the call takes it to be.",
    Code.SEMANTIC_INVALIDITY: "The service behind the tool does not accept these arguments.",
    Code.OBSERVATION_NORMALIZATION_FAIL: "What came back can't be read.",
}
_MOST_WORDS = 4000
_UNKNOWN = "It is not known whether the call took effect. {}"
THEN = {
    OnUnknown.RETRY_SAME_KEY: ("retry_same_key", "The same call may be made again."),
    OnUnknown.READ_BACK: ("retry_later", "The same call, made later, finds out."),
    OnUnknown.ESCALATE: ("escalate", "A person must find out; do not make it again."),
}
"""What to do next about an outcome that nobody knows, and how it is said."""


class Observing(Executing):
    """The step between the outcome and the record. Nothing is written here."""

    entry: Entry | None = None
    """The reservation that is settled, for a call that goes into the ledger."""
    observed: Observed | None = None

    def observe(self) -> Observation:
        """The outcome as the agent may see it: checked, redacted, bounded, labelled."""
        outcome, ctx, record = self.outcome, self.ctx, self.ctx.record
        if outcome.code is not _SUCCESS or record is None or ctx.compiled is None:
            return self._with_words(self.answer(self._failed()))
        own = ctx.compiled.profile
        try:
            observed = observe_as(
                own, outcome.value, ctx.compiled.output, self.runtime.redactor, outcome.mask
            )
        # The tool has run: whatever its output does to us, the call must come to its end.
        except Exception as error:  # noqa: BLE001 - an output is somebody else's code too
            self.runtime.report(ctx.call_id, "observing", masked_trace(error, outcome.mask))
            code = Code.OBSERVATION_NORMALIZATION_FAIL
            return self.answer(deny("execution", code, "The tool's output can't be read."))
        self.observed = observed
        seen = answer_as(
            own,
            observed,
            ctx.call_id,
            ctx.now,
            (perf_counter_ns() - self.started) // 1_000_000,
            self.trace_id,
            self.attempt if self.entry is None else self.attempt + self.entry.attempts - 1,
            ctx.approval_id,
            self._verification(record.contract) if own.verified else NOT_VERIFIED,
            self._warnings() if ctx.corrections else (),
            self.trail,
        )
        if ctx.run.untrusted and any(
            read.key in ctx.run.untrusted for read in record.contract.state_reads
        ):
            # What was made of something from outside is from outside, too.
            return seen._replace(trust=Trust.UNTRUSTED)
        return seen

    def _with_words(self, seen: Observation) -> Observation:
        """With what the tool said of its failure: as data, whoever it comes from."""
        if not self.outcome.words:
            return seen
        said, redactions = self.runtime.redactor.redact({"said": self.outcome.words[:_MOST_WORDS]})
        return seen._replace(data=said, redactions=redactions, trust=Trust.UNTRUSTED)

    def _failed(self) -> Decision:
        """What is said of an outcome that is no success."""
        outcome, record = self.outcome, self.ctx.record
        if outcome.trace:
            self.runtime.report(self.ctx.call_id, "execution", outcome.trace)
        if outcome.misfit is not None:
            place, problem = outcome.misfit
            error = FieldError(place, problem, outcome.code.value)
            said = "An argument can't be sent as it is."
            return deny("execution", outcome.code, said, field_errors=(error,))
        reason = _FAILURES.get(outcome.code, "The tool failed.")
        retry_after = outcome.fault.retry_after if outcome.fault else None
        if not self.unknown or record is None:
            return deny("execution", outcome.code, reason, retry_after=retry_after)
        action, then = THEN[record.contract.on_unknown]
        said = f"{reason} {_UNKNOWN.format(then)}"
        return deny("execution", outcome.code, said, next_action=action, rule="outcome-unknown")

    def _verification(self, contract: Contract) -> VerificationHint:
        if self.observed is None or self.observed.data is None:
            return NOT_VERIFIED
        reference, expected, delay = self._to_be_verified(contract)
        shown = None if expected is None else self.runtime.redactor.redact(expected)[0]
        return VerificationHint(
            required=True,
            target_state_reference=reference,
            expected_state=shown,
            delay_seconds=delay,
        )

    def _to_be_verified(self, contract: Contract) -> tuple[str | None, dict[str, Any] | None, int]:
        """Where to look, for what, and in how many seconds."""
        output = self.observed.output if self.observed else None
        return verification_of(contract, self.ctx.arguments, output)

    def _warnings(self) -> tuple[str, ...]:
        return tuple(note for timed in self.trail for note in timed.decision.warnings)
