"""Changes that operators made, as stored: numbered plain data that every worker replays.

Pure. A change names a tool whether or not that tool is registered: it applies as soon as the tool
is. `registry` replays changes; `operations` stores them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from packaging.version import Version

from counterseal.canonical import freeze, thaw
from counterseal.errors import CountersealError, RegistryError, StoreError
from counterseal.proposal import check_tenant
from counterseal.registry.identities import Credential, User, without_hashes
from counterseal.registry.records import (
    Deprecation,
    Grant,
    Kill,
    RegistryRecord,
    known_effect,
    parse_version,
    percentage_error,
)

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Op(StrEnum):
    """Changes that operators can make, each with a reason."""

    KILL = "kill"
    RESTORE = "restore"
    ENABLE = "enable"
    DISABLE = "disable"
    GRANT = "grant"
    REVOKE = "revoke"
    ROLLOUT = "rollout"
    DEPRECATE = "deprecate"
    ACCEPT_RISK = "accept_risk"
    ACCEPT_VERSION = "accept_version"
    KEY = "key"
    UNKEY = "unkey"
    USER = "user"
    UNUSER = "unuser"


class RegistryChange(NamedTuple):
    """One stored change, parsed."""

    number: int
    op: Op
    reason: str
    by: str
    at: datetime
    what: Mapping[str, Any]
    """The stored data, without hashes of passwords and personal keys."""
    tool: str | None = None
    version: str | None = None
    """None: every version."""
    contract_hash: str | None = None
    """The contract that is accepted (its lower risk class, or the held version); a changed
    contract needs a new change."""
    fields: Mapping[str, Any] = _NOTHING
    """Fields of a record with their new values."""
    versions: frozenset[Version | None] | None = None
    """For an enable of every version: the versions that existed then."""
    kill: Kill | None = None
    restored_kill: str | None = None
    """The id of the kill that is undone."""
    grant: Grant | None = None
    without: frozenset[str] = frozenset()
    """Versions that the grant never covers: they were deprecated before."""
    credential: Credential | None = None
    """The API key that is issued."""
    revoked_key: str | None = None
    """The id of the API key that is revoked."""
    user: User | None = None
    """The user after the change."""
    user_change: str = ""
    """The part of the user that is changed, in one word."""
    removed_user: str | None = None
    """The name of the user who is removed."""

    @classmethod
    def of(cls, number: int, what: Mapping[str, Any]) -> RegistryChange:
        """Parse plain data. Raises KeyError, TypeError, ValueError or CountersealError."""
        op = Op(what["op"])
        moment = datetime.fromisoformat(what["at"])
        change = cls(number, op, what["reason"], what["by"], moment, freeze(without_hashes(what)))
        about: Any = {"by": change.by, "at": moment, "reason": change.reason}
        match op:
            case Op.KILL:
                effect = None if what["effect"] is None else known_effect(what["effect"])
                about |= {"tool": what["tool"], "effect": effect, "tenant": what.get("tenant")}
                kill = Kill(id=f"kill_{number}", **about)
                return change._replace(tool=kill.tool, kill=kill)
            case Op.RESTORE:
                return change._replace(restored_kill=what["kill"])
            case Op.GRANT | Op.REVOKE:
                grant = Grant(**_with_moments(what["grant"], "expires_at"))
                without = frozenset(what["without"]) if op is Op.GRANT else frozenset()
                return change._replace(tool=grant.tool, grant=grant, without=without)
            case Op.KEY:
                try:
                    check_tenant("tenant", what["key"]["tenant"])
                except ValueError:
                    return change  # issued before such names were refused: the key is not in force
                return change._replace(credential=Credential.of(what["key"], **about))
            case Op.UNKEY:
                return change._replace(revoked_key=what["key_id"])
            case Op.USER:
                return change._replace(user=User.of(what["user"], **about), user_change=what["did"])
            case Op.UNUSER:
                return change._replace(removed_user=what["name"])
            case _:
                change = change._replace(tool=what["tool"], version=what["version"])
                return _of_record(change, what)

    @classmethod
    def stored(cls, number: int, what: Mapping[str, Any]) -> RegistryChange:
        """Parse a change from the store. StoreError stops a worker that can't understand it."""
        try:
            return cls.of(number, what)
        except (KeyError, TypeError, ValueError, CountersealError) as error:
            raise StoreError(
                f"change {number} of the registry is not valid ({error}); "
                "if a newer version of Counterseal made it, update this worker"
            ) from error

    def concerns(self, record: RegistryRecord) -> bool:
        if self.tool != record.name:
            return False
        if self.contract_hash not in (None, record.contract.hash):
            return False
        return self.version is None or parse_version(self.version) == record.parsed

    def applied_to(self, record: RegistryRecord, declared: RegistryRecord) -> RegistryRecord:
        """Return a record with this change applied.

        Disabling a tool also disables versions that are registered later. Enabling it again leaves
        those as the code declares them.
        """
        if self.versions is not None and record.parsed not in self.versions:
            return replace(record, enabled=declared.enabled, note=declared.note)
        return replace(record, **self.fields)

    def export(self) -> dict[str, Any]:
        return {"number": self.number, **thaw(self.what)}


