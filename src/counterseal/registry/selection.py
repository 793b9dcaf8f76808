"""Which version a run gets, and who may use it: what every call asks of the registry.

Looks things up and walks over no contracts. What there is to find is put here by `registry`.
"""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from datetime import datetime
from typing import TypeVar

from counterseal.errors import RegistryError
from counterseal.proposal import Principal, System
from counterseal.registry.grants import Grant, GrantIndex, weigh
from counterseal.registry.records import (
    KillSwitch,
    Quarantine,
    Reason,
    Refusal,
    RegistryRecord,
    is_aware,
    parse_version,
    shown,
)

__all__ = ["Choosing", "RecordIndex", "bucket", "newest_for"]


# --- shelf ---


class RecordIndex:
    """Finding one record costs the same however many tools there are."""

    def __init__(self) -> None:
        self._lines: dict[str, tuple[RegistryRecord, ...]] = {}
        self._by_version: dict[tuple[str, str], RegistryRecord] = {}

    def __iter__(self) -> Iterator[RegistryRecord]:
        for _, line in sorted(self._lines.items()):
            yield from line

    def versions(self, name: str) -> tuple[RegistryRecord, ...]:
        return self._lines.get(name, ())

    def find(self, name: str, version: str) -> RegistryRecord | None:
        found = self._by_version.get((name, version))
        if found is not None or len(version) > 64:  # a caller's text; no version needs more
            return found
        parsed = parse_version(version)
        return next((one for one in self.versions(name) if one.parsed == parsed), None)

    def get(self, name: str, version: str | None = None) -> tuple[RegistryRecord, ...]:
        """One version, or all of them. RegistryError says what there is instead."""
        if version is None:
            found = self.versions(name)
        else:
            record = self.find(name, version)
            found = () if record is None else (record,)
        if not found:
            raise RegistryError(self._nothing(name, version))
        return found

    def put(self, records: Iterable[RegistryRecord]) -> None:
        """Add records, each in place of the one with its name and version if there is one."""
        for record in records:
            others = (one for one in self.versions(record.name) if one.parsed != record.parsed)
            line = sorted((*others, record), key=lambda one: one.parsed, reverse=True)
            self._lines[record.name] = tuple(line)
            self._by_version[record.name, record.version] = record

    def _nothing(self, name: str, version: str | None) -> str:
        line = self.versions(name)
        if line:
            known = ", ".join(record.version for record in line)
            return f"there is no version {shown(version)} of {name}; there is {known}"
        close = difflib.get_close_matches(name, self._lines, n=1)
        return f"there is no tool {shown(name)}" + (f"; is {close[0]} meant?" if close else "")


# --- rollout ---


def bucket(name: str, run_id: str) -> int:
    """Where a run stands in a tool's rollout, 0 to 99. The same on every machine and for ever."""
    text = f"{name}\0{run_id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") % 100


def newest_for(run_id: str, live: Iterable[RegistryRecord]) -> RegistryRecord | None:
    """The first of `live`, newest first, whose rollout has reached the run."""
    place = -1
    for record in live:
        if record.rollout_percentage == 100:
            return record
        if place < 0:  # worked out only when a rollout is under way
            place = bucket(record.name, run_id)
        if record.rollout_percentage > place:
            return record
    return None


_REVERSALS = 20


