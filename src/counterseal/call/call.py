"""`Call`: what is known of one proposal on its way through the runtime.

The steps in this folder fill the record, each its own part; nothing else writes to it. A step
returns an `End` to stop the call, or None to go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from counterseal.audit import Caller
from counterseal.codes import Code
from counterseal.errors import CountersealError
from counterseal.execution.attempt import Outcome, ProgressCallback
from counterseal.gates.base import CompiledContract, Decision, GateContext, TimedDecision, Verdict
from counterseal.ledger.entry import Entry
from counterseal.observation import Observation, Observed
from counterseal.registry import RegistryRecord

NOT_BEGUN: Final = Outcome(Code.TIMEOUT, began=False)
MAX_LOOKS: Final = 10
"""How often a resumed call is looked at before a person has to find out what became of it."""
_MAY_HAVE_HAPPENED: Final = {Code.TIMEOUT, Code.DEPENDENCY_UNAVAILABLE, Code.UNKNOWN_ERROR}
"""After these codes the tool may have acted."""
_TOOL_FAILED: Final = "counterseal.errors.ToolFailedError"


class DecideAgain:
    """Returned by a step when something changed since the decision, which must be made anew."""


DECIDE_AGAIN: Final = DecideAgain()
End = Decision | Observation | DecideAgain
"""How a step ends a call: with a refusal, an answer, or a new decision from the start."""


@dataclass(slots=True, kw_only=True)
class Call:
    """One proposal on its way through the runtime."""

    # --- from the start ---------------------------------------------------------------------------
    ctx: GateContext
    """All that gates may see. Immutable; `learn` puts a changed copy in its place."""
    started_ns: int
    trace_id: str
    epoch: int
    """The registry's epoch when the call came in."""
    progress: ProgressCallback | None = None
    traced: bool = False
    """True if an OpenTelemetry SDK is configured, so that a span has to be emitted."""
    decided_before: bool = False
    """True from the second decision on: something had changed after the first."""
    resumed: bool = False
    """True if a worker continues what another one began; no agent waits for the answer."""
    caller: Caller | None = None
    """Part of every event; see `events.event`."""

    # --- receive, decide --------------------------------------------------------------------------
    decisions: list[TimedDecision] = field(default_factory=list)
    recall_first: bool = False
    """True if stored data matters to the decision."""
    approval_demand: Decision | None = None
    """The approval gate's decision that approvers must be asked."""
    budget_demands: tuple[Decision, ...] = ()
    """Demands for approval because budgets are exhausted."""
    first_decision: int = 0
    """Number of decisions before the gates that `decide` runs."""
    policy_version: str | None = None
    skip_state_gate: bool = False
    """True for a step of a plan whose target an earlier step may change."""
    refused_by: Decision | None = None
    """The decision that refused the call, once it is recorded."""
    attempts_exhausted: bool = False
    """True if the agent has used up its attempts to get this call right."""

    # --- recall, admit ----------------------------------------------------------------------------
    key: str | None = None
    """The key of the ledger entry."""
    request_hash: bytes = b""
    """Of the arguments as proposed."""
    counters_recalled: bool = False
    takes_over: int | None = None
    """Fencing number of an earlier call under the same key, whose outcome is unknown."""
    entry: Entry | None = None
    """The reservation in the ledger."""

    # --- execute, observe, settle -----------------------------------------------------------------
    attempt: int = 1
    attempt_until: float = 0.0
    outcome: Outcome = NOT_BEGUN
    in_doubt: bool = False
    """True if an attempt under this key may have taken effect without an answer."""
    retry_blocked: bool = False
    """True if the call was not retried because it might have been executed twice."""
    reconciled: bool = False
    """True if the outcome was found out by asking the destination."""
    cancellation: BaseException | None = None
    """What ended the caller's wait while the tool ran; raised after settling."""
    observed: Observed | None = None
    still_running: bool = False
    """True if an abandoned attempt still runs, and keeps the entry's lease."""

    def learn(self, **facts: Any) -> None:
        """Put facts into the context for the gates and steps that follow."""
        self.ctx = self.ctx.replace(**facts)

    def add_decision(self, decision: Decision, nanoseconds: int = 0) -> None:
        """Append a decision, with the time that its gate took."""
        self.decisions.append(TimedDecision(decision, nanoseconds))

    def overrule(self, decision: Decision) -> None:
        """Replace the last decision."""
        self.decisions[-1] = TimedDecision(decision, self.decisions[-1].nanoseconds)

    def forget_decisions(self) -> None:
        """Take back the decisions since `first_decision`, before the gates run anew."""
        del self.decisions[self.first_decision :]
        self.approval_demand = None
        self.learn(approvals=self.budget_demands, approval_id=None)

    @property
    def tenant(self) -> str:
        return self.ctx.principal.tenant

    @property
    def call_id(self) -> str:
        return self.ctx.call_id

    @property
    def until(self) -> float:
        """The deadline of the caller, of the run, or of the run's budget: the earliest."""
        run, until = self.ctx.run, self.ctx.until
        if run.deadline is not None:
            until = min(until, run.deadline)
        if run.budgets.seconds is not None:
            until = min(until, run.started_at + run.budgets.seconds)
        return until

    @property
    def resolved(self) -> tuple[RegistryRecord, CompiledContract]:
        """The record and the compiled contract, once `receive` has resolved the tool."""
        if self.ctx.record is None or self.ctx.compiled is None:
            raise CountersealError(f"call {self.call_id}: the tool is not resolved")
        return self.ctx.record, self.ctx.compiled

    @property
    def outcome_unknown(self) -> bool:
        """True if the call may have changed something, and no answer says so."""
        if self.outcome.code is Code.SUCCESS:
            return False
        return self.in_doubt or self.attempt_unanswered

    @property
    def attempt_unanswered(self) -> bool:
        """True if the last attempt may have changed something, and no answer says so."""
        outcome, compiled = self.outcome, self.ctx.compiled
        if compiled is None or not compiled.mutates or not outcome.began:
            return False
        if not outcome.answered:
            return True
        tool_reported_failure = outcome.fault is not None and _TOOL_FAILED in outcome.fault.kinds
        return outcome.code in _MAY_HAVE_HAPPENED and not tool_reported_failure


class Patience:
    """How long a caller waits for another call with the same key."""

    def __init__(self, seconds: float) -> None:
        if not seconds >= 0:  # also true of nan
            raise ValueError(f"wait must be 0 or more seconds, got {seconds!r}")
        self._until = monotonic() + seconds if seconds else 0.0

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self._until - monotonic()) if self._until else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What would become of a call: the decisions of its gates. Nothing was executed."""

    decisions: tuple[TimedDecision, ...]
    arguments: Mapping[str, Any]
    verdict: str
    code: str | None
    reason: str

    @classmethod
    def of(cls, call: Call, verdict: Verdict, code: Code | None, reason: str) -> Preview:
        """Return the preview of a call that ended with this verdict."""
        return cls(
            decisions=tuple(call.decisions),
            arguments=call.ctx.arguments,
            verdict=verdict.value,
            code=None if code is None else code.value,
            reason=reason,
        )
