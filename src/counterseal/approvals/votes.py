"""Votes: who may cast one, and what the result is.

One rejection ends a request. As many different people as the demand requires must approve it before
it expires. Requester and approver are never the same person, except when a user consents to what an
agent wants to do in the user's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Self

from counterseal.approvals.display import visible
from counterseal.approvals.terms import Demand
from counterseal.contract.approval_terms import Pattern
from counterseal.proposal import text_set


class Choice(StrEnum):
    APPROVE = "approve"
    REJECT = "reject"


class Tally(StrEnum):
    """The result of the votes so far."""

    WAITING = "waiting"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """A signed-in person."""

    user: str
    tenant: str
    roles: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in ("user", "tenant"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"{name} must be a non-empty text, got {value!r}")
        if self.user != self.user.strip() or visible(self.user) != self.user:
            # One person must not be able to look like two, or like another one.
            raise ValueError("user: the name has spaces around it, or invisible characters")
        object.__setattr__(self, "roles", text_set("roles", self.roles))


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """The vote of one person, with the roles that they had at that time."""

    approver: str
    decision: Choice
    voted_at: float
    roles: frozenset[str] = frozenset()
    comment: str = ""
    """For the agent and the audit record."""
    justification: str = ""
    """Why the call is allowed, if the demand requires a justification."""

    def record(self) -> dict[str, Any]:
        return {
            "approver": self.approver,
            "decision": self.decision.value,
            "voted_at": self.voted_at,
            "roles": sorted(self.roles),
            "comment": self.comment,
            "justification": self.justification,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return the vote that `record()` wrote."""
        changed = {"decision": Choice(record["decision"]), "roles": frozenset(record["roles"])}
        return cls(**{**record, **changed})


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingApproval:
    """The part of a held call that voting depends on: its requester, expiry and votes."""

    tenant: str
    agent: str
    user: str | None
    """The user on whose behalf the call is made."""
    expires_at: float
    votes: tuple[Vote, ...] = ()
    decided: bool = field(default=False)
    """Whether the request has ended for another reason: void, executed, withdrawn."""


class Objection(StrEnum):
    """Why a vote is refused."""

    TENANT = "tenant"
    DECIDED = "decided"
    EXPIRED = "expired"
    REQUESTER = "requester"
    NOT_THE_USER = "not-the-user"
    VOTED = "voted"
    ROLE = "role"
    JUSTIFICATION = "justification"

    @property
    def text(self) -> str:
        """The reason as a sentence for the voter."""
        return _SENTENCES[self]


_SENTENCES: Final = {
    Objection.TENANT: "There is no such request.",
    Objection.DECIDED: "This request has already been decided.",
    Objection.EXPIRED: "The request has expired.",
    Objection.REQUESTER: "You can't approve your own request.",
    Objection.NOT_THE_USER: "Only the user on whose behalf the agent acts can consent.",
    Objection.VOTED: "You have already voted on this request.",
    Objection.ROLE: "You don't have a role that may approve this.",
    Objection.JUSTIFICATION: "Give a justification: this approval needs one.",
}


def may_vote(
    demand: Demand, request: PendingApproval, voter: Voter, *, now: float
) -> Objection | None:
    """Return why this person can't vote on the request, or None if they can."""
    if voter.tenant != request.tenant:
        return Objection.TENANT
    if request.decided:
        return Objection.DECIDED
    outcome = tally(demand, request.votes, now=now, expires_at=request.expires_at)
    if outcome is not Tally.WAITING:
        return Objection.EXPIRED if outcome is Tally.EXPIRED else Objection.DECIDED
    if demand.pattern is Pattern.USER_CONSENT:
        # The agent is the requester here, and the user decides about their own data and name.
        if voter.user != request.user:
            return Objection.NOT_THE_USER
    elif voter.user in (request.user, request.agent):
        return Objection.REQUESTER
    if any(vote.approver == voter.user for vote in request.votes):
        return Objection.VOTED
    return None if _has_roles(demand, voter.roles) else Objection.ROLE


def cast(
    demand: Demand,
    request: PendingApproval,
    voter: Voter,
    decision: Choice,
    *,
    now: float,
    comment: str = "",
    justification: str = "",
) -> Vote | Objection:
    """Return the vote of this person, or why it is refused."""
    objection = may_vote(demand, request, voter, now=now)
    if objection is not None:
        return objection
    vote = Vote(
        approver=voter.user,
        roles=voter.roles,
        decision=decision,
        comment=comment.strip(),
        justification=justification.strip(),
        voted_at=now,
    )
    if decision is Choice.APPROVE and not _justified(demand, vote):
        return Objection.JUSTIFICATION
    return vote


def tally(demand: Demand, votes: Iterable[Vote], *, now: float, expires_at: float) -> Tally:
    """Return the result now. Only votes that were cast in time and are valid count."""
    in_time = [vote for vote in votes if vote.voted_at < expires_at]
    if any(vote.decision is Choice.REJECT for vote in in_time):
        return Tally.REJECTED
    approved = {
        vote.approver
        for vote in in_time
        if _has_roles(demand, vote.roles) and _justified(demand, vote)
    }
    if len(approved) >= demand.approvers:
        return Tally.APPROVED
    return Tally.WAITING if now < expires_at else Tally.EXPIRED


def _has_roles(demand: Demand, roles: frozenset[str]) -> bool:
    return all(not names.isdisjoint(roles) for names in demand.roles)


def _justified(demand: Demand, vote: Vote) -> bool:
    return not demand.justification_required or bool(vote.justification.strip())
