"""What each of the twenty metrics counts, over what: which events are in it, and which are not.

The numbers and the rows behind them come from the same tests, so that a figure and the list that it
leads to can't differ. `docs/metrics.md` says the same at length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from counterseal.audit import EventType
from counterseal.audit.facts import Fact

__all__ = ["METRICS", "PARTS", "Formula", "Sum", "Sums", "Test"]

PARTS: Final = ("numerator", "denominator", "rest")
"""What of a metric can be looked at: what it counts, over what, and what it does not count of that.
"""


class Sum(NamedTuple):
    """How many events count as one and the same. A single event is one of them, too."""

    kind: str
    code: str | None
    facts: Fact
    times: int
    cost: float

    def has(self, facts: Fact) -> bool:
        return self.facts & facts == facts


Sums = Sequence[Sum]
Test = Callable[[Sum], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """What a metric counts, and over what."""

    title: str
    words: str
    meaning: str
    counted: Test
    """Whether an event is in the numerator."""
    among: Test
    """Whether it is in the denominator."""
    apart: bool = False
    """Whether the two count different events, so that there is no rest."""
    unseen: Callable[[Sums], float] | None = None
    """How many more the denominator has, of which no event tells."""
    unit: str = "ratio"

    def numerator(self, sums: Sums) -> float:
        mine = [one for one in sums if self.counted(one)]
        return sum(one.cost if self.unit == "cost" else one.times for one in mine)

    def denominator(self, sums: Sums) -> float:
        told = sum(one.times for one in sums if self.among(one))
        return told if self.unseen is None else told + self.unseen(sums)

    def part(self, part: str) -> Test | None:
        """Which events are in a part of it; None where no list of events is that part."""
        if part == "numerator":
            return self.counted
        if part == "denominator":
            return None if self.unseen else self.among
        if self.apart or self.unseen:
            return None
        return lambda one: self.among(one) and not self.counted(one)


def _all(facts: Fact, test: Test = lambda _: True) -> Test:
    """Events with all of these facts, that pass a test."""
    return lambda one: one.has(facts) and test(one)


def _of(*kinds: EventType) -> Test:
    return lambda one: one.kind in kinds


def _answered(code: str) -> Test:
    return lambda one: one.code == code


def _shaped(one: Sum) -> bool:
    return not one.has(Fact.UNSHAPED)


def _ok(one: Sum) -> bool:
    return one.code in ("SUCCESS", "PARTIAL_SUCCESS")


def _either(first: Test, second: Test) -> Test:
    return lambda one: first(one) or second(one)


def _costs(one: Sum) -> bool:
    return one.cost > 0


def _unfinished(sums: Sums) -> float:
    """How many more calls began than have come to an end that is known."""
    begun = sum(one.times for one in sums if one.kind == EventType.STARTED)
    ended = sum(one.times for one in sums if one.has(Fact.COMPLETE | Fact.ANNOUNCED))
    return max(0.0, begun - ended)


_PROPOSALS: Final = _all(Fact.PROPOSAL)
_SHAPED: Final = _all(Fact.PROPOSAL, _shaped)
_WRITES: Final = _all(Fact.PROPOSAL | Fact.MUTATES)
_LOOPS: Final = _all(Fact.PROPOSAL | Fact.ASKED_TO_MEND)
_ASKED: Final = _all(Fact.PROPOSAL, lambda one: one.kind == EventType.APPROVAL_REQUIRED)
_UNAPPROVED: Final = _all(Fact.PROPOSAL | Fact.UNAPPROVED)
_RETRIES: Final = _of(EventType.RETRIED)
_BLOCKED: Final = _all(Fact.RETRY_BLOCKED)

METRICS: Final[Mapping[str, Formula]] = {
    "first_pass_schema_valid_rate": Formula(
        title="First-pass schema valid rate",
        words="schema_valid_first_try / total_tool_proposals",
        meaning="How often a proposal is well-formed without a repair.",
        counted=_all(Fact.PROPOSAL, lambda one: _shaped(one) and not one.has(Fact.AGAIN)),
        among=_PROPOSALS,
    ),
    "schema_valid_call_rate": Formula(
        title="Schema-valid call rate",
        words="schema_valid_calls / total_tool_proposals",
        meaning="How often a proposal is well-formed, repairs included.",
        counted=_SHAPED,
        among=_PROPOSALS,
    ),
    "semantic_valid_rate": Formula(
        title="Semantic-valid rate",
        words="semantic_valid_calls / schema_valid_calls",
        meaning="How often a well-formed proposal also keeps the business rules.",
        counted=_all(Fact.PROPOSAL, lambda one: _shaped(one) and one.code != "SEMANTIC_INVALIDITY"),
        among=_SHAPED,
    ),
    "validation_failure_rate": Formula(
        title="Validation failure rate",
        words="rejected_execution_attempts / total_tool_proposals",
        meaning="How much of what is proposed is stopped before it runs.",
        counted=_all(Fact.PROPOSAL, lambda one: one.kind == EventType.DENIED),
        among=_PROPOSALS,
    ),
    "repair_success_rate": Formula(
        title="Repair success rate",
        words="successfully_repaired_calls / triggered_repair_loops",
        meaning="Whether agents that are told what is wrong get it right.",
        counted=_all(Fact.PROPOSAL | Fact.MENDED),
        among=_LOOPS,
        apart=True,
    ),
    "repair_saturation_rate": Formula(
        title="Repair saturation rate",
        words="repair_loops_exhausted / triggered_repair_loops",
        meaning="How often agents use up their tries and a person should look.",
        counted=_all(Fact.EXHAUSTED),
        among=_LOOPS,
        apart=True,
    ),
    "unauthorized_proposal_rate": Formula(
        title="Unauthorized proposal rate",
        words="permission_denied_proposals / total_tool_proposals",
        meaning="Whether agents reach for what is not theirs.",
        counted=_all(
            Fact.PROPOSAL,
            lambda one: one.kind == EventType.DENIED and one.code == "PERMISSION_DENIED",
        ),
        among=_PROPOSALS,
    ),
    "policy_violation_rate": Formula(
        title="Policy violation rate",
        words="policy_violations / total_tool_proposals",
        meaning="How often policy, or a tool's own limits, say no.",
        counted=_all(Fact.PROPOSAL, _answered("POLICY_VIOLATION")),
        among=_PROPOSALS,
    ),
    "confirmation_required_rate": Formula(
        title="Confirmation required rate",
        words="confirmation_required_calls / mutating_tool_proposals",
        meaning="How often a change has to be approved by people.",
        counted=_all(
            Fact.PROPOSAL | Fact.MUTATES, lambda one: one.kind == EventType.APPROVAL_REQUIRED
        ),
        among=_WRITES,
    ),
    "confirmation_rejection_rate": Formula(
        title="Confirmation rejection rate",
        words="rejected_confirmations / confirmation_requests",
        meaning="Whether agents ask for what people decline.",
        counted=_of(EventType.APPROVAL_REJECTED),
        among=_ASKED,
        apart=True,
    ),
    "confirmation_bypass_attempt_rate": Formula(
        title="Confirmation bypass attempt rate",
        words="missing_or_invalid_approval_tokens / confirmation_required_calls",
        meaning="Whether calls come without an approval that stands for them.",
        counted=_UNAPPROVED,
        among=_either(_ASKED, _UNAPPROVED),
    ),
    "idempotency_replay_rate": Formula(
        title="Idempotency replay rate",
        words="idempotency_hits / mutating_requests",
        meaning="How often a change is asked for that was made before.",
        counted=_all(Fact.PROPOSAL | Fact.MUTATES | Fact.REPLAYED),
        among=_WRITES,
    ),
    "idempotency_conflict_rate": Formula(
        title="Idempotency conflict rate",
        words="signature_mismatches / idempotency_key_matches",
        meaning="How often a key comes back with another payload.",
        counted=_all(Fact.PROPOSAL | Fact.KEY_MATCHED, _answered("SIGNATURE_MISMATCH")),
        among=_all(Fact.PROPOSAL | Fact.KEY_MATCHED),
    ),
    "retry_success_rate": Formula(
        title="Retry success rate",
        words="successful_retries / retry_attempts",
        meaning="Whether trying again helps.",
        counted=_all(Fact.RETRIED, _ok),
        among=_RETRIES,
        apart=True,
    ),
    "unsafe_retry_block_rate": Formula(
        title="Unsafe retry block rate",
        words="blocked_non_idempotent_retries / (retry_attempts + blocked)",
        meaning="How often a retry is not made because it might act twice.",
        counted=_BLOCKED,
        among=_either(_RETRIES, _BLOCKED),
    ),
    "observation_normalization_failure_rate": Formula(
        title="Observation normalization failure rate",
        words="normalization_failures / tool_executions",
        meaning="Whether tools return what their contracts say.",
        counted=_all(Fact.EXECUTED, _answered("OBSERVATION_NORMALIZATION_FAIL")),
        among=_all(Fact.EXECUTED),
    ),
    "post_action_verification_required_rate": Formula(
        title="Post-action verification required rate",
        words="verification_required_observations / mutating_observations",
        meaning="How often somebody has to look whether a change took effect.",
        counted=_all(Fact.EXECUTED | Fact.MUTATES | Fact.TO_VERIFY),
        among=_all(Fact.EXECUTED | Fact.MUTATES),
    ),
    "compensation_success_rate": Formula(
        title="Compensation success rate",
        words="successful_compensations / compensation_attempts",
        meaning="Whether what was done can be reversed.",
        counted=_of(EventType.COMPENSATED),
        among=_of(EventType.COMPENSATED, EventType.COMPENSATION_FAILED),
    ),
    "tool_cost_per_successful_action": Formula(
        title="Tool cost per successful action",
        words="tool_cost / successful_tool_executions",
        meaning="What a success costs, failures included.",
        counted=_costs,
        among=_all(Fact.EXECUTED, _ok),
        unit="cost",
        apart=True,
    ),
    "trace_completeness_rate": Formula(
        title="Trace completeness rate",
        words="complete_tool_traces / total_tool_calls",
        meaning="Whether it is known of every call what became of it.",
        counted=_all(Fact.COMPLETE),
        among=_all(Fact.COMPLETE),
        unseen=_unfinished,
    ),
}
"""By name, in the order in which they are shown."""
