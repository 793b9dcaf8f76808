"""Combine the approval terms of contract and policy into one demand.

`Terms` are what one contract or rule asks for; a field that it leaves open is None. `strictest`
combines several: the most people, every set of roles, the shortest time, the strictest pattern. No
requirement is ever loosened; fields that all terms leave open follow from the pattern.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self

from counterseal.contract.approval_terms import (
    PATTERNS,
    ApprovalTerms,
    Pattern,
    Then,
    pattern_for,
)
from counterseal.contract.model import Contract, DataClassification

_DATA_RANKS: Final = {data: rank for rank, data in enumerate(DataClassification)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What one contract or rule requires of an approval. None: no requirement."""

    approvers: int = 1
    pattern: Pattern | None = None
    roles: frozenset[frozenset[str]] = frozenset()
    """An approver needs one role of each set."""
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
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand(Terms):
    """The requirements of an approval, with nothing left open."""

    pattern: Pattern
    expires_after: int
    then: Then

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return the demand that `record()` wrote."""
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
        jurisdictions=_named(section.jurisdiction),
        accountable_owners=_named(section.accountable_owner),
        **more,
    )


def _named(name: str | None) -> frozenset[str]:
    return frozenset() if name is None else frozenset({name})


def contract_terms(contract: Contract) -> Terms:
    """Return a contract's terms; they also apply when only policy demands the approval."""
    known: dict[str, Any] = {"data_class": contract.security.data_classification}
    if not contract.idempotency.supported:
        known["then"] = Then.RESUBMIT  # without a key an agent could not ask for the outcome later
    return section_terms(contract.approval, approvers=contract.approvers, **known)


# --- combination ----------------------------------------------------------------------------------


def merged(demands: Iterable[Terms]) -> Terms:
    """Return terms that meet all of these, and leave open what all of them leave open.

    The order does not matter. Reason and rule are those of the strictest terms.
    """
    terms = [_implied(one) for one in demands]
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


def _then(terms: Iterable[Terms]) -> Then | None:
    """Return the stricter of the values: RESUBMIT executes nothing by itself."""
    values = {one.then for one in terms} - {None}
    if Then.RESUBMIT in values:
        return Then.RESUBMIT
    return Then.EXECUTE if values else None


def _rank(pattern: Pattern) -> int:
    return pattern.rank


def _weight(terms: Terms) -> tuple[Any, ...]:
    """Rank terms with a reason first, then by strictness; the rest makes the order unique."""
    rank = -1 if terms.pattern is None else terms.pattern.rank
    return (bool(terms.reason), terms.approvers, rank, terms.rule or "", terms.reason)


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
    for number, names in enumerate(sorted(sorted(names) for names in demand.roles)):
        phrase.append((" with the role " if number == 0 else " and ", False))
        for index, name in enumerate(names):
            phrase += [(" or ", False)] * (index > 0)
            phrase.append((name, True))
    if user is not None and not consent:
        phrase += [(", but not ", False), (user, True)]
    if demand.justification_required:
        phrase.append(("; each with a justification", False))
    return phrase
