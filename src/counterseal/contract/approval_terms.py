"""How people are asked: five patterns as data, and the terms that a contract or a rule can set.

A pattern says who is asked, how many at least, and how long a request stays open. `ApprovalTerms`
is the section in which a contract, or a policy's rule, chooses one and sets what differs;
`term_faults` says what is wrong with it. How terms come together is in `counterseal.approvals`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, StrictBool

__all__ = [
    "LONGEST",
    "PATTERNS",
    "SHORTEST",
    "ApprovalTerms",
    "Pattern",
    "PatternRow",
    "TermFault",
    "Then",
    "pattern_for",
    "term_faults",
]


SHORTEST: Final = 30
LONGEST: Final = 30 * 86_400
"""Seconds that a request may stay open: nobody reads faster, and nobody should answer later."""


class Pattern(StrEnum):
    """In rising strictness."""

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
    """What an approval leads to."""

    EXECUTE = "execute"
    """The held call is carried out at once, by whichever worker gets to it."""
    RESUBMIT = "resubmit"
    """Nothing happens until the agent proposes the same call again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternRow:
    title: str
    """As people read it."""
    who: str
    """Who is asked, for the reference."""
    approvers: int = 1
    """How many, at least."""
    expires_after: int
    then: Then = Then.EXECUTE
    justification: bool = False
    """Whether an approver has to say why."""


PATTERNS: Final[dict[Pattern, PatternRow]] = {
    Pattern.USER_CONSENT: PatternRow(
        title="User consent",
        who="the user on whose behalf the agent acts",
        expires_after=600,
        then=Then.RESUBMIT,
    ),
    Pattern.REVIEW_QUEUE: PatternRow(
        title="Review queue",
        who="anybody but the requester, whenever they get to it",
        expires_after=86_400,
    ),
    Pattern.OPERATOR_REVIEW: PatternRow(
        title="Operator review", who="anybody but the requester", expires_after=600
    ),
    Pattern.DUAL_CONTROL: PatternRow(
        title="Dual control",
        who="two different people or more, none of them the requester",
        approvers=2,
        expires_after=600,
    ),
    Pattern.COMPLIANCE_GATE: PatternRow(
        title="Compliance gate",
        who="anybody but the requester, who has to say why",
        expires_after=86_400,
        justification=True,
    ),
}


def pattern_for(approvers: int) -> Pattern:
    """What a bare number of people stands for."""
    return Pattern.DUAL_CONTROL if approvers > 1 else Pattern.OPERATOR_REVIEW


class ApprovalTerms(BaseModel):
    """How a call is approved. A finished contract says it all; a rule says what differs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pattern: Pattern | None = None
    roles: tuple[str, ...] = ()
    """Each approver has one of these; none: anybody who may approve at all."""
    expires_seconds: Annotated[int, Field(strict=True, le=2**53 - 1)] | None = None
    """How long a request stays open."""
    then: Then | None = None
    justification_required: StrictBool | None = None
    """Whether an approver has to say why."""
    jurisdiction: str | None = None
    """Whose law the call falls under, for the approver to read."""
    accountable_owner: str | None = None
    """Who answers for it. A compliance gate names one."""


class TermFault(NamedTuple):
    """What is wrong with a field of the terms. An empty field means the number of approvers."""

    field: str
    message: str
    fix: str


def term_faults(terms: ApprovalTerms, approvers: int) -> Iterator[TermFault]:
    """Why a request under these terms could never be approved, or not in time."""
    if any(not role.strip() for role in terms.roles):
        yield TermFault("roles", "a role without a name is one that nobody has", "Name it.")
    seconds = terms.expires_seconds
    if seconds is not None and not SHORTEST <= seconds <= LONGEST:
        yield TermFault(
            "expires_seconds",
            f"{seconds} seconds; a request stays open from {SHORTEST} seconds to 30 days",
            "Leave it out for the time that the pattern stands for.",
        )
    for name in ("jurisdiction", "accountable_owner"):
        if getattr(terms, name) is not None and not getattr(terms, name).strip():
            yield TermFault(name, "is empty", "Name it, or leave it out.")
    if terms.pattern is not None:
        yield from _pattern_faults(terms, terms.pattern, approvers)


def _pattern_faults(terms: ApprovalTerms, pattern: Pattern, approvers: int) -> Iterator[TermFault]:
    if pattern is Pattern.DUAL_CONTROL and approvers < PATTERNS[pattern].approvers:
        yield TermFault("", f"is {approvers}, but dual control takes two people", "Ask at least 2.")
    if pattern is Pattern.USER_CONSENT and approvers > 1:
        fix = "Ask 1, or choose dual_control."
        yield TermFault("", f"is {approvers}, but only the user can give a user's consent", fix)
    if pattern is Pattern.COMPLIANCE_GATE:
        if terms.accountable_owner is None:
            fix = "Say who answers for the call: a person or an office."
            yield TermFault("accountable_owner", "a compliance gate names who is accountable", fix)
        if terms.justification_required is False:
            fix = "Leave it out, or choose operator_review."
            yield TermFault("justification_required", "is off, but a compliance gate asks why", fix)
