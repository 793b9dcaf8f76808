"""What an approval takes: the terms of contract and policy, and the one demand they come to.

`Terms` are what one of them asks; what it leaves open is None. `strictest` brings several together:
the most people, every set of roles, the shortest time, the strictest pattern. Nothing that anybody
asked for is ever loosened, and only what nobody spoke of is filled in from the pattern.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self

from counterseal.contract.approval_terms import (
    PATTERNS,
    ApprovalTerms,
    Pattern,
    PatternRow,
    Then,
    pattern_for,
)
from counterseal.contract.model import Contract, DataClassification

__all__ = [
    "PATTERNS",
    "Demand",
    "Pattern",
    "PatternRow",
    "Terms",
    "Then",
    "contract_terms",
    "merged",
    "section_terms",
    "strictest",
    "who_may",
]


_DATA_RANKS: Final = {data: rank for rank, data in enumerate(DataClassification)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What one contract or one rule asks of an approval. None: it leaves that to others."""

    approvers: int = 1
    pattern: Pattern | None = None
    roles: frozenset[frozenset[str]] = frozenset()
    """An approver has one role of each set."""
    expires_after: int | None = None
    """Seconds that the request stays open."""
    then: Then | None = None
    justification_required: bool = False
    data_class: DataClassification | None = None
    jurisdictions: frozenset[str] = frozenset()
    accountable_owners: frozenset[str] = frozenset()
    reason: str = ""
    """Why somebody is asked; safe for a model."""
    rule: str | None = None

    def record(self) -> dict[str, Any]:
        """As plain JSON data. Sets are sorted, so that equal terms have one form."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand(Terms):
    """What an approval takes, all said."""

    pattern: Pattern
    expires_after: int
    then: Then

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The demand that `record()` wrote down."""
        data = record["data_class"]
        return cls(
            **{
                **record,
                "pattern": Pattern(record["pattern"]),
                "then": Then(record["then"]),
                "roles": frozenset(frozenset(names) for names in record["roles"]),
                "data_class": None if data is None else DataClassification(data),
                "jurisdictions": frozenset(record["jurisdictions"]),
                "accountable_owners": frozenset(record["accountable_owners"]),
            }
        )


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(_plain(item) for item in value)
    return getattr(value, "value", value)


# --- where terms come from ------------------------------------------------------------------------


def section_terms(section: ApprovalTerms | None, *, approvers: int, **more: Any) -> Terms:
    """The terms that a section of a contract or a rule stands for. `more` are fields of `Terms`."""
    if section is None:
        return Terms(approvers=approvers, **more)
    said = {"then": section.then, **more}
    return Terms(
        approvers=approvers,
        pattern=section.pattern,
        roles=frozenset({frozenset(section.roles)} if section.roles else ()),
        expires_after=section.expires_seconds,
        justification_required=bool(section.justification_required),
        jurisdictions=_named(section.jurisdiction),
        accountable_owners=_named(section.accountable_owner),
        **said,
    )


def _named(name: str | None) -> frozenset[str]:
    return frozenset() if name is None else frozenset({name})


def contract_terms(contract: Contract) -> Terms:
    """What a contract asks wherever its calls are approved, be it that only policy demands it."""
    known: dict[str, Any] = {"data_class": contract.security.data_classification}
    if not contract.idempotency.supported:
        known["then"] = Then.RESUBMIT  # without a key nobody could ask for the outcome later
    return section_terms(contract.approval, approvers=contract.approvers, **known)


# --- bringing them together -----------------------------------------------------------------------


def merged(asked: Iterable[Terms]) -> Terms:
    """Terms that meet all of these, and leave open what all of them leave open.

    The order does not matter. Reason and rule are those of whoever asks the most.
    """
    terms = [_implied(one) for one in asked]
    if not terms:
        return Terms(approvers=0)
    decisive = max(terms, key=_weight)
    return Terms(
        approvers=max(one.approvers for one in terms),
        pattern=max((one.pattern for one in terms if one.pattern), key=_rank, default=None),
        roles=frozenset().union(*(one.roles for one in terms)),
        expires_after=min(
            (one.expires_after for one in terms if one.expires_after is not None), default=None
        ),
        then=_then(terms),
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


def strictest(asked: Iterable[Terms]) -> Demand:
    """The one demand that meets all of these; what nobody said follows from the pattern."""
    terms = merged(asked)
    pattern = terms.pattern or pattern_for(terms.approvers)
    if pattern is Pattern.USER_CONSENT and terms.approvers > 1:
        # One user can't be two people: whoever asks for more of them means others.
        pattern = Pattern.DUAL_CONTROL
    whole = _implied(replace(terms, pattern=pattern, approvers=max(terms.approvers, 1)))
    return Demand(**{field.name: getattr(whole, field.name) for field in fields(whole)})


def _implied(terms: Terms) -> Terms:
    """The same terms with what their pattern stands for, as far as they don't say it."""
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


def _then(terms: Iterable[Terms]) -> Then | None:
    """Doing nothing by itself is the stricter way on."""
    said = {one.then for one in terms} - {None}
    if Then.RESUBMIT in said:
        return Then.RESUBMIT
    return Then.EXECUTE if said else None


def _rank(pattern: Pattern) -> int:
    return pattern.rank


def _weight(terms: Terms) -> tuple[Any, ...]:
    """Who has a reason and asks the most; the rest only makes the choice a certain one."""
    rank = -1 if terms.pattern is None else terms.pattern.rank
    return (bool(terms.reason), terms.approvers, rank, terms.rule or "", terms.reason)


# --- telling --------------------------------------------------------------------------------------


def who_may(demand: Demand, user: str | None) -> list[tuple[str, bool]]:
    """Who may approve, as a phrase in pieces. True marks a name that somebody else has given."""
    consent = demand.pattern is Pattern.USER_CONSENT
    if consent and user is None:
        return [("nobody: the call is made on no user's behalf", False)]
    said: list[tuple[str, bool]] = [("the user ", False), (user or "", True)]
    if not consent:
        count = demand.approvers
        said = [("1 person" if count == 1 else f"{count} different people", False)]
    for number, names in enumerate(sorted(sorted(names) for names in demand.roles)):
        said.append((" with the role " if number == 0 else " and ", False))
        for index, name in enumerate(names):
            said += [(" or ", False)] * (index > 0)
            said.append((name, True))
    if user is not None and not consent:
        said += [(", but not ", False), (user, True)]
    if demand.justification_required:
        said.append(("; each says why", False))
    return said
