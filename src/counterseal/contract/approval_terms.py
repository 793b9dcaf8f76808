"""How people approve calls: five patterns as data, and the terms that a contract or rule can set.

A pattern says who approves, how many people at least, and how long a request stays open.
`ApprovalTerms` is the section in which a contract or a policy rule chooses a pattern and sets what
differs; `term_faults` lists what is wrong with it. `counterseal.approvals` combines several terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, StrictBool

SHORTEST: Final = 30
LONGEST: Final = 30 * 86_400
"""The shortest and the longest time, in seconds, that a request may stay open."""


class Pattern(StrEnum):
    """Approval patterns, in rising strictness."""

    USER_CONSENT = "user_consent"
    REVIEW_QUEUE = "review_queue"
    OPERATOR_REVIEW = "operator_review"
    DUAL_CONTROL = "dual_control"
    COMPLIANCE_GATE = "compliance_gate"

    @property
    def rank(self) -> int:
        return _RANKS[self]


_RANKS = {pattern: rank for rank, pattern in enumerate(Pattern)}


class Then(StrEnum):
    """The step after an approval."""

    EXECUTE = "execute"
    """A worker executes the held call at once."""
    RESUBMIT = "resubmit"
    """Nothing happens until the agent proposes the same call again."""


class PatternRow(NamedTuple):
    title: str
    """The name of the pattern in packets and pages."""
    who: str
    """Who approves, as the reference documentation says it."""
    expires_after: int
    approvers: int = 1
    """The smallest number of approvers."""
    then: Then = Then.EXECUTE
    justification: bool = False
    """Whether an approver has to give a justification."""


_CONSENT = "the user on whose behalf the agent acts"
_DUAL = "two or more different people, none of them the requester"
_WRITTEN = "anyone but the requester, with a justification"

PATTERNS: Final[dict[Pattern, PatternRow]] = {
    Pattern.USER_CONSENT: PatternRow("User consent", _CONSENT, 600, then=Then.RESUBMIT),
    Pattern.REVIEW_QUEUE: PatternRow(
        "Review queue", "anyone but the requester, without haste", 86_400
    ),
    Pattern.OPERATOR_REVIEW: PatternRow("Operator review", "anyone but the requester", 600),
    Pattern.DUAL_CONTROL: PatternRow("Dual control", _DUAL, 600, approvers=2),
    Pattern.COMPLIANCE_GATE: PatternRow("Compliance gate", _WRITTEN, 86_400, justification=True),
}


def pattern_for(approvers: int) -> Pattern:
    """Return the pattern that a bare number of approvers stands for."""
    return Pattern.DUAL_CONTROL if approvers > 1 else Pattern.OPERATOR_REVIEW


class ApprovalTerms(BaseModel):
    """How a call is approved. A finished contract sets every field; a rule only what differs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pattern: Pattern | None = None
    roles: tuple[str, ...] = ()
    """Each approver needs one of these roles; empty: any person who may approve."""
    expires_seconds: Annotated[int, Field(strict=True, le=2**53 - 1)] | None = None
    """How long a request stays open."""
    then: Then | None = None
    justification_required: StrictBool | None = None
    """Whether an approver has to give a justification."""
    jurisdiction: str | None = None
    """The jurisdiction that the call falls under, shown to the approver."""
    accountable_owner: str | None = None
    """The person or office that is accountable. Required for a compliance gate."""


class TermFault(NamedTuple):
    """A field of the terms that is wrong. An empty field stands for the number of approvers."""

    field: str
    message: str
    fix: str


def term_faults(terms: ApprovalTerms, approvers: int) -> Iterator[TermFault]:
    """Yield every reason why a request under these terms could not be approved in time."""
    if any(not role.strip() for role in terms.roles):
        yield TermFault("roles", "a role has no name, so no approver has it", "Name the role.")
    seconds = terms.expires_seconds
    if seconds is not None and not SHORTEST <= seconds <= LONGEST:
        fault = f"{seconds} seconds; a request can stay open from {SHORTEST} seconds to 30 days"
        fix = "Change it, or leave it out for the pattern's own time."
        yield TermFault("expires_seconds", fault, fix)
    for name in ("jurisdiction", "accountable_owner"):
        if getattr(terms, name) is not None and not getattr(terms, name).strip():
            yield TermFault(name, "is empty", "Name it, or leave it out.")
    if terms.pattern is Pattern.DUAL_CONTROL and approvers < PATTERNS[terms.pattern].approvers:
        fault = f"is {approvers}, but dual control needs two people"
        yield TermFault("", fault, "Set it to 2 or more.")
    if terms.pattern is Pattern.USER_CONSENT and approvers > 1:
        fault = f"is {approvers}, but only one person, the user, can consent"
        yield TermFault("", fault, "Set it to 1, or choose dual_control.")
    if terms.pattern is Pattern.COMPLIANCE_GATE:
        yield from _compliance_faults(terms)


def _compliance_faults(terms: ApprovalTerms) -> Iterator[TermFault]:
    if terms.accountable_owner is None:
        fix = "Name the person or office that is accountable for the call."
        fault = "a compliance gate needs an accountable owner"
        yield TermFault("accountable_owner", fault, fix)
    if terms.justification_required is False:
        fault = "is false, but a compliance gate needs a justification"
        yield TermFault("justification_required", fault, "Leave it out, or choose operator_review.")