def _of_record(change: RegistryChange, what: Mapping[str, Any]) -> RegistryChange:
    """Return a change of one version of a tool, or of all, with the fields that it sets."""
    if change.op in (Op.ENABLE, Op.DISABLE):
        enabled = change.op is Op.ENABLE
        known = what["versions"] if enabled and change.version is None else None
        return change._replace(
            fields={"enabled": enabled, "note": change.reason},
            versions=None if known is None else frozenset(map(parse_version, known)),
        )
    if not isinstance(change.version, str):
        raise RegistryError("version: name one version; this change is made version by version")
    if change.op is Op.ROLLOUT:
        wrong = percentage_error(what["percentage"])
        if wrong is not None:
            raise RegistryError(f"rollout_percentage: {wrong}")
        return change._replace(fields={"rollout_percentage": what["percentage"]})
    if change.op is Op.ACCEPT_RISK:
        accepted = what["contract_hash"]
        return change._replace(
            contract_hash=accepted, fields={"risk_accepted": accepted is not None}
        )
    if change.op is Op.ACCEPT_VERSION:
        return change._replace(contract_hash=what["contract_hash"], fields={"held": ()})
    fields = what["deprecation"]
    if fields is not None:
        fields = Deprecation(**_with_moments(fields, "deprecated_at", "removal_at"))
    return change._replace(fields={"deprecation": fields})


def _with_moments(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    moments = {name: fields[name] and datetime.fromisoformat(fields[name]) for name in names}
    return {**fields, **moments}


class History:
    """All stored changes in order, and their effect on records and grants."""

    def __init__(self) -> None:
        self._all: list[RegistryChange] = []
        self._by_tool: defaultdict[str, list[RegistryChange]] = defaultdict(list)
        self._grants: dict[Grant, RegistryChange] = {}
        """The last change of each grant."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[RegistryChange]:
        return iter(self._all)

    def add(self, change: RegistryChange) -> None:
        self._all.append(change)
        if change.grant is not None:
            self._grants.pop(change.grant, None)  # an equal one may have another highest effect
            self._grants[change.grant] = change
        elif change.fields and change.tool is not None:
            self._by_tool[change.tool].append(change)

    def applied_to(self, declared: RegistryRecord) -> RegistryRecord:
        """Return a declared record with all changes of operators applied."""
        record = declared
        for change in self._about(declared):
            record = change.applied_to(record, declared)
        return record

    def accepted(self, tool: str, contract_hash: str) -> bool:
        """Return whether an operator accepted this contract of a tool as a held version."""
        return any(
            change.op is Op.ACCEPT_VERSION and change.contract_hash == contract_hash
            for change in self._by_tool.get(tool, ())
        )

    def decides(self, grant: Grant) -> bool:
        """Return whether operators gave or revoked this grant, which outranks the code."""
        return grant in self._grants

    def drift(
        self, declared: RegistryRecord, granted: Collection[Grant]
    ) -> Iterator[dict[str, Any]]:
        """Yield where operators changed what code declares of a record and its grants, as JSON."""
        current = self.applied_to(declared).export()
        changes = {field: change for change in self._about(declared) for field in change.fields}
        changes.pop("note", None)
        for field, change in changes.items():
            before, after = declared.export()[field], current[field]
            if before != after:
                yield _drift(field, before, after, change)
        for grant, change in self._grants.items():
            if grant.tool == declared.name and grant.covers(declared.parsed):
                before = grant.export() if grant in granted else None
                after = grant.export() if change.op is Op.GRANT else None
                if before != after:
                    yield _drift("grants", before, after, change)

    def _about(self, record: RegistryRecord) -> Iterator[RegistryChange]:
        return filter(lambda change: change.concerns(record), self._by_tool.get(record.name, ()))


def _drift(field: str, declared: Any, stored: Any, change: RegistryChange) -> dict[str, Any]:
    return {
        "field": field,
        "declared": declared,
        "stored": stored,
        "by": change.by,
        "reason": change.reason,
        "number": change.number,
    }
