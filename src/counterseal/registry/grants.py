"""Who may use what: `Grant`, and the book that keeps grants by agent and tool.

Least privilege: what no grant covers may not be used. A grant never widens anything: tenants,
roles and scopes that the record and the contract demand are demanded still. Counting calls against
`max_calls_per_run` is the budget gate's work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from math import inf
from typing import Any, TypeVar

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from counterseal.contract.effects import EFFECTS, Effect, RiskClass
from counterseal.errors import GrantError
from counterseal.proposal import Principal, text_set
from counterseal.registry.records import Reason, Refusal, RegistryRecord, is_aware

__all__ = ["Grant", "GrantIndex", "Mode", "weigh"]

_E = TypeVar("_E", bound=StrEnum)


class Mode(StrEnum):
    """How far an agent may go with a tool: look, prepare, or act."""

    READ = "read"
    DRAFT = "draft"
    EXECUTE = "execute"

    def allows(self, effect: Effect | None) -> bool:
        if self is Mode.EXECUTE:
            return True
        if effect is None:
            return False
        return not EFFECTS[effect].mutates or (self is Mode.DRAFT and effect is Effect.DRAFT)


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Grant:
    """Permission for one agent to use one tool, with its limits.

    `version` is a range in the notation of Python packages (">=1.0,<2", "~=1.4", "1.*"), one exact
    version, or "*". Pre-releases inside the range are covered, since a rollout may choose them.
    """

    agent: str
    tool: str
    version: str = "*"
    mode: Mode = Mode.EXECUTE
    max_calls_per_run: int | None = None
    """None: the contract's own budget."""
    scopes: frozenset[str] = frozenset()
    """Needed in addition to the contract's."""
    risk_limit: RiskClass | None = None
    expires_at: datetime | None = None
    tenant: str | None = None
    """None: every tenant that the record allows."""
    versions: SpecifierSet = field(repr=False, compare=False)

    # Written out, so that type checkers let a caller pass a list of scopes or a mode's name.
    def __init__(
        self,
        *,
        agent: str,
        tool: str,
        version: str = "*",
        mode: Mode | str = Mode.EXECUTE,
        max_calls_per_run: int | None = None,
        scopes: Iterable[str] = (),
        risk_limit: RiskClass | str | None = None,
        expires_at: datetime | None = None,
        tenant: str | None = None,
    ) -> None:
        values = {
            "agent": _name("agent", agent),
            "tool": _name("tool", tool),
            "version": version,
            "mode": _member(Mode, "mode", mode),
            "max_calls_per_run": _count(max_calls_per_run),
            "scopes": _scopes(scopes),
            "risk_limit": None
            if risk_limit is None
            else _member(RiskClass, "risk_limit", risk_limit),
            "expires_at": _moment(expires_at),
            "tenant": None if tenant is None else _name("tenant", tenant),
            "versions": _versions(version),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def covers(self, version: Version) -> bool:
        return self.versions.contains(version, prereleases=True)

    def export(self) -> dict[str, Any]:
        return {
            "agent": self.agent,
            "tool": self.tool,
            "version": self.version,
            "mode": self.mode.value,
            "max_calls_per_run": self.max_calls_per_run,
            "scopes": sorted(self.scopes),
            "risk_limit": None if self.risk_limit is None else self.risk_limit.value,
            "expires_at": None if self.expires_at is None else self.expires_at.isoformat(),
            "tenant": self.tenant,
        }


def _name(field_name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise GrantError(f"{field_name}: takes a name, got {value!r}")
    return value


def _member(kind: type[_E], field_name: str, value: str) -> _E:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(member.value for member in kind)
        raise GrantError(f"{field_name}: {value!r} is none of {names}") from None


def _count(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise GrantError(f"max_calls_per_run: takes a whole number from 0 on, got {value!r}")
    return value


def _scopes(value: Iterable[str]) -> frozenset[str]:
    try:
        return text_set("scopes", value)
    except (TypeError, ValueError) as error:
        raise GrantError(str(error)) from None


def _moment(value: datetime | None) -> datetime | None:
    if value is not None and not is_aware(value):
        raise GrantError(f"expires_at: takes a datetime with a time zone, got {value!r}")
    return value


def _versions(text: object) -> SpecifierSet:
    if text == "*":
        return SpecifierSet()
    if isinstance(text, str) and text.strip() and len(text) <= 200:
        for candidate in (text, f"=={text}"):
            try:
                return SpecifierSet(candidate)
            except InvalidSpecifier:
                continue
    raise GrantError(f'version: {text!r} is not a range like ">=1.0,<2", a version, or "*"')


_HURDLES = (
    Reason.NO_GRANT,
    Reason.GRANT_EXPIRED,
    Reason.MODE,
    Reason.RISK_LIMIT,
    Reason.SCOPE_MISSING,
)
"""In the order in which a grant is weighed: a later one means that less is missing."""


def weigh(
    grants: Iterable[Grant], record: RegistryRecord, principal: Principal, now: datetime
) -> Grant | Refusal:
    """The first grant that authorizes; else the refusal of the one that came closest."""
    closest: Refusal | None = None
    for grant in grants:
        refusal = _weigh_one(grant, record, principal, now)
        if refusal is None:
            return grant
        if closest is None or _HURDLES.index(refusal.reason) > _HURDLES.index(closest.reason):
            closest = refusal
    return closest or _refuse(
        Reason.NO_GRANT, f"Agent {principal.agent!r} has no grant for {record.name}."
    )


def _weigh_one(
    grant: Grant, record: RegistryRecord, principal: Principal, now: datetime
) -> Refusal | None:
    if grant.tenant is not None and grant.tenant != principal.tenant:
        return _refuse(
            Reason.NO_GRANT, f"Agent {principal.agent!r} has no grant for {record.name}."
        )
    if grant.expires_at is not None and grant.expires_at <= now:
        return _refuse(
            Reason.GRANT_EXPIRED, f"{_holder(grant)} expired at {grant.expires_at.isoformat()}."
        )
    if grant.mode is not Mode.EXECUTE and not grant.mode.allows(record.contract.effect):
        return _refuse(
            Reason.MODE,
            f"{_holder(grant)} is for {grant.mode.value} only; the tool does more than that.",
        )
    if grant.risk_limit is not None and record.contract.risk > grant.risk_limit:
        return _refuse(
            Reason.RISK_LIMIT,
            f"{_holder(grant)} ends at {grant.risk_limit.value}; "
            f"the tool is {record.contract.risk.value}.",
        )
    if not (record.scopes <= principal.scopes and grant.scopes <= principal.scopes):
        missing = (record.scopes | grant.scopes) - principal.scopes
        return _refuse(
            Reason.SCOPE_MISSING, f"{record.name} needs the scopes {', '.join(sorted(missing))}."
        )
    return None


def _holder(grant: Grant) -> str:
    return f"The grant of agent {grant.agent!r} for {grant.tool}"


def _refuse(reason: Reason, message: str) -> Refusal:
    return Refusal(reason=reason, message=message)


class GrantIndex:
    """Grants by agent and tool.

    Of those of one agent for one tool, the ones that operators gave come first, in the order of
    their numbers, and the others in the order they came in: every worker weighs them alike. Which
    of them cover a version is worked out once and remembered until they change.
    """

    def __init__(self) -> None:
        self._pages: dict[str, dict[str, tuple[Grant, ...]]] = {}
        self._covering: dict[tuple[str, str], dict[str, tuple[Grant, ...]]] = {}
        self._without: dict[Grant, frozenset[str]] = {}
        """Versions that were deprecated before a grant was given: it never covers them."""
        self._numbers: dict[Grant, int] = {}
        """Of the stored changes by which operators gave grants."""

    def __iter__(self) -> Iterator[Grant]:
        for page in self._pages.values():
            for grants in page.values():
                yield from grants

    def __contains__(self, grant: object) -> bool:
        return isinstance(grant, Grant) and grant in self.of(grant.agent, grant.tool)

    def of(self, agent: str, tool: str) -> tuple[Grant, ...]:
        return self._pages.get(agent, {}).get(tool, ())

    def tools_of(self, agent: str) -> Iterable[str]:
        return self._pages.get(agent, {}).keys()

    def covering(self, agent: str, record: RegistryRecord) -> tuple[Grant, ...]:
        known = self._covering.get((agent, record.name), {}).get(record.version)
        if known is not None:
            return known
        grants = self.of(agent, record.name)
        if not grants:
            return ()  # not remembered, so that strangers' names don't pile up
        found = tuple(
            grant
            for grant in grants
            if grant.covers(record.parsed) and record.version not in self._without.get(grant, ())
        )
        self._covering.setdefault((agent, record.name), {})[record.version] = found
        return found

    def add(
        self, grant: Grant, *, without: frozenset[str] = frozenset(), number: int | None = None
    ) -> None:
        if grant in self:
            self.remove(grant)
        if without:
            self._without[grant] = without
        if number is not None:
            self._numbers[grant] = number
        page = self._pages.setdefault(grant.agent, {})
        grants = (*page.get(grant.tool, ()), grant)
        page[grant.tool] = tuple(sorted(grants, key=lambda one: self._numbers.get(one, inf)))
        self._covering.pop((grant.agent, grant.tool), None)

    def remove(self, grant: Grant) -> None:
        self._without.pop(grant, None)
        self._numbers.pop(grant, None)
        page = self._pages[grant.agent]
        page[grant.tool] = tuple(kept for kept in page[grant.tool] if kept != grant)
        if not page[grant.tool]:
            del page[grant.tool]
        if not page:
            del self._pages[grant.agent]
        self._covering.pop((grant.agent, grant.tool), None)
