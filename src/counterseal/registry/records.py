"""The registry's rows: contracts, deprecations, kills, quarantines and grants.

These are values: they validate themselves and decide nothing about callers. `registry` holds them,
`selection` says who may use them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, time
from enum import StrEnum
from typing import Any, Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from counterseal.canonical import exported
from counterseal.contract.declare import Tool
from counterseal.contract.effects import EFFECTS, Effect, RiskClass
from counterseal.contract.model import Contract, Lifecycle, LifecycleStatus
from counterseal.errors import GrantError, RegistryError
from counterseal.proposal import RiskLevel, check_tenant, text_set


class Reason(StrEnum):
    """Why a tool can't be used. `resolve` returns the first group, `authorize` the second."""

    UNKNOWN = "unknown"
    OTHER_TENANT = "other_tenant"
    VERSION_UNKNOWN = "version_unknown"
    DISABLED = "disabled"
    HELD = "held_for_review"
    KILLED = "killed"
    SUNSET = "sunset"
    NOT_ROLLED_OUT = "not_rolled_out"
    QUARANTINED = "quarantined"

    NOT_EXPOSED = "not_exposed"
    ROLE = "role"
    NO_GRANT = "no_grant"
    GRANT_EXPIRED = "grant_expired"
    MODE = "mode"
    EFFECT_LIMIT = "effect_limit"
    RISK_LIMIT = "risk_limit"
    SCOPE_MISSING = "scope_missing"


