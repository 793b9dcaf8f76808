"""What operators changed, as it is stored: numbered plain data that every worker replays alike.

Pure. A change names a tool and does not ask whether there is one: a tool that is registered later
finds what was said about it before. `registry` replays changes; who stores them is `operating`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from packaging.version import Version

from counterseal.canonical import freeze, thaw
from counterseal.errors import CountersealError, RegistryError, StoreError
from counterseal.registry.grants import Grant
from counterseal.registry.identities import Credential, User, without_hashes
from counterseal.registry.records import (
    Deprecation,
    Kill,
    RegistryRecord,
    known_effect,
    parse_version,
    percentage_error,
)

__all__ = ["History", "Op", "RegistryChange"]

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Op(StrEnum):
    """What operators can do. Each of them takes a reason."""

    KILL = "kill"
    RESTORE = "restore"
    ENABLE = "enable"
    DISABLE = "disable"
    GRANT = "grant"
    REVOKE = "revoke"
    ROLLOUT = "rollout"
    DEPRECATE = "deprecate"
    KEY = "key"
    UNKEY = "unkey"
    USER = "user"
    UNUSER = "unuser"


class RegistryChange(NamedTuple):
    """One stored change, understood."""

    number: int
    op: Op
    reason: str
    by: str
    at: datetime
    what: Mapping[str, Any]
    """As it is stored, but for what is kept of passwords and personal keys."""
    tool: str | None = None
    version: str | None = None
    """None: every version."""
    sets: Mapping[str, Any] = _NOTHING
    """Fields of a record, with their new values."""
    versions: frozenset[Version | None] | None = None
    """For an enable of every version: those that there were."""
    kill: Kill | None = None
    restores: str | None = None
    """The id of the kill that it undoes."""
    grant: Grant | None = None
    without: frozenset[str] = frozenset()
    """Versions that a grant never covers: they were deprecated before it was given."""
    credential: Credential | None = None
    """An API key that it issues."""
    unkeys: str | None = None
    """The id of the API key that it revokes."""
    user: User | None = None
    """Somebody who can sign in, as it leaves them."""
    did: str = ""
    """What it changes of the user, in a word."""
    unuser: str | None = None
    """The name of the user whom it removes."""

    @classmethod
    def of(cls, number: int, what: Mapping[str, Any]) -> RegistryChange:
        """From plain data. KeyError, TypeError, ValueError or one of ours, if it makes no sense."""
        op = Op(what["op"])
        moment = datetime.fromisoformat(what["at"])
        said = cls(number, op, what["reason"], what["by"], moment, freeze(without_hashes(what)))
        return _READERS[op](said, what)

    @classmethod
    def stored(cls, number: int, what: Mapping[str, Any]) -> RegistryChange:
        """The same, from the store. What this worker does not understand stops it."""
        try:
            return cls.of(number, what)
        except (KeyError, TypeError, ValueError, CountersealError) as error:
            raise StoreError(
                f"change {number} of the registry can't be understood ({error}); "
                "if a newer version of Counterseal made it, update this worker"
            ) from error

    def concerns(self, record: RegistryRecord) -> bool:
        if self.tool != record.name:
            return False
        return self.version is None or parse_version(self.version) == record.parsed

    def onto(self, record: RegistryRecord, declared: RegistryRecord) -> RegistryRecord:
        """A record with this change upon it.

        To disable a tool is to disable the versions that come later, too. To enable it again leaves
        those to the code that declares them.
        """
        if self.versions is not None and record.parsed not in self.versions:
            return replace(record, enabled=declared.enabled, note=declared.note)
        return replace(record, **self.sets)

    def export(self) -> dict[str, Any]:
        return {"number": self.number, **thaw(self.what)}


def _kill(said: RegistryChange, what: Mapping[str, Any]) -> RegistryChange:
    effect = what["effect"]
    kill = Kill(
        id=f"kill_{said.number}",
        tool=what["tool"],
        effect=None if effect is None else known_effect(effect),
        reason=said.reason,
        by=said.by,
        at=said.at,
    )
    return said._replace(tool=kill.tool, kill=kill)


def _restore(said: RegistryChange, what: Mapping[str, Any]) -> RegistryChange:
    return said._replace(restores=what["kill"])


def _enable(said: RegistryChange, what: Mapping[str, Any]) -> RegistryChange:
    enabled = said.op is Op.ENABLE
    known = what["versions"] if enabled and what["version"] is None else None
    return said._replace(
        tool=what["tool"],
        version=what["version"],
        sets={"enabled": enabled, "note": said.reason},
        versions=None if known is None else frozenset(map(parse_version, known)),
    )


def _grant(said: RegistryChange, what: Mapping[str, Any]) -> RegistryChange:
    fields = dict(what["grant"])
    grant = Grant(**{**fields, "expires_at": _moment(fields["expires_at"])})
    without = frozenset(what["without"]) if said.op is Op.GRANT else frozenset()
    return said._replace(tool=grant.tool, grant=grant, without=without)


def _rollout(said: RegistryChange, what: Mapping[str, Any]) -> RegistryChange:
    percentage = what["percentage"]
    wrong = percentage_error(percentage)
    if wrong is not None:
        raise RegistryError(f"rollout_percentage: {wrong}")
    return _of_one_version(said, what, {"rollout_percentage": percentage})


def _deprecate(said: RegistryChange, what: Mapping[str, Any]) -> RegistryChange:
    fields = what["deprecation"]
    deprecation = None
    if fields is not None:
        moments = {name: _moment(fields[name]) for name in ("deprecated_at", "removal_at")}
        deprecation = Deprecation(**{**fields, **moments})
    return _of_one_version(said, what, {"deprecation": deprecation})


def _key(said: RegistryChange, what: Mapping[str, Any]) -> RegistryChange:
    made = Credential.of(what["key"], by=said.by, at=said.at, reason=said.reason)
    return said._replace(credential=made)


def _unkey(said: RegistryChange, what: Mapping[str, Any]) -> RegistryChange:
    return said._replace(unkeys=what["key_id"])


def _user(said: RegistryChange, what: Mapping[str, Any]) -> RegistryChange:
    made = User.of(what["user"], by=said.by, at=said.at, reason=said.reason)
    return said._replace(user=made, did=what["did"])


def _unuser(said: RegistryChange, what: Mapping[str, Any]) -> RegistryChange:
    return said._replace(unuser=what["name"])


def _of_one_version(
    said: RegistryChange, what: Mapping[str, Any], sets: Mapping[str, Any]
) -> RegistryChange:
    if not isinstance(what["version"], str):
        raise RegistryError("version: name one; this is said of each version by itself")
    return said._replace(tool=what["tool"], version=what["version"], sets=sets)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


_READERS: Final[Mapping[Op, Callable[[RegistryChange, Mapping[str, Any]], RegistryChange]]] = {
    Op.KILL: _kill,
    Op.RESTORE: _restore,
    Op.ENABLE: _enable,
    Op.DISABLE: _enable,
    Op.GRANT: _grant,
    Op.REVOKE: _grant,
    Op.ROLLOUT: _rollout,
    Op.DEPRECATE: _deprecate,
    Op.KEY: _key,
    Op.UNKEY: _unkey,
    Op.USER: _user,
    Op.UNUSER: _unuser,
}


class History:
    """All stored changes in their order, and what they come to for a record or a grant."""

    def __init__(self) -> None:
        self._all: list[RegistryChange] = []
        self._by_tool: defaultdict[str, list[RegistryChange]] = defaultdict(list)
        self._grants: dict[Grant, RegistryChange] = {}
        """The last word on each."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[RegistryChange]:
        return iter(self._all)

    def add(self, change: RegistryChange) -> None:
        self._all.append(change)
        if change.grant is not None:
            self._grants[change.grant] = change
        elif change.sets and change.tool is not None:
            self._by_tool[change.tool].append(change)

    def onto(self, declared: RegistryRecord) -> RegistryRecord:
        """A record as code declares it, with everything upon it that operators changed."""
        record = declared
        for change in self._about(declared):
            record = change.onto(record, declared)
        return record

    def settles(self, grant: Grant) -> bool:
        """Whether operators have given it or taken it back: then code has no say in it."""
        return grant in self._grants

    def drift(
        self, declared: RegistryRecord, granted: Collection[Grant]
    ) -> Iterator[dict[str, Any]]:
        """Where operators have left what code declares of a record and its grants; as JSON data."""
        settled = self.onto(declared).export()
        said = {field: change for change in self._about(declared) for field in change.sets}
        said.pop("note", None)
        for field, change in said.items():
            before, after = declared.export()[field], settled[field]
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
