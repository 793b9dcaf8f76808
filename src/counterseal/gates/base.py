"""What every gate has in common: the context it reads, and the decision it returns.

A gate is a pure function of one immutable `GateContext`. It returns a `Decision`, or a `Learned`:
a decision with facts for the gates after it. No gate can skip, repeat or run another. The caller of
the gates (`call.decide`) copies the context with the new facts, and denies when a gate raises.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple, Protocol

from counterseal.approvals.terms import Terms
from counterseal.canonical import FrozenDict, thaw
from counterseal.codes import Code
from counterseal.contract.invariants import Correction, ProposedCall
from counterseal.contract.model import Contract, KeepReads
from counterseal.contract.schemas import Validator
from counterseal.contract.tool_context import Context
from counterseal.errors import CountersealError
from counterseal.execution.executor import Executor, Runner
from counterseal.execution.probes import Probe, ProbeRequest
from counterseal.keys import KeyRing
from counterseal.ledger.entry import destination_key
from counterseal.ledger.records import Budgets, RunRecord
from counterseal.ledger.requests import Charge, Memory, RateLimit
from counterseal.observation import Profile
from counterseal.observation.envelope import FieldError
from counterseal.policy import CompiledPolicy
from counterseal.proposal import Principal, Proposal
from counterseal.registry import Grant, Refusal, Registry, RegistryRecord

EMPTY: Final[Mapping[str, Any]] = FrozenDict()
NO_RUN: Final = RunRecord(tenant="", run_id="", started_at=0.0)
"""The run of a call until the store has told its own."""


class Verdict(StrEnum):
    ALLOW = "allow"
    DENY = "deny"
    REQUIRE_APPROVAL = "require_approval"


class Decision(NamedTuple):
    """The verdict of one gate, or of the ledger, as data."""

    gate: str
    verdict: Verdict
    code: Code | None = None
    reason: str = ""
    rule: str | None = None
    policy_version: str | None = None
    field_errors: tuple[FieldError, ...] = ()
    next_action: str | None = None
    """Where the code's own next action is not specific enough."""
    retry_after: float | None = None
    approvers: int | None = None
    """How many people must approve, where the verdict requires approval."""
    terms: Terms | None = None
    """Terms of the approval, as far as the rule that requires it sets them."""
    approval_id: str | None = None
    voids: bool = False
    """True if the approval that was found is no longer valid, and must be voided."""
    warnings: tuple[str, ...] = ()
    data: Mapping[str, Any] | None = None
    """What the caller needs to go on, as the observation's data."""

    @property
    def plain(self) -> bool:
        """True if the gate allowed the call and no rule had anything to say."""
        return self.rule is None and self.verdict is Verdict.ALLOW

    def record(self) -> dict[str, Any]:
        return {
            "gate": self.gate,
            "verdict": str(self.verdict),
            "code": self.code.value if self.code else None,
            "reason": self.reason,
            "rule": self.rule,
            "policy_version": self.policy_version,
            "field_errors": [error.record() for error in self.field_errors],
        }


class Learned(NamedTuple):
    """A decision, with facts to put into the context for later gates and for the record."""

    decision: Decision
    facts: Mapping[str, Any]


