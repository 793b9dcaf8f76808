"""The requirements of an approval, who may vote on it, and the result of the votes.

`Terms` are what one contract or rule asks for; a field that it leaves open is None. `strictest`
combines several: the most people, every set of roles, the shortest time, the strictest pattern. No
requirement is ever loosened; fields that all terms leave open follow from the pattern.

One rejection ends a request. As many different people as the demand requires must approve it before
it expires. Requester and approver are never the same person, except when a user consents to what an
agent wants to do in the user's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from math import inf
from typing import Any, Final, Self

from pydantic import ConfigDict, TypeAdapter

from counterseal.approvals.display import visible
from counterseal.canonical import exported
from counterseal.contract.approval_terms import PATTERNS, ApprovalTerms, Pattern, Then, pattern_for
from counterseal.contract.model import Contract, DataClassification
from counterseal.proposal import folded, text_set

_DATA_RANKS: Final = {data: rank for rank, data in enumerate(DataClassification)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The requirements of one contract or rule for an approval. None: no requirement."""

    approvers: int = 1
    pattern: Pattern | None = None
    roles: frozenset[frozenset[str]] = frozenset()
    """An approver needs one role of each set."""
    including: frozenset[frozenset[str]] = frozenset()
    """At least one of the approvers needs one role of each set."""
    expires_after: int | None = None
    """Seconds that the request stays open."""
    then: Then | None = None
    justification_required: bool = False
    data_class: DataClassification | None = None
    jurisdictions: frozenset[str] = frozenset()
    accountable_owners: frozenset[str] = frozenset()
    reason: str = ""
    """Why approval is needed; safe for a model."""
    rule: str | None = None

    def record(self) -> dict[str, Any]:
        """Return plain JSON data. Sets are sorted, so that equal terms have one form."""
        data: dict[str, Any] = exported(self)
        if not self.including:
            del data["including"]  # as in records of older versions, which do not know it
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand(Terms):
    """The requirements of an approval, with nothing left open."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    pattern: Pattern
    expires_after: int
    then: Then

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Demand:
        """Return the demand that `record()` wrote."""
        return _DEMAND.validate_python(dict(record))


_DEMAND: Final = TypeAdapter(Demand)


# --- sources of terms -----------------------------------------------------------------------------


def section_terms(section: ApprovalTerms | None, *, approvers: int, **more: Any) -> Terms:
    """Return the terms of a contract's or rule's section. `more` are fields of `Terms`."""
    if section is None:
        return Terms(approvers=approvers, **more)
    more = {"then": section.then, **more}
    return Terms(
        approvers=approvers,
        pattern=section.pattern,
        roles=frozenset({frozenset(section.roles)} if section.roles else ()),
        expires_after=section.expires_seconds,
        justification_required=bool(section.justification_required),
        jurisdictions=frozenset(filter(None, [section.jurisdiction])),
        accountable_owners=frozenset(filter(None, [section.accountable_owner])),
        **more,
    )


def contract_terms(contract: Contract) -> Terms:
    """Return a contract's terms; they also apply when only policy demands the approval."""
    known: dict[str, Any] = {"data_class": contract.security.data_classification}
    # Without a key an agent could not ask for the outcome later; and no worker can carry out what
    # the client does.
    if contract.by_client or not contract.idempotency.supported:
        known["then"] = Then.RESUBMIT
    return section_terms(contract.approval, approvers=contract.approvers, **known)


# --- combination ----------------------------------------------------------------------------------


def merged(demands: Iterable[Terms]) -> Terms:
    """Return terms that meet all of these, and leave open what all of them leave open.

    The order does not matter. Reason and rule are those of the strictest terms.
    """
    terms = [_implied(one) for one in demands]
    if not terms:
        return Terms(approvers=0)

    def weight(one: Terms) -> tuple[Any, ...]:
        # Terms with a reason first, then by strictness; the rest makes the order unique.
        rank = -1 if one.pattern is None else one.pattern.rank
        return (bool(one.reason), one.approvers, rank, one.rule or "", one.reason)

    decisive = max(terms, key=weight)
    thens = {one.then for one in terms}
    # RESUBMIT is stricter: it executes nothing by itself.
    then = next((one for one in (Then.RESUBMIT, Then.EXECUTE) if one in thens), None)
    return Terms(
        approvers=max(one.approvers for one in terms),
        pattern=max(
            (one.pattern for one in terms if one.pattern), key=lambda one: one.rank, default=None
        ),
        roles=frozenset().union(*(one.roles for one in terms)),
        including=frozenset().union(*(one.including for one in terms)),
        expires_after=min(
            (one.expires_after for one in terms if one.expires_after is not None), default=None
        ),
        then=then,
        justification_required=any(one.justification_required for one in terms),
        data_class=max(
            (one.data_class for one in terms if one.data_class),
            key=_DATA_RANKS.__getitem__,
            default=None,
        ),
        jurisdictions=frozenset().union(*(one.jurisdictions for one in terms)),
        accountable_owners=frozenset().union(*(one.accountable_owners for one in terms)),
        reason=decisive.reason,
        rule=decisive.rule,
    )


def strictest(demands: Iterable[Terms]) -> Demand:
    """Return the demand that meets all terms; open fields follow from the pattern."""
    terms = merged(demands)
    pattern = terms.pattern or pattern_for(terms.approvers)
    if pattern is Pattern.USER_CONSENT and terms.approvers > 1:
        # One user can't be two people, so more approvers means other people.
        pattern = Pattern.DUAL_CONTROL
    whole = _implied(replace(terms, pattern=pattern, approvers=max(terms.approvers, 1)))
    return Demand(**{field.name: getattr(whole, field.name) for field in fields(whole)})


