"""What the registry keeps about each contract: records, deprecations, kills and quarantines.

These are values: they validate themselves and decide nothing about callers. `registry` holds them,
`grants` says who may use them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, time
from enum import StrEnum
from typing import Any

from packaging.version import InvalidVersion, Version

from counterseal.contract.declare import Tool
from counterseal.contract.effects import Effect
from counterseal.contract.model import Contract, Lifecycle, LifecycleStatus
from counterseal.errors import RegistryError
from counterseal.proposal import text_set


class Reason(StrEnum):
    """Why a tool can't be used. `resolve` returns the first group, `authorize` the second."""

    UNKNOWN = "unknown"
    OTHER_TENANT = "other_tenant"
    VERSION_UNKNOWN = "version_unknown"
    DISABLED = "disabled"
    KILLED = "killed"
    SUNSET = "sunset"
    NOT_ROLLED_OUT = "not_rolled_out"
    QUARANTINED = "quarantined"

    NOT_EXPOSED = "not_exposed"
    ROLE = "role"
    NO_GRANT = "no_grant"
    GRANT_EXPIRED = "grant_expired"
    MODE = "mode"
    RISK_LIMIT = "risk_limit"
    SCOPE_MISSING = "scope_missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a call is refused. `message` may be shown to the caller; `reason` is for the record."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deprecation:
    """A deprecated version. From `removal_at` on it is refused."""

    deprecated_at: datetime | None = None
    """None: already deprecated, since an unknown time."""
    removal_at: datetime | None = None
    replacement_tool: str | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        for name in ("deprecated_at", "removal_at"):
            moment = getattr(self, name)
            if moment is not None and not is_aware(moment):
                raise RegistryError(f"{name}: must be a datetime with a time zone, got {moment!r}")

    @classmethod
    def of(cls, lifecycle: Lifecycle) -> Deprecation | None:
        """Return the deprecation that a contract declares. It ends on the sunset day."""
        if lifecycle.status is LifecycleStatus.ACTIVE and lifecycle.sunset_date is None:
            return None
        day = lifecycle.sunset_date
        return cls(
            removal_at=None if day is None else datetime.combine(day, time(), UTC),
            replacement_tool=lifecycle.replacement,
            reason="declared by its contract",
        )

    def export(self) -> dict[str, Any]:
        return {
            "deprecated_at": iso(self.deprecated_at),
            "removal_at": iso(self.removal_at),
            "replacement_tool": self.replacement_tool,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryRecord:
    """One version of one tool with its settings."""

    contract: Contract
    tool: Tool[..., Any] | None = None
    enabled: bool = True
    note: str = ""
    """The reason of the last enable or disable."""
    superseded: bool = False
    """Whether a newer version has replaced it for good."""
    allowed_agent_roles: frozenset[str] = frozenset()
    """Empty: any role."""
    allowed_tenants: frozenset[str] = frozenset()
    """Empty: every tenant."""
    rollout_percentage: int = 100
    deprecation: Deprecation | None = None
    # Copied from the contract, because every call reads them: looking them up through the contract
    # would dominate the cost once thousands of tools are in use.
    name: str = field(init=False, compare=False)
    version: str = field(init=False, compare=False)
    exposed: bool = field(init=False, repr=False, compare=False)
    scopes: frozenset[str] = field(init=False, repr=False, compare=False)
    parsed: Version = field(init=False, repr=False, compare=False)
    """The version in its comparable form."""
    ends_at: datetime | None = field(init=False, repr=False, compare=False)
    """When it stops working, as set by an operator or by the contract."""

    def __post_init__(self) -> None:
        errors = setting_errors(
            enabled=self.enabled,
            allowed_agent_roles=self.allowed_agent_roles,
            allowed_tenants=self.allowed_tenants,
            rollout_percentage=self.rollout_percentage,
            deprecation=self.deprecation,
        )
        version = parse_version(self.contract.version)
        if version is None:
            errors["contract.version"] = f"{self.contract.version!r} is not a version like 1.4.0"
        if errors:
            raise RegistryError("; ".join(f"{name}: {text}" for name, text in errors.items()))
        object.__setattr__(self, "name", self.contract.name)
        object.__setattr__(self, "version", self.contract.version)
        object.__setattr__(self, "exposed", self.contract.exposed)
        object.__setattr__(self, "scopes", frozenset(self.contract.security.required_scopes))
        object.__setattr__(self, "parsed", version)
        object.__setattr__(self, "ends_at", self._end())
        for name in ("allowed_agent_roles", "allowed_tenants"):
            object.__setattr__(self, name, frozenset(getattr(self, name)))

    def _end(self) -> datetime | None:
        if self.contract.identity.lifecycle.status is LifecycleStatus.SUNSETTED:
            return datetime.min.replace(tzinfo=UTC)
        return None if self.deprecation is None else self.deprecation.removal_at

    @property
    def mutates(self) -> bool:
        return self.contract.mutates

    def allows_tenant(self, tenant: str) -> bool:
        return not self.allowed_tenants or tenant in self.allowed_tenants

    def is_deprecated(self, now: datetime) -> bool:
        if self.deprecation is None:
            return self.is_sunset(now)
        since = self.deprecation.deprecated_at
        return since is None or since <= now or self.is_sunset(now)

    @property
    def is_timeless(self) -> bool:
        """Whether no date affects it, now or later."""
        return self.deprecation is None and self.ends_at is None

    def is_sunset(self, now: datetime) -> bool:
        return self.ends_at is not None and self.ends_at <= now

    def ended(self, now: datetime) -> Refusal | None:
        """Return why the record can't be used any more, or None."""
        if not self.enabled:
            new = " A newer version replaced it; start a new run." if self.superseded else ""
            message = f"{self.name} {self.version} is disabled.{new}"
            return Refusal(reason=Reason.DISABLED, message=message)
        if self.is_sunset(now):
            successor = self.deprecation and self.deprecation.replacement_tool
            instead = f" Use {successor}." if successor else ""
            return Refusal(
                reason=Reason.SUNSET, message=f"{self.name} {self.version} was retired.{instead}"
            )
        return None

    def export(self) -> dict[str, Any]:
        return {
            "tool": self.name,
            "version": self.version,
            "contract_hash": self.contract.hash,
            "effect": None if self.contract.effect is None else self.contract.effect.value,
            "risk_class": self.contract.risk.value,
            "enabled": self.enabled,
            "note": self.note,
            "allowed_agent_roles": sorted(self.allowed_agent_roles),
            "allowed_tenants": sorted(self.allowed_tenants),
            "rollout_percentage": self.rollout_percentage,
            "deprecation": None if self.deprecation is None else self.deprecation.export(),
        }


def setting_errors(
    *,
    enabled: object,
    allowed_agent_roles: Iterable[str],
    allowed_tenants: Iterable[str],
    rollout_percentage: object,
    deprecation: object = None,
) -> dict[str, str]:
    """Return what is wrong with a record's settings, by field."""
    errors = {}
    if not isinstance(enabled, bool):
        errors["enabled"] = f"must be true or false, got {enabled!r}"
    for name, value in (
        ("allowed_agent_roles", allowed_agent_roles),
        ("allowed_tenants", allowed_tenants),
    ):
        try:
            text_set(name, value)
        except (TypeError, ValueError) as error:
            errors[name] = str(error).removeprefix(f"{name} ")
    percentage = percentage_error(rollout_percentage)
    if percentage is not None:
        errors["rollout_percentage"] = percentage
    if not isinstance(deprecation, Deprecation | None):
        errors["deprecation"] = f"must be a Deprecation or None, got {deprecation!r}"
    return errors


def percentage_error(value: object) -> str | None:
    """Return what is wrong with a rollout percentage, or None."""
    if isinstance(value, bool) or not isinstance(value, int):
        return f"must be a whole number from 0 to 100, got {value!r}"
    return None if 0 <= value <= 100 else f"must be 0 to 100, got {value}"


def parse_version(text: str) -> Version | None:
    """Return the version, or None if the text is not one."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


def is_aware(moment: object) -> bool:
    """Return whether this is a moment with a time zone."""
    return isinstance(moment, datetime) and moment.utcoffset() is not None


def iso(moment: datetime | None) -> str | None:
    """Return a moment as ISO 8601 text."""
    return None if moment is None else moment.isoformat()


def shown(text: object) -> str:
    """Return a caller's text in a form that is safe in a message."""
    return ascii(text if len(str(text)) <= 128 else f"{str(text)[:128]}…")


# --- the kill switch ------------------------------------------------------------------------------


Scope = tuple[str, str]
"""Kind and name: a tool may have the name of an effect, such as "draft"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A stop of one tool or effect; with neither, of everything. Each kill is undone by itself."""

    id: str
    reason: str
    at: datetime
    by: str = ""
    tool: str | None = None
    effect: Effect | None = None

    def __post_init__(self) -> None:
        if self.tool is not None and self.effect is not None:
            raise RegistryError("a kill stops a tool or an effect, not both; make two kills")

    @property
    def scope(self) -> Scope:
        if self.tool is not None:
            return ("tool", self.tool)
        return ("all", "") if self.effect is None else ("effect", self.effect.value)

    def covers(self, record: RegistryRecord) -> bool:
        return self.scope in _scopes_over(record)

    def export(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "tool": self.tool,
            "effect": None if self.effect is None else self.effect.value,
            "reason": self.reason,
            "by": self.by,
            "at": iso(self.at),
        }


def known_effect(name: str) -> Effect:
    """Return the effect of this name. RegistryError lists the known ones."""
    try:
        return Effect(name)
    except ValueError:
        raise RegistryError(f"effect: {name!r} is not one of {', '.join(Effect)}") from None


class KillSwitch:
    """The kills in force, oldest first. A tool is stopped while any of them covers it."""

    def __init__(self) -> None:
        self._kills: dict[str, Kill] = {}
        self._scopes: Counter[Scope] = Counter()

    def __iter__(self) -> Iterator[Kill]:
        return iter(self._kills.values())

    def get(self, kill_id: str) -> Kill:
        if kill_id not in self._kills:
            raise RegistryError(
                f"{kill_id} is not in force; in force: {', '.join(self._kills) or 'none'}"
            )
        return self._kills[kill_id]

    def add(self, kill: Kill) -> None:
        self._kills[kill.id] = kill
        self._scopes[kill.scope] += 1

    def remove(self, kill: Kill) -> None:
        if self._kills.get(kill.id) != kill:
            raise RegistryError(f"{kill.id} is not in force")
        del self._kills[kill.id]
        self._scopes[kill.scope] -= 1
        if not self._scopes[kill.scope]:
            del self._scopes[kill.scope]

    def discard(self, kill_id: str) -> None:
        """Undo a kill, if it is in force."""
        if kill_id in self._kills:
            self.remove(self._kills[kill_id])

    def stops(self, record: RegistryRecord) -> bool:
        if not self._scopes:
            return False
        return any(scope in self._scopes for scope in _scopes_over(record))


def _scopes_over(record: RegistryRecord) -> tuple[Scope, ...]:
    effect = record.contract.effect
    return (
        ("all", ""),
        ("tool", record.name),
        ("effect", "" if effect is None else effect.value),
    )


# --- quarantine -----------------------------------------------------------------------------------


class QuarantineReason(StrEnum):
    CHANGED = "changed"
    NEW = "new"
    GONE = "gone"
    SHADOWED = "shadowed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """A tool whose upstream definition is not the one that a person accepted.

    Each process finds this out for itself and keeps it in memory; the lock file is what lasts.
    """

    name: str
    why: QuarantineReason
    tenants: frozenset[str] = frozenset()
    """The tenants that know the tool; empty: all."""

    @classmethod
    def of(cls, name: str, why: QuarantineReason, tenants: Iterable[str] = ()) -> Quarantine:
        return cls(name=name, why=why, tenants=frozenset(tenants))

    def allows_tenant(self, tenant: str) -> bool:
        return not self.tenants or tenant in self.tenants

    @property
    def message(self) -> str:
        """A message for the caller, without any text of the definition."""
        return f"{self.name} is quarantined: {_MESSAGES[self.why]}"


_MESSAGES = {
    QuarantineReason.CHANGED: "its definition has changed, and the change is not accepted yet.",
    QuarantineReason.NEW: "it is new, and not accepted yet.",
    QuarantineReason.GONE: "its server no longer has it.",
    QuarantineReason.SHADOWED: "another server has a tool of the same name.",
}
