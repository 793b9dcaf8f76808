"""Which version of a tool a run gets, and who may use it: the questions that every call asks.

Answers come from indexes and caches; no call walks over all contracts. `registry` fills them.
"""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from datetime import datetime
from math import inf
from typing import TypeVar

from counterseal.contract.diff import effect_rank
from counterseal.errors import RegistryError
from counterseal.proposal import Principal, System
from counterseal.registry.records import (
    Grant,
    Kill,
    Mode,
    Quarantine,
    Reason,
    Refusal,
    RegistryRecord,
    is_aware,
    parse_version,
    shown,
)

# --- records by name and version ------------------------------------------------------------------


class RecordIndex:
    """Records by name and version; the versions of a tool are sorted, newest first."""

    def __init__(self) -> None:
        self._by_name: dict[str, tuple[RegistryRecord, ...]] = {}
        self._by_version: dict[tuple[str, str], RegistryRecord] = {}

    def __iter__(self) -> Iterator[RegistryRecord]:
        for _, line in sorted(self._by_name.items()):
            yield from line

    def versions(self, name: str) -> tuple[RegistryRecord, ...]:
        return self._by_name.get(name, ())

    def find(self, name: str, version: str) -> RegistryRecord | None:
        record = self._by_version.get((name, version))
        if record is not None or len(version) > 64:  # a caller's text; no version is longer
            return record
        parsed = parse_version(version)
        return next((one for one in self.versions(name) if one.parsed == parsed), None)

    def get(self, name: str, version: str | None = None) -> tuple[RegistryRecord, ...]:
        """Return one version, or all versions. RegistryError lists what exists instead."""
        if version is None:
            records = self.versions(name)
        else:
            record = self.find(name, version)
            records = () if record is None else (record,)
        if not records:
            raise RegistryError(self._not_found(name, version))
        return records

    def put(self, records: Iterable[RegistryRecord]) -> None:
        """Add records; each replaces the one with its name and version."""
        for record in records:
            others = (one for one in self.versions(record.name) if one.parsed != record.parsed)
            line = sorted((*others, record), key=lambda one: one.parsed, reverse=True)
            self._by_name[record.name] = tuple(line)
            self._by_version[record.name, record.version] = record

    def _not_found(self, name: str, version: str | None) -> str:
        line = self.versions(name)
        if line:
            known = ", ".join(record.version for record in line)
            return f"{name} has no version {shown(version)}; registered: {known}"
        close = difflib.get_close_matches(name, self._by_name, n=1)
        return f"there is no tool {shown(name)}" + (f"; did you mean {close[0]}?" if close else "")


# --- rollout --------------------------------------------------------------------------------------


def bucket(name: str, run_id: str) -> int:
    """Return the place of a run in a tool's rollout, 0 to 99. The same on every machine.

    Raising a percentage therefore only adds runs to a version, and takes none away.
    """
    text = f"{name}\0{run_id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") % 100


def newest_for(run_id: str, live: Iterable[RegistryRecord]) -> RegistryRecord | None:
    """Return the first of `live`, newest first, whose rollout includes the run."""
    place = -1
    for record in live:
        if record.rollout_percentage == 100:
            return record
        if place < 0:  # computed only while a rollout is under way
            place = bucket(record.name, run_id)
        if record.rollout_percentage > place:
            return record
    return None


# --- grants by agent and tool ---------------------------------------------------------------------

_REASONS = list(Reason)
_REVERSALS = 20


def weigh(
    grants: Iterable[Grant], record: RegistryRecord, principal: Principal, now: datetime
) -> Grant | Refusal:
    """Return the first grant that authorizes, else the refusal of the closest one."""
    closest: Refusal | None = None
    for grant in grants:
        refusal = _weigh_one(grant, record, principal, now)
        if refusal is None:
            return grant
        if closest is None or _REASONS.index(refusal.reason) > _REASONS.index(closest.reason):
            closest = refusal  # reasons are in the order of the checks
    return closest or _no_grant(record, principal)


def authorized(
    record: RegistryRecord, principal: Principal, grants: Iterable[Grant], now: datetime
) -> Grant | Refusal:
    """Return the grant under which a principal may use a record, of those that cover it."""
    if not record.allows_tenant(principal.tenant):
        return _unknown(record.name, Reason.OTHER_TENANT)
    if isinstance(principal, System):
        # It reverses one call, in its own run. The key ensures that this happens once; the
        # budget limits the attempts.
        return Grant(agent=principal.agent, tool=record.name, max_calls_per_run=_REVERSALS)
    if not record.exposed:
        return Refusal(Reason.NOT_EXPOSED, f"{record.name} is not available to agents.")
    roles = record.allowed_agent_roles
    if roles and roles.isdisjoint(principal.roles):
        text = f"{record.name} needs a role that this agent does not have."
        return Refusal(Reason.ROLE, text)
    return weigh(grants, record, principal, now)


