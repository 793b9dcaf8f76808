"""What every gate has in common: the question it is asked and the decision it returns.

A gate is a function of one immutable context. It returns a decision, and may hand on what it found
out with `Learned`; it can't skip, repeat or run another gate. A gate that raises is a denial,
which is the runner's business, not the gate's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from math import inf
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn

from counterseal.approvals.terms import Terms
from counterseal.codes import Code
from counterseal.contract.invariants import Call, Correction
from counterseal.execution.executor import Executor
from counterseal.gates.compiled import Compiled
from counterseal.keys import KeyRing
from counterseal.observation.envelope import FieldError
from counterseal.proposal import Principal, Proposal
from counterseal.registry import Grant, Refusal, Registry, RegistryRecord
from counterseal.storage.base import Budgets, Charge, Memory, Rate, RunRecord

__all__ = [
    "BLANK",
    "AsyncGate",
    "Decision",
    "Gate",
    "GateContext",
    "Learned",
    "Prepared",
    "Timed",
    "Verdict",
    "allow",
    "deny",
    "hold",
    "prepared",
]


_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Verdict(StrEnum):
    ALLOW = "allow"
    DENY = "deny"
    REQUIRE_APPROVAL = "require_approval"


class GateContext:
    """Everything that a gate may look at, and may not change.

    Only the runner adds to it, with what a gate has `Learned`; copying it for every gate would
    cost more than the gates do.
    """

    proposal: Proposal
    principal: Principal
    call_id: str
    now: float
    """Seconds since the epoch, by the runtime's clock."""
    until: float = inf
    """When the caller will not wait any longer, by the same clock."""
    run: RunRecord
    registry: Registry
    executor: Executor
    """For the gate that asks the world."""
    keys: KeyRing | None = None
    """For the gate that checks approvals' signatures."""
    tenant: Mapping[str, Any] = _NOTHING
    """What the operator says of the tenant; for policy."""
    limits: Budgets | None = None
    """The tenant's own, for a day."""
    arguments: Mapping[str, Any] = _NOTHING
    """As parsed, and after *semantics* as corrected."""
    preview: bool = False
    """Whether the call is only tried out."""
    earlier: tuple[Call, ...] = ()
    """The steps before this one, when it is part of a plan."""
    pending: frozenset[str] = frozenset()
    """Keys of run state that those steps may change, so that nothing can rest on them yet."""
    unknown: tuple[str, ...] = ()
    """Gates that left something unasked because of it."""
    state_read: Mapping[str, int] = _NOTHING
    """Keys of run state that the decision rests on, with their versions."""
    refusal: Refusal | None = None
    """Why there is no record."""
    record: RegistryRecord | None = None
    compiled: Compiled | None = None
    grant: Grant | None = None
    config: Mapping[str, Any] = _NOTHING
    """As the tool will be given it."""
    config_shown: Mapping[str, Any] = _NOTHING
    """The same as JSON, for records and approvals. What is told of it is redacted first."""
    memory: Memory | None = None
    corrections: tuple[Correction, ...] = ()
    approvals: tuple[Decision, ...] = ()
    """Decisions that demand approval, in the order in which they were taken."""
    approval_id: str | None = None
    approval_spent: bool = False
    """Whether it was spent on this very operation before, whose worker is gone."""
    takes_over: bool = False
    """Whether the call goes on with an operation whose worker is gone."""
    over_budget: tuple[str, ...] = ()
    """Budgets that are spent, and of which people are asked for one call more."""
    before: Mapping[str, Any] | None = None
    """What the probe saw."""
    version_seen: str | int | None = None
    charges: tuple[Charge, ...] = ()
    rates: tuple[Rate, ...] = ()

    def __init__(self, known: dict[str, Any] | None = None, /, **more: Any) -> None:
        """What is known by name; or all of it at once, which every call does."""
        object.__setattr__(self, "__dict__", more if known is None else known)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a gate can't change {name}; it returns what it learned")

    def learn(self, found: Mapping[str, Any]) -> None:
        """For the runner: let later gates see this."""
        self.__dict__.update(found)

    def replace(self, **changes: Any) -> GateContext:
        """A copy, for trying something out."""
        return GateContext(**{**self.__dict__, **changes})

    def usable(self) -> list[str]:
        """The tools that this principal may use in this run."""
        allowed = self.run.allowed_tools
        records = self.registry.catalogue(self.principal, self.run.run_id, self.run.pins)
        return [r.name for r in records if allowed is None or r.name in allowed]


BLANK: Final = {
    name: vars(GateContext)[name]
    for name in GateContext.__annotations__
    if name in vars(GateContext)
}
"""What a context holds before anything is known: on the instance it is found faster."""


class Decision(NamedTuple):
    """One gate's verdict, as data."""

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
    """How many must say yes, where the verdict asks for approval."""
    terms: Terms | None = None
    """How they are asked, as far as whoever demands it says."""
    approval_id: str | None = None
    voids: bool = False
    """Whether the approval that was found no longer stands for anything."""
    warnings: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        return {
            "gate": self.gate,
            "verdict": str(self.verdict),
            "code": self.code.value if self.code else None,
            "reason": self.reason,
            "rule": self.rule,
            "policy_version": self.policy_version,
            "field_errors": [error.record() for error in self.field_errors]
            if self.field_errors
            else [],
        }


class Learned(NamedTuple):
    """A decision, with what later gates, or the record, should know."""

    decision: Decision
    found: Mapping[str, Any]


class Timed(NamedTuple):
    """A decision and how long the gate took over it."""

    decision: Decision
    nanoseconds: int

    def record(self) -> dict[str, Any]:
        told = self.decision.record()
        told["microseconds"] = self.nanoseconds // 100 / 10
        return told


def allow(gate: str, **more: Any) -> Decision:
    """Go on."""
    return Decision(gate, Verdict.ALLOW, **more)


def deny(gate: str, code: Code, reason: str, **more: Any) -> Decision:
    """Stop here. The reason is for the model, so it holds nothing that is not its to know."""
    return Decision(gate, Verdict.DENY, code, reason, **more)


def hold(gate: str, reason: str, **more: Any) -> Decision:
    """Go on, but only to be asked about: a person must say yes."""
    return Decision(gate, Verdict.REQUIRE_APPROVAL, Code.CONFIRMATION_MISSING, reason, **more)


class Gate(NamedTuple):
    """A gate by its name."""

    name: str
    check: Callable[[GateContext], Decision | Learned]
    plain: Decision | None = None
    """What it says when it simply allows; None where that is not always the same."""


class AsyncGate(NamedTuple):
    """The gate that asks the world, and may have to wait for it."""

    name: str
    check: Callable[[GateContext], Awaitable[Decision | Learned]]


_NO_WORD: Final = object()
"""What no gate says."""
Prepared = tuple[Any, Callable[[GateContext], Any] | None, object]
"""A gate taken apart, since it is asked for every call: itself, its check, its plain yes.

Or a ready answer and no time, where there is nothing to ask, and no check.
"""


def prepared(gate: Gate | AsyncGate) -> Prepared:
    """A gate, taken apart."""
    plain = gate.plain if isinstance(gate, Gate) else None
    return gate, gate.check, _NO_WORD if plain is None else plain