class TimedDecision(NamedTuple):
    """A decision, with the nanoseconds that the gate took."""

    decision: Decision
    nanoseconds: int = 0

    def record(self) -> dict[str, Any]:
        return {**self.decision.record(), "microseconds": self.nanoseconds // 100 / 10}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> TimedDecision:
        """Return the decision of a record, as far as the record holds it."""
        code = record["code"]
        decision = Decision(
            gate=record["gate"],
            verdict=Verdict(record["verdict"]),
            code=Code(code) if code else None,
            reason=record["reason"],
            rule=record["rule"],
            policy_version=record["policy_version"],
            field_errors=tuple(FieldError(**error) for error in record["field_errors"]),
        )
        return cls(decision, round(record["microseconds"] * 1000))


class Authority(Protocol):
    """The questions that gates ask the registry."""

    def authorize(self, record: RegistryRecord, principal: Principal) -> Grant | Refusal: ...
    def catalogue(
        self, principal: Principal, run_id: str, pins: Mapping[str, str] | None = None
    ) -> tuple[RegistryRecord, ...]: ...


class Probed(NamedTuple):
    """The answer of a contract's probe: its target, None if that does not exist."""

    target: Probe | None
    failed: bool = False
    """True if the probe had no answer, so that the target is not known."""


@dataclass(frozen=True, kw_only=True, eq=False, init=False)
class GateContext:
    """Everything that a gate may look at. Immutable: `replace` returns a changed copy."""

    proposal: Proposal
    principal: Principal
    call_id: str
    now: float
    """Seconds since the epoch, by the runtime's clock."""
    registry: Registry
    executor: Executor
    """Only for the state gate, which runs the contract's probe."""
    run: RunRecord = NO_RUN
    until: float = inf
    """When the caller stops waiting, by the runtime's clock."""
    keys: KeyRing | None = None
    """Verifies the signatures of approvals."""
    tenant: Mapping[str, Any] = EMPTY
    """Facts about the tenant that the operator has configured, for policy rules."""
    limits: Budgets | None = None
    """The tenant's budgets for one day."""
    arguments: Mapping[str, Any] = EMPTY
    """As parsed; from *semantics* on, as corrected."""
    has_large_numbers: bool = False
    """True if the parsed arguments hold whole numbers beyond ±(2^53 - 1)."""
    preview: bool = False
    """True if the call is only judged, and will not be executed."""
    earlier: tuple[ProposedCall, ...] = ()
    """The steps before this one, if the call is part of a plan."""
    pending: frozenset[str] = frozenset()
    """Keys of run state that those steps may change, so that no rule can rely on them yet."""
    unknown: tuple[str, ...] = ()
    """Gates that skipped a rule because of `pending`."""
    state_read: Mapping[str, int] = EMPTY
    """Keys of run state that the decision depends on, with their versions."""
    refusal: Refusal | None = None
    """Why the registry resolved no record."""
    recorded: Authority | None = None
    """Answers in the registry's place, where a recorded proposal is decided again."""
    record: RegistryRecord | None = None
    compiled: CompiledContract | None = None
    grant: Grant | None = None
    config: Mapping[str, Any] = EMPTY
    """As the tool receives it."""
    config_shown: Mapping[str, Any] = EMPTY
    """The config as JSON, for records and approvals; events redact it first."""
    memory: Memory | None = None
    corrections: tuple[Correction, ...] = ()
    requirements: tuple[Decision, ...] = ()
    """Decisions that require approval, in the order in which they were made."""
    approval_id: str | None = None
    approval_spent: bool = False
    """True if the approval was spent on this very operation, by a worker that is gone."""
    takes_over: bool = False
    """True if the call continues an operation whose worker is gone."""
    over_budget: tuple[str, ...] = ()
    """Exhausted budgets that approvers are asked to exceed for this call."""
    probed: Probed | None = None
    """The answer of the probe; None before it was asked."""
    before: Mapping[str, Any] | None = None
    """The target's state, as the probe returned it."""
    version_seen: str | int | None = None
    charges: tuple[Charge, ...] = ()
    rates: tuple[RateLimit, ...] = ()

    # By hand, because a frozen dataclass sets its forty fields one by one: seven times the cost.
    def __init__(
        self,
        *,
        proposal: Proposal,
        principal: Principal,
        call_id: str,
        now: float,
        registry: Registry,
        executor: Executor,
        **facts: Any,
    ) -> None:
        vars(self).update(
            _UNKNOWN,
            proposal=proposal,
            principal=principal,
            call_id=call_id,
            now=now,
            registry=registry,
            executor=executor,
            **facts,
        )

    @property
    def resolved(self) -> CompiledContract:
        """The compiled contract. The gates before recall deny a call that has none."""
        if self.compiled is None:
            raise CountersealError("the tool is not resolved")
        return self.compiled

    def replace(self, **changes: Any) -> GateContext:
        """Return a copy with other values in these fields."""
        copy = object.__new__(GateContext)
        # Eight times as fast as `dataclasses.replace`.
        object.__setattr__(copy, "__dict__", {**vars(self), **changes})
        return copy

    @property
    def authority(self) -> Authority:
        """Says under which grant a principal may use a record."""
        return self.recorded or self.registry

    def usable_tools(self) -> list[str]:
        """Return the names of the tools that this principal may use in this run."""
        allowed = self.run.allowed_tools
        records = self.authority.catalogue(self.principal, self.run.run_id, self.run.pins)
        return [record.name for record in records if allowed is None or record.name in allowed]


_UNKNOWN: Final = {
    one.name: one.default for one in fields(GateContext) if one.default is not MISSING
}
"""The fields of a context of which nothing is known yet."""


class Gate(NamedTuple):
    name: str
    check: Callable[[GateContext], Decision | Learned]


class AsyncGate(NamedTuple):
    """A gate that probes the world, and may have to wait for the answer, before it decides.

    `look` waits; what it returns becomes `GateContext.probed`, from which `check` decides.
    """

    name: str
    look: Callable[[GateContext], Awaitable[Probed]]
    check: Callable[[GateContext], Decision | Learned]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledContract:
    """Everything that registration works out about a contract, so that no call has to."""

    contract: Contract
    input: Validator
    exact: Validator | None
    """As `input`, with all integers limited to ±(2^53 - 1); None if `input` limits them."""
    output: Validator
    mutates: bool
    policy: CompiledPolicy
    facts: dict[str, Any]
    """The contract as policy conditions see it."""
    classes: tuple[str, ...]
    """Budget classes that a call is charged to, beside those of its effect and its tool."""
    profile: Profile
    """What the contract says about its observations."""
    keyed: bool
    """True if calls are entered in the ledger."""
    asks: bool
    """True if a rule of the contract may require approval."""
    reads_run: bool
    """True if a policy rule reads the run, so that recall comes before the decision."""
    announced: bool
    """True if events are written before the tool runs."""
    takes_money: bool
    """True if a call costs or spends something."""
    leaves_nothing: bool
    """True if a successful call leaves nothing but the event that ends it."""
    keeps: KeepReads
    """Which observations of reads are kept."""
    runner: Runner | None
    """Executes the tool; None if only the contract is known here."""
    costs: dict[tuple[int, ...], Any] = field(default_factory=dict, repr=False)
    """Charges that the budget gate has worked out, by grant and kind of run."""
    event_facts: dict[str, Any]
    """Part of every event that ends a call: whether it mutates, is announced, what it costs."""
    gates: tuple[Gate | AsyncGate | TimedDecision, ...]
    """The gates after recall, in their order; the answer of one that has nothing to check."""


def allow(gate: str, **more: Any) -> Decision:
    """Return the decision to go on."""
    return Decision(gate, Verdict.ALLOW, **more)


def deny(gate: str, code: Code, reason: str, **more: Any) -> Decision:
    """Return a denial. The model reads the reason, so it must hold nothing confidential."""
    return Decision(gate, Verdict.DENY, code, reason, **more)


def require_approval(gate: str, reason: str, **more: Any) -> Decision:
    """Return the decision to go on to the later gates, and to hold the call for approval."""
    return Decision(gate, Verdict.REQUIRE_APPROVAL, Code.CONFIRMATION_MISSING, reason, **more)


def hook_request(
    ctx: GateContext, contract: Contract, seconds: float, now: float | None = None, **more: Any
) -> ProbeRequest:
    """Return the request that a hook of the contract is run with, `seconds` from `now` on."""
    until = (ctx.now if now is None else now) + seconds
    context = partial(tool_context, ctx, until=until, **more)
    return ProbeRequest(contract, ctx.arguments, context, ctx.registry, ctx.executor, seconds)


def tool_context(
    ctx: GateContext, *, until: float, key: str | None = None, attempt: int = 1
) -> Context:
    """Return the context that a tool or a hook receives. `until` is the attempt's deadline."""
    reads = ctx.resolved.contract.state_reads
    return Context(
        principal=ctx.principal,
        run_id=ctx.run.run_id,
        call_id=ctx.call_id,
        conversation_id=ctx.proposal.conversation_id,
        session_id=ctx.proposal.session_id,
        key=None if key is None else destination_key(ctx.principal.tenant, key),
        attempt=attempt,
        deadline=datetime.fromtimestamp(until, UTC),
        expected_version=ctx.version_seen,
        # Copies, so that a tool can change neither the run nor another call.
        config=thaw(ctx.config),
        state={read.key: thaw(ctx.run.state.get(read.key)) for read in reads},
    )