class Choosing:
    """Records, grants and kills, and the answers that follow from them."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        if not is_aware(clock()):
            raise RegistryError("clock: must give datetimes with a time zone")
        self._now = clock
        self._shelf = RecordIndex()
        self._book = GrantIndex()
        self._switch = KillSwitch()
        self._quarantine: dict[str, Quarantine] = {}
        self.epoch = 0
        self.deprecated_use: Counter[tuple[str, str]] = Counter()
        """How often each deprecated (tool, version) was resolved."""
        # What was found out before, as long as nothing changes and no date can change it either.
        self._resolved: dict[tuple[str, str | None, str], RegistryRecord] = {}
        self._authorized: dict[tuple[int, Principal], Grant] = {}

    def _changed(self) -> None:
        self.epoch += 1
        self._resolved.clear()
        self._authorized.clear()

    def chosen(self, name: str, version: str, tenant: str) -> RegistryRecord | None:
        """What `resolve` has found for a version before, where nothing can have changed since."""
        return self._resolved.get((name, version, tenant))

    def resolve(
        self,
        name: str,
        *,
        tenant: str,
        run_id: str,
        version: str | None = None,
        pins: MutableMapping[str, str] | None = None,
        agent: str | None = None,
    ) -> RegistryRecord | Refusal:
        """The version that a run gets: the one asked for, else the pinned one, else by rollout.

        `pins` is the run's own memory, tool to version; the first use writes it, so that a rollout
        that moves later does not move the run. With `agent`, a rollout passes over versions outside
        the ranges of the agent's grants.
        """
        wanted = pins.get(name) if version is None and pins else version
        known = self._resolved.get((name, wanted, tenant))
        if known is not None:
            if pins is not None and name not in pins:  # asked for, in a run that is new to it
                pins[name] = known.version
            return known
        now = self._now()
        found = self._choose(
            name, now, tenant=tenant, run_id=run_id, version=version, pins=pins, agent=agent
        )
        if isinstance(found, Refusal):
            return found
        if wanted is not None and found.is_timeless:
            _remember(self._resolved, (name, wanted, tenant), found)
        if pins is not None and name not in pins:
            pins[name] = found.version
        if found.is_deprecated(now):
            self.deprecated_use[name, found.version] += 1
        return found

    def authorize(self, record: RegistryRecord, principal: Principal) -> Grant | Refusal:
        """The grant under which a principal may use a record."""
        known = self._authorized.get((id(record), principal))
        if known is not None:
            return known
        found = self._weigh(record, principal)
        if isinstance(found, Grant) and found.expires_at is None:
            _remember(self._authorized, (id(record), principal), found)
        return found

    def _weigh(self, record: RegistryRecord, principal: Principal) -> Grant | Refusal:
        if not record.allows_tenant(principal.tenant):
            return _unknown(record.name, Reason.OTHER_TENANT)
        if isinstance(principal, System):
            # It reverses one call, in a run of its own. Its key sees to it that this happens once;
            # the budget bounds how often it is tried.
            return Grant(agent=principal.agent, tool=record.name, max_calls_per_run=_REVERSALS)
        if not record.exposed:
            return Refusal(
                reason=Reason.NOT_EXPOSED, message=f"{record.name} is not for agents to use."
            )
        roles = record.allowed_agent_roles
        if roles and roles.isdisjoint(principal.roles):
            return Refusal(
                reason=Reason.ROLE,
                message=f"{record.name} is open to other roles than those of this agent.",
            )
        grants = self._book.covering(principal.agent, record)
        return weigh(grants, record, principal, self._now())

    def catalogue(
        self, principal: Principal, run_id: str, pins: Mapping[str, str] | None = None
    ) -> tuple[RegistryRecord, ...]:
        """What a principal may use in a run, by name. Counts nothing and pins nothing."""
        now, agent = self._now(), principal.agent
        usable = []
        for name in sorted(self._book.tools_of(agent)):
            record = self._choose(
                name, now, tenant=principal.tenant, run_id=run_id, pins=pins, agent=agent
            )
            if isinstance(record, Refusal):
                continue
            if isinstance(self.authorize(record, principal), Grant):
                usable.append(record)
        return tuple(usable)

    def _choose(
        self,
        name: str,
        now: datetime,
        *,
        tenant: str,
        run_id: str,
        version: str | None = None,
        pins: Mapping[str, str] | None,
        agent: str | None,
    ) -> RegistryRecord | Refusal:
        held = self._quarantine.get(name)
        if held is not None and held.allows_tenant(tenant):
            return Refusal(reason=Reason.QUARANTINED, message=held.message)
        line = self._shelf.versions(name)
        if not line:
            return _unknown(name, Reason.UNKNOWN)
        visible = [record for record in line if record.allows_tenant(tenant)]
        if not visible:
            return _unknown(name, Reason.OTHER_TENANT)
        wanted = pins.get(name) if version is None and pins else version
        if wanted is None:
            found = self._by_rollout(visible, run_id, now, agent)
        else:
            found = self._by_version(name, wanted, tenant)
        if isinstance(found, Refusal):
            return found
        return self._stopped(found, now) or found

    def _by_version(self, name: str, version: str, tenant: str) -> RegistryRecord | Refusal:
        record = self._shelf.find(name, version)
        if record is None or not record.allows_tenant(tenant):
            # One answer for both: other tenants' versions don't exist for this one.
            return Refusal(
                reason=Reason.VERSION_UNKNOWN,
                message=f"There is no version {shown(version)} of {name} here.",
            )
        return record

    def _by_rollout(
        self, visible: list[RegistryRecord], run_id: str, now: datetime, agent: str | None
    ) -> RegistryRecord | Refusal:
        """The newest live version whose rollout has reached the run.

        Kills are not looked at: a kill must stop a run, not send it to an older version.
        """
        live = [record for record in visible if record.ended(now) is None]
        if not live:
            return next(end for record in visible if (end := record.ended(now)) is not None)
        if agent is not None and len(live) > 1:
            live = [record for record in live if self._book.covering(agent, record)] or live
        return newest_for(run_id, live) or Refusal(
            reason=Reason.NOT_ROLLED_OUT,
            message=f"{visible[0].name} is not rolled out to this run yet.",
        )

    def _stopped(self, record: RegistryRecord, now: datetime) -> Refusal | None:
        """What keeps everybody from a record, if anything does."""
        if self._switch.stops(record):
            message = f"{record.name} is stopped by an operator."
            return Refusal(reason=Reason.KILLED, message=message)
        return record.ended(now)


_MOST_REMEMBERED = 16_384
_K = TypeVar("_K")
_V = TypeVar("_V")


def _remember(memory: dict[_K, _V], key: _K, value: _V) -> None:
    if len(memory) >= _MOST_REMEMBERED:
        memory.clear()
    memory[key] = value


def _unknown(name: str, reason: Reason) -> Refusal:
    # Word for word the same for a tool of another tenant, which must not be told apart.
    return Refusal(reason=reason, message=f"There is no tool {shown(name)} here.")