def _weigh_one(
    grant: Grant, record: RegistryRecord, principal: Principal, now: datetime
) -> Refusal | None:
    holder = f"The grant of agent {grant.agent!r} for {grant.tool}"
    if grant.tenant is not None and grant.tenant != principal.tenant:
        return _no_grant(record, principal)
    if grant.expires_at is not None and grant.expires_at <= now:
        text = f"{holder} expired at {grant.expires_at.isoformat()}."
        return Refusal(Reason.GRANT_EXPIRED, text)
    if grant.mode is not Mode.EXECUTE and not grant.mode.allows(record.contract.effect):
        text = f"{holder} allows {grant.mode.value} only, and the tool does more."
        return Refusal(Reason.MODE, text)
    limit, effect = grant.max_effect, record.contract.effect
    if limit is not None and effect_rank(effect) > effect_rank(limit):
        does = "undeclared" if effect is None else effect.value
        text = f"{holder} was given for {limit.value} at most; version {record.version} is {does}."
        return Refusal(Reason.EFFECT_LIMIT, text)
    if grant.risk_limit is not None and record.risk > grant.risk_limit:
        risk = record.risk.value
        text = f"{holder} is limited to {grant.risk_limit.value}; the tool is {risk}."
        return Refusal(Reason.RISK_LIMIT, text)
    missing = (record.scopes | grant.scopes) - principal.scopes
    if missing:
        text = f"{record.name} needs the scopes {', '.join(sorted(missing))}."
        return Refusal(Reason.SCOPE_MISSING, text)
    return None


def _no_grant(record: RegistryRecord, principal: Principal) -> Refusal:
    text = f"Agent {principal.agent!r} has no grant for {record.name}."
    return Refusal(Reason.NO_GRANT, text)


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
        fitting = [grant for grant in grants if grant.covers(record.parsed)]
        covering = tuple(g for g in fitting if record.version not in self._without.get(g, ()))
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


# --- the questions of a call ----------------------------------------------------------------------

_ELSEWHERE = (Reason.NO_GRANT, Reason.OTHER_TENANT, Reason.UNKNOWN)
"""Why a grant does not concern a principal: it is for another tenant, or for no registered tool."""


