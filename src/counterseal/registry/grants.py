"""Who may use which tool: `Grant`, and an index of grants by agent and tool.

Least privilege: a tool without a grant may not be used. A grant never widens anything: the tenants,
roles and scopes of record and contract still apply. The budget gate counts calls against
`max_calls_per_run`.
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

_E = TypeVar("_E", bound=StrEnum)


class Mode(StrEnum):
    """How far an agent may go with a tool: read, prepare, or act."""

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

    # Written out, so that type checkers accept a list of scopes or the name of a mode.
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
        raise GrantError(f"{field_name}: must be a name, got {value!r}")
    return value


def _member(kind: type[_E], field_name: str, value: str) -> _E:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(member.value for member in kind)
        raise GrantError(f"{field_name}: must be one of {names}, got {value!r}") from None


def _count(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise GrantError(f"max_calls_per_run: must be a whole number, 0 or more, got {value!r}")
    return value


def _scopes(value: Iterable[str]) -> frozenset[str]:
    try:
        return text_set("scopes", value)
    except (TypeError, ValueError) as error:
        raise GrantError(f"scopes: {str(error).removeprefix('scopes ')}") from None


def _moment(value: datetime | None) -> datetime | None:
    if value is not None and not is_aware(value):
        raise GrantError(f"expires_at: must be a datetime with a time zone, got {value!r}")
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
    raise GrantError(f'version: must be a range like ">=1.0,<2", a version or "*", got {text!r}')


_HURDLES = (
    Reason.NO_GRANT,
    Reason.GRANT_EXPIRED,
    Reason.MODE,
    Reason.RISK_LIMIT,
    Reason.SCOPE_MISSING,
)
"""In the order of the checks: a grant that fails a later one is closer to fitting."""


def weigh(
    grants: Iterable[Grant], record: RegistryRecord, principal: Principal, now: datetime
) -> Grant | Refusal:
    """Return the first grant that authorizes, else the refusal of the closest one."""
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
            f"{_holder(grant)} allows {grant.mode.value} only, and the tool does more.",
        )
    if grant.risk_limit is not None and record.contract.risk > grant.risk_limit:
        return _refuse(
            Reason.RISK_LIMIT,
            f"{_holder(grant)} is limited to {grant.risk_limit.value}; "
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

    For one agent and tool, grants by operators come first, in the order of their numbers, and then
    those of the code in their order, so that every worker checks them alike. The grants that cover
    a version are cached until they change.
    """

    def __init__(self) -> None:
        self._by_agent: dict[str, dict[str, tuple[Grant, ...]]] = {}
        self._covering: dict[tuple[str, str], dict[str, tuple[Grant, ...]]] = {}
        self._without: dict[Grant, frozenset[str]] = {}
        """Versions that were deprecated before the grant, which it never covers."""
        self._numbers: dict[Grant, int] = {}
        """The number of the stored change, for grants by operators."""

    def __iter__(self) -> Iterator[Grant]:
        for by_tool in self._by_agent.values():
            for grants in by_tool.values():
                yield from grants

    def __contains__(self, grant: object) -> bool:
        return isinstance(grant, Grant) and grant in self.of(grant.agent, grant.tool)

    def of(self, agent: str, tool: str) -> tuple[Grant, ...]:
        return self._by_agent.get(agent, {}).get(tool, ())

    def tools_of(self, agent: str) -> Iterable[str]:
        return self._by_agent.get(agent, {}).keys()

    def covering(self, agent: str, record: RegistryRecord) -> tuple[Grant, ...]:
        known = self._covering.get((agent, record.name), {}).get(record.version)
        if known is not None:
            return known
        grants = self.of(agent, record.name)
        if not grants:
            return ()  # not cached, so that unknown agents can't fill the memory
        covering = tuple(
            grant
            for grant in grants
            if grant.covers(record.parsed) and record.version not in self._without.get(grant, ())
        )
        self._covering.setdefault((agent, record.name), {})[record.version] = covering
        return covering

    def add(
        self, grant: Grant, *, without: frozenset[str] = frozenset(), number: int | None = None
    ) -> None:
        if grant in self:
            self.remove(grant)
        if without:
            self._without[grant] = without
        if number is not None:
            self._numbers[grant] = number
        by_tool = self._by_agent.setdefault(grant.agent, {})
        grants = (*by_tool.get(grant.tool, ()), grant)
        by_tool[grant.tool] = tuple(sorted(grants, key=lambda one: self._numbers.get(one, inf)))
        self._covering.pop((grant.agent, grant.tool), None)

    def remove(self, grant: Grant) -> None:
        self._without.pop(grant, None)
        self._numbers.pop(grant, None)
        by_tool = self._by_agent[grant.agent]
        by_tool[grant.tool] = tuple(kept for kept in by_tool[grant.tool] if kept != grant)
        if not by_tool[grant.tool]:
            del by_tool[grant.tool]
        if not by_tool:
            del self._by_agent[grant.agent]
        self._covering.pop((grant.agent, grant.tool), None)
