"""What each of the twenty metrics counts: over what, and where to look for it.

`docs/metrics.md` says the same at length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from counterseal.audit import EventType
from counterseal.audit.facts import Fact

__all__ = ["METRICS", "Formula", "Sum", "Sums"]


class Sum(NamedTuple):
    """How many events count as one and the same."""

    kind: str
    code: str | None
    facts: Fact
    times: int
    cost: float

    def has(self, facts: Fact) -> bool:
        return self.facts & facts == facts


Sums = Sequence[Sum]
Count = Callable[[Sums], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """What a metric counts, and where to look for it."""

    title: str
    words: str
    meaning: str
    numerator: Count
    denominator: Count
    code: str | None = None
    """The calls behind the numerator, by the code that they were answered with."""
    events: tuple[EventType, ...] = ()
    """The events behind it, where no code says which."""
    unit: str = "ratio"


def _where(test: Callable[[Sum], bool]) -> Count:
    return lambda sums: sum(one.times for one in sums if test(one))


def _all(facts: Fact, test: Callable[[Sum], bool] = lambda _: True) -> Count:
    """Events with all of these facts, that pass a test."""
    return _where(lambda one: one.has(facts) and test(one))


def _of(*kinds: EventType) -> Count:
    return _where(lambda one: one.kind in kinds)


def _answered(code: str) -> Callable[[Sum], bool]:
    return lambda one: one.code == code


def _shaped(one: Sum) -> bool:
    return not one.has(Fact.UNSHAPED)


def _ok(one: Sum) -> bool:
    return one.code in ("SUCCESS", "PARTIAL_SUCCESS")


def _plus(*counts: Count) -> Count:
    return lambda sums: sum(count(sums) for count in counts)


def _cost(sums: Sums) -> float:
    return sum(one.cost for one in sums)


def _begun(sums: Sums) -> float:
    """Calls whose end is known, and those that began and have none."""
    known = _all(Fact.COMPLETE)(sums)
    announced = _all(Fact.COMPLETE | Fact.ANNOUNCED)(sums)
    return known + max(0.0, _of(EventType.STARTED)(sums) - announced)


_PROPOSALS: Final = _all(Fact.PROPOSAL)
_SHAPED: Final = _all(Fact.PROPOSAL, _shaped)
_WRITES: Final = _all(Fact.PROPOSAL | Fact.MUTATES)
_LOOPS: Final = _all(Fact.PROPOSAL | Fact.ASKED_TO_MEND)
_ASKED: Final = _all(Fact.PROPOSAL, lambda one: one.kind == EventType.APPROVAL_REQUIRED)
_UNAPPROVED: Final = _all(Fact.PROPOSAL | Fact.UNAPPROVED)
_RETRIES: Final = _of(EventType.RETRIED)
_BLOCKED: Final = _all(Fact.RETRY_BLOCKED)
_REFUSED_SHAPE: Final = (EventType.PARSE_REFUSED, EventType.SCHEMA_REFUSED)

METRICS: Final[Mapping[str, Formula]] = {
    "first_pass_schema_valid_rate": Formula(
        title="First-pass schema valid rate",
        words="schema_valid_first_try / total_tool_proposals",
        meaning="How often a proposal is well-formed without a repair.",
        numerator=_all(Fact.PROPOSAL, lambda one: _shaped(one) and not one.has(Fact.AGAIN)),
        denominator=_PROPOSALS,
        events=_REFUSED_SHAPE,
    ),
    "schema_valid_call_rate": Formula(
        title="Schema-valid call rate",
        words="schema_valid_calls / total_tool_proposals",
        meaning="How often a proposal is well-formed, repairs included.",
        numerator=_SHAPED,
        denominator=_PROPOSALS,
        events=_REFUSED_SHAPE,
    ),
    "semantic_valid_rate": Formula(
        title="Semantic-valid rate",
        words="semantic_valid_calls / schema_valid_calls",
        meaning="How often a well-formed proposal also keeps the business rules.",
        numerator=_all(
            Fact.PROPOSAL, lambda one: _shaped(one) and one.code != "SEMANTIC_INVALIDITY"
        ),
        denominator=_SHAPED,
        code="SEMANTIC_INVALIDITY",
    ),
    "validation_failure_rate": Formula(
        title="Validation failure rate",
        words="rejected_execution_attempts / total_tool_proposals",
        meaning="How much of what is proposed is stopped before it runs.",
        numerator=_all(Fact.PROPOSAL, lambda one: one.kind == EventType.DENIED),
        denominator=_PROPOSALS,
        events=(EventType.DENIED,),
    ),
    "repair_success_rate": Formula(
        title="Repair success rate",
        words="successfully_repaired_calls / triggered_repair_loops",
        meaning="Whether agents that are told what is wrong get it right.",
        numerator=_all(Fact.PROPOSAL | Fact.MENDED),
        denominator=_LOOPS,
        events=(EventType.REPAIR_ASKED, EventType.REPLAN_ASKED),
    ),
    "repair_saturation_rate": Formula(
        title="Repair saturation rate",
        words="repair_loops_exhausted / triggered_repair_loops",
        meaning="How often agents use up their tries and a person should look.",
        numerator=_all(Fact.EXHAUSTED),
        denominator=_LOOPS,
        events=(EventType.ESCALATED,),
    ),
    "unauthorized_proposal_rate": Formula(
        title="Unauthorized proposal rate",
        words="permission_denied_proposals / total_tool_proposals",
        meaning="Whether agents reach for what is not theirs.",
        numerator=_all(
            Fact.PROPOSAL,
            lambda one: one.kind == EventType.DENIED and one.code == "PERMISSION_DENIED",
        ),
        denominator=_PROPOSALS,
        code="PERMISSION_DENIED",
    ),
    "policy_violation_rate": Formula(
        title="Policy violation rate",
        words="policy_violations / total_tool_proposals",
        meaning="How often policy, or a tool's own limits, say no.",
        numerator=_all(Fact.PROPOSAL, _answered("POLICY_VIOLATION")),
        denominator=_PROPOSALS,
        code="POLICY_VIOLATION",
    ),
    "confirmation_required_rate": Formula(
        title="Confirmation required rate",
        words="confirmation_required_calls / mutating_tool_proposals",
        meaning="How often a change has to be approved by people.",
        numerator=_all(
            Fact.PROPOSAL | Fact.MUTATES, lambda one: one.kind == EventType.APPROVAL_REQUIRED
        ),
        denominator=_WRITES,
        code="CONFIRMATION_MISSING",
    ),
    "confirmation_rejection_rate": Formula(
        title="Confirmation rejection rate",
        words="rejected_confirmations / confirmation_requests",
        meaning="Whether agents ask for what people decline.",
        numerator=_of(EventType.APPROVAL_REJECTED),
        denominator=_ASKED,
        events=(EventType.APPROVAL_REJECTED,),
    ),
    "confirmation_bypass_attempt_rate": Formula(
        title="Confirmation bypass attempt rate",
        words="missing_or_invalid_approval_tokens / confirmation_required_calls",
        meaning="Whether calls come without an approval that stands for them.",
        numerator=_UNAPPROVED,
        denominator=_plus(_ASKED, _UNAPPROVED),
        events=(EventType.APPROVAL_REFUSED,),
    ),
    "idempotency_replay_rate": Formula(
        title="Idempotency replay rate",
        words="idempotency_hits / mutating_requests",
        meaning="How often a change is asked for that was made before.",
        numerator=_all(Fact.PROPOSAL | Fact.MUTATES | Fact.REPLAYED),
        denominator=_WRITES,
        events=(EventType.REPLAYED,),
    ),
    "idempotency_conflict_rate": Formula(
        title="Idempotency conflict rate",
        words="signature_mismatches / idempotency_key_matches",
        meaning="How often a key comes back with another payload.",
        numerator=_all(Fact.PROPOSAL | Fact.KEY_MATCHED, _answered("SIGNATURE_MISMATCH")),
        denominator=_all(Fact.PROPOSAL | Fact.KEY_MATCHED),
        code="SIGNATURE_MISMATCH",
    ),
    "retry_success_rate": Formula(
        title="Retry success rate",
        words="successful_retries / retry_attempts",
        meaning="Whether trying again helps.",
        numerator=_all(Fact.RETRIED, _ok),
        denominator=_RETRIES,
        events=(EventType.RETRIED,),
    ),
    "unsafe_retry_block_rate": Formula(
        title="Unsafe retry block rate",
        words="blocked_non_idempotent_retries / (retry_attempts + blocked)",
        meaning="How often a retry is not made because it might act twice.",
        numerator=_BLOCKED,
        denominator=_plus(_RETRIES, _BLOCKED),
        events=(EventType.FAILED,),
    ),
    "observation_normalization_failure_rate": Formula(
        title="Observation normalization failure rate",
        words="normalization_failures / tool_executions",
        meaning="Whether tools return what their contracts say.",
        numerator=_all(Fact.EXECUTED, _answered("OBSERVATION_NORMALIZATION_FAIL")),
        denominator=_all(Fact.EXECUTED),
        code="OBSERVATION_NORMALIZATION_FAIL",
    ),
    "post_action_verification_required_rate": Formula(
        title="Post-action verification required rate",
        words="verification_required_observations / mutating_observations",
        meaning="How often somebody has to look whether a change took effect.",
        numerator=_all(Fact.EXECUTED | Fact.MUTATES | Fact.TO_VERIFY),
        denominator=_all(Fact.EXECUTED | Fact.MUTATES),
        events=(EventType.SUCCEEDED, EventType.FAILED),
    ),
    "compensation_success_rate": Formula(
        title="Compensation success rate",
        words="successful_compensations / compensation_attempts",
        meaning="Whether what was done can be reversed.",
        numerator=_of(EventType.COMPENSATED),
        denominator=_of(EventType.COMPENSATED, EventType.COMPENSATION_FAILED),
        events=(EventType.COMPENSATED, EventType.COMPENSATION_FAILED),
    ),
    "tool_cost_per_successful_action": Formula(
        title="Tool cost per successful action",
        words="tool_cost / successful_tool_executions",
        meaning="What a success costs, failures included.",
        numerator=_cost,
        denominator=_all(Fact.EXECUTED, _ok),
        code="SUCCESS",
        unit="cost",
    ),
    "trace_completeness_rate": Formula(
        title="Trace completeness rate",
        words="complete_tool_traces / total_tool_calls",
        meaning="Whether it is known of every call what became of it.",
        numerator=_all(Fact.COMPLETE),
        denominator=_begun,
        events=(EventType.STARTED,),
    ),
}
"""By name, in the order in which they are shown."""
