"""Votes: who may cast one, and what they come to.

One rejection ends a request. So many different people as the demand asks must approve it before it
expires; at the moment of expiry it is expired. Requester and approver are never the same person,
save where the user consents to what an agent wants to do in the user's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Self

from counterseal.approvals.display import visible
from counterseal.approvals.terms import Demand, Pattern
from counterseal.proposal import text_set

__all__ = [
    "Choice",
    "Objection",
    "PendingApproval",
    "Tally",
    "Vote",
    "Voter",
    "cast",
    "may_vote",
    "tally",
]


class Choice(StrEnum):
    APPROVE = "approve"
    REJECT = "reject"


class Tally(StrEnum):
    """What the votes come to."""

    WAITING = "waiting"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """A person, as authentication knows them."""

    user: str
    tenant: str
    roles: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in ("user", "tenant"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"{name}: a voter has one")
        if self.user != self.user.strip() or visible(self.user) != self.user:
            # Or else one person could seem to be two, or another.
            raise ValueError("user: has spaces around it, or characters that nobody sees")
        object.__setattr__(self, "roles", text_set("roles", self.roles))


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """What one person said, with the roles that they had then."""

    approver: str
    decision: Choice
    voted_at: float
    roles: frozenset[str] = frozenset()
    comment: str = ""
    """For the agent and for whoever looks later."""
    justification: str = ""
    """Why it may be done, where the demand asks for it."""

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
        """The vote that `record()` wrote down."""
        changed = {"decision": Choice(record["decision"]), "roles": frozenset(record["roles"])}
        return cls(**{**record, **changed})


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingApproval:
    """What a voter has to be held against: whose call it is, and how far the vote is."""

    tenant: str
    agent: str
    user: str | None
    """On whose behalf the call is made: the requester."""
    expires_at: float
    votes: tuple[Vote, ...] = ()
    decided: bool = field(default=False)
    """Whether it has an end already, whatever the votes say: void, spent, withdrawn."""


class Objection(StrEnum):
    """Why somebody can't vote, or not like that."""

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
        """In a sentence, for the person."""
        return _SAID[self]


_SAID: Final = {
    Objection.TENANT: "There is no such request.",
    Objection.DECIDED: "It is decided already.",
    Objection.EXPIRED: "The request has expired.",
    Objection.REQUESTER: "Whoever asks for a call can't approve it.",
    Objection.NOT_THE_USER: "Only the user on whose behalf the agent acts can consent.",
    Objection.VOTED: "You have voted on this already.",
    Objection.ROLE: "You don't have the role that this takes.",
    Objection.JUSTIFICATION: "Say why this may be done: an approval here needs a justification.",
}


def may_vote(
    demand: Demand, request: PendingApproval, voter: Voter, *, now: float
) -> Objection | None:
    """Why this person can't vote on the request; None when they can."""
    if voter.tenant != request.tenant:
        return Objection.TENANT
    if request.decided:
        return Objection.DECIDED
    outcome = tally(demand, request.votes, now=now, expires_at=request.expires_at)
    if outcome is not Tally.WAITING:
        return Objection.EXPIRED if outcome is Tally.EXPIRED else Objection.DECIDED
    if demand.pattern is Pattern.USER_CONSENT:
        # The agent asks here, and the user is whom it asks: nobody else's data or name is at stake.
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
    """The vote of this person, or why there can't be one."""
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
    """What the votes come to now. Only those that were cast in time, and may count, do."""
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