@dataclass(frozen=True, slots=True)
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
        return exported(self)


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
    risk_accepted: bool = False
    """Whether an operator has accepted that the contract lowers the risk class of its effect."""
    held: tuple[str, ...] = ()
    """The changes for guardians that this version came with, until an operator accepts them."""
    # Copied from the contract, because every call reads them: looking them up through the contract
    # would dominate the cost once thousands of tools are in use.
    name: str = field(init=False, compare=False)
    version: str = field(init=False, compare=False)
    exposed: bool = field(init=False, repr=False, compare=False)
    scopes: frozenset[str] = field(init=False, repr=False, compare=False)
    risk: RiskClass = field(init=False, repr=False, compare=False)
    """The risk class that calls are judged by: at least that of the effect, unless accepted."""
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
        ends_at = None if self.deprecation is None else self.deprecation.removal_at
        if self.contract.identity.lifecycle.status is LifecycleStatus.SUNSETTED:
            ends_at = datetime.min.replace(tzinfo=UTC)
        values = {
            "name": self.contract.name,
            "version": self.contract.version,
            "exposed": self.contract.exposed,
            "scopes": frozenset(self.contract.security.required_scopes),
            "risk": self.contract.risk if self.risk_accepted else self.contract.risk_floor,
            "parsed": version,
            "ends_at": ends_at,
            "allowed_agent_roles": frozenset(self.allowed_agent_roles),
            "allowed_tenants": frozenset(self.allowed_tenants),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

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
            return Refusal(Reason.DISABLED, f"{self.name} {self.version} is disabled.{new}")
        if self.held:
            what = f"it changes what the tool may do ({', '.join(held_ids(self.held))})"
            text = f"{self.name} {self.version} is held for review: {what}."
            return Refusal(Reason.HELD, f"{text} An operator has to accept it.")
        if self.is_sunset(now):
            successor = self.deprecation and self.deprecation.replacement_tool
            instead = f" Use {successor}." if successor else ""
            return Refusal(Reason.SUNSET, f"{self.name} {self.version} was retired.{instead}")
        return None

    def export(self) -> dict[str, Any]:
        return {
            "tool": self.name,
            "version": self.version,
            "contract_hash": self.contract.hash,
            "effect": None if self.contract.effect is None else self.contract.effect.value,
            "risk_class": self.contract.risk.value,
            "judged_as": self.risk.value,
            "risk_accepted": self.risk_accepted,
            "held": list(self.held),
            "enabled": self.enabled,
            "note": self.note,
            "allowed_agent_roles": sorted(self.allowed_agent_roles),
            "allowed_tenants": sorted(self.allowed_tenants),
            "rollout_percentage": self.rollout_percentage,
            "deprecation": None if self.deprecation is None else self.deprecation.export(),
        }


def held_ids(held: Iterable[str]) -> tuple[str, ...]:
    """Return the ids of the changes that hold a version, each once."""
    return tuple(dict.fromkeys(one.partition(":")[0] for one in held))


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
            items = text_set(name, value)
            for item in items if name == "allowed_tenants" else ():
                check_tenant(name, item)
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


# --- kills ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A stop of one tool or effect; with neither, of everything. Each kill is undone by itself."""

    id: str
    tool: str | None = None
    effect: Effect | None = None
    tenant: str | None = None
    """The tenant in which it holds; None: in every tenant."""
    reason: str
    by: str = ""
    at: datetime

    def __post_init__(self) -> None:
        if self.tool is not None and self.effect is not None:
            raise RegistryError("a kill stops a tool or an effect, not both; make two kills")

    def covers(self, record: RegistryRecord, tenant: str | None) -> bool:
        """Return whether it stops a tool in this tenant; None stands for every tenant."""
        if self.tenant not in (None, tenant):
            return False
        if self.tool is not None:
            return self.tool == record.name
        return self.effect is None or self.effect is record.contract.effect

    def export(self) -> dict[str, Any]:
        return exported(self)


def known_effect(name: str) -> Effect:
    """Return the effect of this name. RegistryError lists the known ones."""
    try:
        return Effect(name)
    except ValueError:
        raise RegistryError(f"effect: {name!r} is not one of {', '.join(Effect)}") from None


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


# --- grants ---------------------------------------------------------------------------------------


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
    """The highest risk class; may be given as low, medium, high or critical (`RISK_LIMITS`)."""
    expires_at: datetime | None = None
    tenant: str | None = None
    """None: every tenant that the record allows."""
    max_effect: Effect | None = field(default=None, compare=False)
    """The highest effect that it was given for; None: not limited. An operator's grant that names
    none is given for what the tool does at that time. No part of a grant's identity.
    """
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
        max_effect: Effect | str | None = None,
    ) -> None:
        count, names = max_calls_per_run, dict[str, object](agent=agent, tool=tool)
        for field_name, name in (names if tenant is None else {**names, "tenant": tenant}).items():
            if not isinstance(name, str) or not name.strip():
                raise GrantError(f"{field_name}: must be a name, got {name!r}")
        if count is not None and (type(count) is not int or count < 0):
            raise GrantError(f"max_calls_per_run: must be a whole number, 0 or more, got {count!r}")
        if expires_at is not None and not is_aware(expires_at):
            raise GrantError(f"expires_at: must be a datetime with a time zone, got {expires_at!r}")
        values = {
            **names,
            "version": version,
            "mode": _member("mode", {one.value: one for one in Mode}, mode),
            "max_calls_per_run": count,
            "scopes": _scopes(scopes),
            "risk_limit": risk_limit and _member("risk_limit", _RISKS, risk_limit),
            "expires_at": expires_at,
            "tenant": tenant,
            "max_effect": max_effect and _member("max_effect", _EFFECTS, max_effect),
            "versions": _versions(version),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def covers(self, version: Version) -> bool:
        return self.versions.contains(version, prereleases=True)

    def calls_per_run(self, contract: Contract) -> int:
        """Return how many calls a run may make under this grant."""
        granted = self.max_calls_per_run
        return contract.budget if granted is None else granted

    def export(self) -> dict[str, Any]:
        data = exported(self)
        del data["versions"]
        return data


RISK_LIMITS: Final[Mapping[str, RiskClass]] = {
    RiskLevel.LOW: RiskClass.LOW_RISK_INTERNAL,
    RiskLevel.MEDIUM: RiskClass.MEDIUM_RISK_WRITE,
    RiskLevel.HIGH: RiskClass.HIGH_RISK_EXTERNAL,
    RiskLevel.CRITICAL: RiskClass.CRITICAL_MUTATION,
}
"""The highest risk class that a grant with such a limit allows."""


_RISKS: Final[Mapping[str, RiskClass]] = {**RISK_LIMITS, **{one.value: one for one in RiskClass}}


_EFFECTS: Final[Mapping[str, Effect]] = {one.value: one for one in Effect}


def _member(field_name: str, known: Mapping[str, Any], value: object) -> Any:
    if isinstance(value, str) and value in known:
        return known[value]
    raise GrantError(f"{field_name}: must be one of {', '.join(known)}, got {value!r}")


def _scopes(value: Iterable[str]) -> frozenset[str]:
    try:
        return text_set("scopes", value)
    except (TypeError, ValueError) as error:
        raise GrantError(f"scopes: {str(error).removeprefix('scopes ')}") from None


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