class VersionSelector:
    """Records, grants and kills, and the answers that follow from them: the base of `Registry`."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        if not is_aware(clock()):
            raise RegistryError("clock: must return datetimes with a time zone")
        self._now = clock
        self._records = RecordIndex()
        self._grant_index = GrantIndex()
        self._kills: dict[str, Kill] = {}
        """The kills in force by id, oldest first."""
        self._quarantine: dict[str, Quarantine] = {}
        self.epoch = 0
        self.deprecated_use: Counter[tuple[str, str]] = Counter()
        """How often each deprecated (tool, version) was resolved."""
        # Caches of answers that no date can change; cleared by every change.
        self._resolved: dict[tuple[str, str | None, str], RegistryRecord] = {}
        self._authorized: dict[tuple[int, Principal], Grant] = {}

    def _changed(self) -> None:
        self.epoch += 1
        self._resolved.clear()
        self._authorized.clear()

    def chosen(self, name: str, version: str, tenant: str) -> RegistryRecord | None:
        """Return the cached result of `resolve` for a version, or None."""
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
        """Return a run's version: the requested one, else the pinned one, else by rollout.

        `pins` maps the run's tools to versions. The first use writes it, so that a later change of
        the rollout does not move the run. With `agent`, versions outside the ranges of the agent's
        grants are skipped.
        """
        wanted = pins.get(name) if version is None and pins else version
        known = self._resolved.get((name, wanted, tenant))
        if known is not None:
            if pins is not None and name not in pins:  # requested by version in a new run
                pins[name] = known.version
            return known
        now = self._now()
        record = self._choose(name, now, tenant=tenant, run_id=run_id, version=wanted, agent=agent)
        if isinstance(record, Refusal):
            return record
        if wanted is not None and record.is_timeless:
            _remember(self._resolved, (name, wanted, tenant), record)
        if pins is not None and name not in pins:
            pins[name] = record.version
        if record.is_deprecated(now):
            self.deprecated_use[name, record.version] += 1
        return record

    def authorize(self, record: RegistryRecord, principal: Principal) -> Grant | Refusal:
        """Return the grant under which a principal may use a record."""
        known = self._authorized.get((id(record), principal))
        if known is not None:
            return known
        grant = self._weigh(record, principal)
        if isinstance(grant, Grant) and grant.expires_at is None:
            _remember(self._authorized, (id(record), principal), grant)
        return grant

    def _weigh(self, record: RegistryRecord, principal: Principal) -> Grant | Refusal:
        grants = self._grant_index.covering(principal.agent, record)
        return authorized(record, principal, grants, self._now())

    def catalogue(
        self, principal: Principal, run_id: str, pins: Mapping[str, str] | None = None
    ) -> tuple[RegistryRecord, ...]:
        """Return what a principal may use in a run, by name. Counts and pins nothing."""
        granted = self._judged(principal, run_id, pins or {}).values()
        return tuple(record for record in granted if isinstance(record, RegistryRecord))

    def withheld(self, principal: Principal) -> dict[str, str]:
        """Return why a principal can't use tools that its agent has grants for, by name.

        For the operator, whose client would otherwise see an empty list without a reason.
        """
        granted = self._judged(principal, "", {})
        refused = {name: one for name, one in granted.items() if isinstance(one, Refusal)}
        return {name: one.message for name, one in refused.items() if one.reason not in _ELSEWHERE}

    def _judged(
        self, principal: Principal, run_id: str, pins: Mapping[str, str]
    ) -> dict[str, RegistryRecord | Refusal]:
        now, tenant, agent = self._now(), principal.tenant, principal.agent
        granted: dict[str, RegistryRecord | Refusal] = {}
        for name in sorted(self._grant_index.tools_of(agent)):
            pin = pins.get(name)
            record = self._choose(name, now, tenant=tenant, run_id=run_id, version=pin, agent=agent)
            if isinstance(record, RegistryRecord):
                grant = self.authorize(record, principal)
                record = grant if isinstance(grant, Refusal) else record
            granted[name] = record
        return granted

    def _choose(
        self,
        name: str,
        now: datetime,
        *,
        tenant: str,
        run_id: str,
        version: str | None,
        agent: str | None,
    ) -> RegistryRecord | Refusal:
        quarantine = self._quarantine.get(name)
        if quarantine is not None and quarantine.allows_tenant(tenant):
            return Refusal(Reason.QUARANTINED, quarantine.message)
        line = self._records.versions(name)
        if not line:
            return _unknown(name, Reason.UNKNOWN)
        visible = [record for record in line if record.allows_tenant(tenant)]
        if not visible:
            return _unknown(name, Reason.OTHER_TENANT)
        if version is None:
            record = self._by_rollout(visible, run_id, now, agent)
        else:
            record = self._by_version(name, version, tenant)
        if isinstance(record, Refusal):
            return record
        return self._stopped(record, now, tenant) or record

    def _by_version(self, name: str, version: str, tenant: str) -> RegistryRecord | Refusal:
        record = self._records.find(name, version)
        if record is None or not record.allows_tenant(tenant):
            # The same answer for both: a tenant can't learn of other tenants' versions.
            text = f"There is no version {shown(version)} of {name} here."
            return Refusal(Reason.VERSION_UNKNOWN, text)
        return record

    def _by_rollout(
        self, visible: list[RegistryRecord], run_id: str, now: datetime, agent: str | None
    ) -> RegistryRecord | Refusal:
        """Return the newest live version whose rollout includes the run.

        Kills are ignored here: a kill must stop a run, not send it to an older version.
        """
        live = [record for record in visible if record.ended(now) is None]
        if not live:
            return next(end for record in visible if (end := record.ended(now)) is not None)
        if agent is not None and len(live) > 1:
            live = [record for record in live if self._grant_index.covering(agent, record)] or live
        text = f"{visible[0].name} is not rolled out to this run yet."
        return newest_for(run_id, live) or Refusal(Reason.NOT_ROLLED_OUT, text)

    def _stopped(self, record: RegistryRecord, now: datetime, tenant: str | None) -> Refusal | None:
        """Return why no caller of a tenant may use the record now, or None.

        Without a tenant: why no caller of any tenant may.
        """
        if any(kill.covers(record, tenant) for kill in self._kills.values()):
            return Refusal(Reason.KILLED, f"{record.name} was stopped by an operator.")
        return record.ended(now)


_MOST_REMEMBERED = 16_384
_K = TypeVar("_K")
_V = TypeVar("_V")


def _remember(memory: dict[_K, _V], key: _K, value: _V) -> None:
    if len(memory) >= _MOST_REMEMBERED:
        memory.clear()
    memory[key] = value


def _unknown(name: str, reason: Reason) -> Refusal:
    # Exactly the same text for a tool of another tenant: callers must not see a difference.
    return Refusal(reason, f"There is no tool {shown(name)} here.")