def _implied(terms: Terms) -> Terms:
    """Return the terms with open fields filled in from their pattern."""
    if terms.pattern is None:
        return terms
    row = PATTERNS[terms.pattern]
    return replace(
        terms,
        approvers=max(terms.approvers, row.approvers),
        expires_after=row.expires_after if terms.expires_after is None else terms.expires_after,
        then=terms.then or row.then,
        justification_required=terms.justification_required or row.justification,
    )


# --- wording --------------------------------------------------------------------------------------


def who_may(demand: Demand, user: str | None) -> list[tuple[str, bool]]:
    """Return who may approve, as a phrase in pieces. True marks a foreign name."""
    consent = demand.pattern is Pattern.USER_CONSENT
    if consent and user is None:
        return [("no one: the call has no user who could consent", False)]
    phrase: list[tuple[str, bool]] = [("the user ", False), (user or "", True)]
    if not consent:
        count = demand.approvers
        phrase = [("1 person" if count == 1 else f"{count} different people", False)]
    more = f", {'at least one of them ' if demand.approvers > 1 else ''}with the role "
    for sets, first in ((demand.roles, " with the role "), (demand.including, more)):
        for number, names in enumerate(sorted(sorted(names) for names in sets)):
            phrase.append((first if number == 0 else " and ", False))
            for index, name in enumerate(names):
                phrase += [(" or ", False)] * (index > 0)
                phrase.append((name, True))
    if user is not None and not consent:
        phrase += [(", but not ", False), (user, True)]
    if demand.justification_required:
        phrase.append(("; each with a justification", False))
    return phrase


def still_needed(demand: Demand, votes: Iterable[Vote]) -> str:
    """Return a sentence about the roles that none of the approvers so far has; empty if none."""
    missing = missing_roles(demand, votes)
    roles = " and ".join(sorted(visible(" or ".join(sorted(names))) for names in missing))
    return f"An approver with the role {roles} is still needed." if roles else ""


# --- votes ----------------------------------------------------------------------------------------


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
        return exported(self)

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
    decided: bool = False
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

    def text_for(self, demand: Demand, votes: Iterable[Vote]) -> str:
        """The reason; for a person without a role, also which role is still needed."""
        more = still_needed(demand, votes) if self is Objection.ROLE else ""
        return f"{self.text} {more}".rstrip()


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
    demand: Demand,
    request: PendingApproval,
    voter: Voter,
    choice: Choice = Choice.APPROVE,
    *,
    now: float,
) -> Objection | None:
    """Return why this person can't vote so on the request, or None if they can."""
    if voter.tenant != request.tenant:
        return Objection.TENANT
    if request.decided:
        return Objection.DECIDED
    outcome = tally(demand, request.votes, now=now, expires_at=request.expires_at)
    if outcome is not Tally.WAITING:
        return Objection.EXPIRED if outcome is Tally.EXPIRED else Objection.DECIDED
    if not eligible({voter.user}, demand.pattern, agent=request.agent, user=request.user):
        consent = demand.pattern is Pattern.USER_CONSENT
        return Objection.NOT_THE_USER if consent else Objection.REQUESTER
    if any(folded(vote.approver) == folded(voter.user) for vote in request.votes):
        return Objection.VOTED
    if not _has_roles(demand, voter.roles):
        return Objection.ROLE
    counted = _counted(demand, request.votes, request.expires_at)
    # The last place is for a person with the role that is still missing; a rejection takes none.
    is_last = len({folded(vote.approver) for vote in counted}) + 1 >= demand.approvers
    roles = [*(vote.roles for vote in counted), voter.roles]
    if choice is Choice.APPROVE and is_last and _missing(demand, roles):
        return Objection.ROLE
    return None


def eligible(people: Iterable[str], pattern: str, *, agent: str, user: str | None) -> bool:
    """Return whether none of these approvers is the requester; the user alone gives a consent."""
    names = {folded(person) for person in people}
    if pattern == Pattern.USER_CONSENT:
        # The agent is the requester here, and the user decides about their own data and name.
        return user is not None and names == {folded(user)}
    return names.isdisjoint(folded(one) for one in (agent, user) if one is not None)


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
    objection = may_vote(demand, request, voter, decision, now=now)
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
    counted = _counted(demand, in_time, expires_at)
    enough = len({folded(vote.approver) for vote in counted}) >= demand.approvers
    if enough and not _missing(demand, [vote.roles for vote in counted]):
        return Tally.APPROVED
    return Tally.WAITING if now < expires_at else Tally.EXPIRED


def _counted(demand: Demand, votes: Iterable[Vote], expires_at: float) -> list[Vote]:
    """Return the approvals that were cast in time and are valid."""
    return [
        vote
        for vote in votes
        if vote.decision is Choice.APPROVE
        and vote.voted_at < expires_at
        and _has_roles(demand, vote.roles)
        and _justified(demand, vote)
    ]


def missing_roles(demand: Demand, votes: Iterable[Vote]) -> list[frozenset[str]]:
    """Return the sets of roles of which one approver needs one, and none so far has it."""
    return _missing(demand, [vote.roles for vote in _counted(demand, votes, inf)])


def _missing(demand: Demand, roles: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """Return the sets of roles that one approver needs and none of these has."""
    held = frozenset().union(*roles)
    return [names for names in demand.including if names.isdisjoint(held)]


def _has_roles(demand: Demand, roles: frozenset[str]) -> bool:
    return all(not names.isdisjoint(roles) for names in demand.roles)


def _justified(demand: Demand, vote: Vote) -> bool:
    return not demand.justification_required or bool(vote.justification.strip())
