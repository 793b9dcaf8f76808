"""What the registry keeps about each contract, and the words in which it says no.

These are values: they check themselves when they are made and decide nothing about callers.
`registry` holds them, `grants` says who may use them.
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

__all__ = [
    "Deprecation",
    "Kill",
    "KillSwitch",
    "Quarantine",
    "QuarantineReason",
    "Reason",
    "Refusal",
    "RegistryRecord",
    "known_effect",
]


class Reason(StrEnum):
    """Why a tool can't be used. `resolve` gives the first group, `authorize` the second."""

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
    """`message` may be shown to the caller; `reason` is for the record and may say more."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deprecation:
    """A version on its way out. From `removal_at` on it is refused."""

    deprecated_at: datetime | None = None
    """None: already, since a time that nobody wrote down."""
    removal_at: datetime | None = None
    replacement_tool: str | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        for name in ("deprecated_at", "removal_at"):
            moment = getattr(self, name)
            if moment is not None and not is_aware(moment):
                raise RegistryError(f"{name}: takes a datetime with a time zone, got {moment!r}")

    @classmethod
    def of(cls, lifecycle: Lifecycle) -> Deprecation | None:
        """What a contract says about itself. A day of removal is the first day without it (UTC)."""
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
    """One version of one tool, and what was decided about it."""

    contract: Contract
    tool: Tool[..., Any] | None = None
    enabled: bool = True
    note: str = ""
    """Why it was last enabled or disabled."""
    superseded: bool = False
    """Whether a newer version has taken its place, and it will not come back."""
    allowed_agent_roles: frozenset[str] = frozenset()
    """Empty: any role."""
    allowed_tenants: frozenset[str] = frozenset()
    """Empty: every tenant."""
    rollout_percentage: int = 100
    deprecation: Deprecation | None = None
    # The contract's own, kept at hand because every call asks for them: looking them up through
    # the contract costs more than everything else once thousands of tools are in use.
    name: str = field(init=False, compare=False)
    version: str = field(init=False, compare=False)
    exposed: bool = field(init=False, repr=False, compare=False)
    scopes: frozenset[str] = field(init=False, repr=False, compare=False)
    parsed: Version = field(init=False, repr=False, compare=False)
    """The version, as something that can be ordered."""
    ends_at: datetime | None = field(init=False, repr=False, compare=False)
    """From when on it is refused, by the operator's word or the contract's own."""

    def __post_init__(self) -> None:
        wrong = setting_errors(
            enabled=self.enabled,
            allowed_agent_roles=self.allowed_agent_roles,
            allowed_tenants=self.allowed_tenants,
            rollout_percentage=self.rollout_percentage,
            deprecation=self.deprecation,
        )
        version = parse_version(self.contract.version)
        if version is None:
            wrong["contract.version"] = f"{self.contract.version!r} is not a version like 1.4.0"
        if wrong:
            raise RegistryError("; ".join(f"{name}: {text}" for name, text in wrong.items()))
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
        """Whether no date, now or later, bears on it."""
        return self.deprecation is None and self.ends_at is None

    def is_sunset(self, now: datetime) -> bool:
        return self.ends_at is not None and self.ends_at <= now

    def ended(self, now: datetime) -> Refusal | None:
        """Why nobody can use it any more, if so."""
        if not self.enabled:
            new = " It was replaced; the new one is for a new run." if self.superseded else ""
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
    """What is wrong with a record's settings, by field."""
    wrong = {}
    if not isinstance(enabled, bool):
        wrong["enabled"] = f"takes true or false, got {enabled!r}"
    for name, value in (
        ("allowed_agent_roles", allowed_agent_roles),
        ("allowed_tenants", allowed_tenants),
    ):
        try:
            text_set(name, value)
        except (TypeError, ValueError) as error:
            wrong[name] = str(error).removeprefix(f"{name}: ")
    percentage = percentage_error(rollout_percentage)
    if percentage is not None:
        wrong["rollout_percentage"] = percentage
    if not isinstance(deprecation, Deprecation | None):
        wrong["deprecation"] = f"takes a Deprecation or nothing, got {deprecation!r}"
    return wrong


def percentage_error(value: object) -> str | None:
    """What is wrong with a rollout's percentage, if anything is."""
    if isinstance(value, bool) or not isinstance(value, int):
        return f"takes a whole number from 0 to 100, got {value!r}"
    return None if 0 <= value <= 100 else f"takes 0 to 100, got {value}"


def parse_version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def is_aware(moment: object) -> bool:
    return isinstance(moment, datetime) and moment.utcoffset() is not None


def iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def shown(text: object) -> str:
    """A caller's text, safe to repeat in a message."""
    return ascii(text if len(str(text)) <= 128 else f"{str(text)[:128]}…")


# --- kills ---


Scope = tuple[str, str]
"""Tagged, because an effect equals its text and a tool may be called "draft"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One pull of the switch. With neither tool nor effect it covers everything."""

    id: str
    reason: str
    at: datetime
    by: str = ""
    tool: str | None = None
    effect: Effect | None = None

    def __post_init__(self) -> None:
        if self.tool is not None and self.effect is not None:
            raise RegistryError("give a tool or an effect, not both: each kill stops one thing")

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
    """RegistryError says which there are."""
    try:
        return Effect(name)
    except ValueError:
        raise RegistryError(f"effect: {name!r} is none of {', '.join(Effect)}") from None


class KillSwitch:
    """The kills in force, oldest first."""

    def __init__(self) -> None:
        self._kills: dict[str, Kill] = {}
        self._scopes: Counter[Scope] = Counter()

    def __iter__(self) -> Iterator[Kill]:
        return iter(self._kills.values())

    def get(self, kill_id: str) -> Kill:
        if kill_id not in self._kills:
            raise RegistryError(f"{kill_id} is not in force; {', '.join(self._kills) or 'none'} is")
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


# --- quarantine ---


class QuarantineReason(StrEnum):
    CHANGED = "changed"
    NEW = "new"
    GONE = "gone"
    SHADOWED = "shadowed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """A name that is not to be used. It may have been used before, or may never have been."""

    name: str
    why: QuarantineReason
    tenants: frozenset[str] = frozenset()
    """To whom the name is known at all; empty: to every tenant."""

    @classmethod
    def of(cls, name: str, why: QuarantineReason, tenants: Iterable[str] = ()) -> Quarantine:
        return cls(name=name, why=why, tenants=frozenset(tenants))

    def allows_tenant(self, tenant: str) -> bool:
        return not self.tenants or tenant in self.tenants

    @property
    def message(self) -> str:
        """For the caller: nothing in it comes from who made the definition."""
        return f"{self.name} is quarantined: {_MESSAGES[self.why]}"


_MESSAGES = {
    QuarantineReason.CHANGED: "its definition has changed, and nobody has accepted that yet.",
    QuarantineReason.NEW: "it is new, and nobody has accepted it yet.",
    QuarantineReason.GONE: "its server does not have it any more.",
    QuarantineReason.SHADOWED: "another server has a tool of the same name.",
}
