"""The registry: which versions of which tools live, for whom, and what stops them.

Pure and in memory: it stores nothing, calls nothing, and has no clock but the one it is given. It
is not thread-safe; one event loop owns it. `checks` says what may come in, `grants` weighs who may
use it, and whoever stores operators' decisions replays them here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from counterseal.contract.declare import Tool
from counterseal.contract.effects import Effect
from counterseal.contract.model import Contract
from counterseal.contract.protocol import PlainTool
from counterseal.errors import ContractError, GrantError, Problem, RegistryError, Severity
from counterseal.proposal import Principal
from counterseal.registry import checks
from counterseal.registry.grants import Grant, GrantBook, weigh
from counterseal.registry.kills import Kill, KillSwitch
from counterseal.registry.records import (
    Deprecation,
    Reason,
    Refusal,
    RegistryRecord,
    is_aware,
    parse_version,
    setting_errors,
    shown,
)
from counterseal.registry.rollout import newest_for
from counterseal.registry.shelf import Shelf

__all__ = ["Registry"]


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Registry:
    """Records, grants and kills. Every change raises `epoch` by one; a change of nothing does not.

    `resolve` finds the version that a run gets, `authorize` whether a principal may use it. Both
    look things up; neither walks over the contracts.
    """

    def __init__(self, *, clock: Callable[[], datetime] = _utc_now) -> None:
        if not is_aware(clock()):
            raise RegistryError("clock: must give datetimes with a time zone")
        self._now = clock
        self._shelf = Shelf()
        self._book = GrantBook()
        self._switch = KillSwitch()
        self._references: defaultdict[str, list[checks.Reference]] = defaultdict(list)
        self._warnings: list[Problem] = []
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

    # --- what is there ----------------------------------------------------------------------------

    @property
    def records(self) -> tuple[RegistryRecord, ...]:
        """By name, newest version first."""
        return tuple(self._shelf)

    @property
    def grants(self) -> tuple[Grant, ...]:
        return tuple(self._book)

    @property
    def kills(self) -> tuple[Kill, ...]:
        """Those in force, oldest first."""
        return tuple(self._switch)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """What registration accepted with a remark."""
        return tuple(self._warnings)

    def versions(self, name: str) -> tuple[RegistryRecord, ...]:
        """Newest first; empty when there is no such tool."""
        return self._shelf.versions(name)

    def get(self, name: str, version: str) -> RegistryRecord:
        """RegistryError when there is none."""
        return self._shelf.get(name, version)[0]

    def grants_of(self, agent: str, tool: str) -> tuple[Grant, ...]:
        return self._book.of(agent, tool)

    def export(self) -> dict[str, Any]:
        """Everything, as plain JSON data, to be looked at."""
        now = self._now()
        return {
            "epoch": self.epoch,
            "records": [
                {**record.export(), "status": self._status(record, now)} for record in self._shelf
            ],
            "grants": [grant.export() for grant in self._book],
            "kills": [kill.export() for kill in self._switch],
            "deprecated_use": [
                {"tool": tool, "version": version, "count": count}
                for (tool, version), count in sorted(self.deprecated_use.items())
            ],
        }

    def _status(self, record: RegistryRecord, now: datetime) -> str:
        stopped = self._stopped(record, now)
        if stopped is not None:
            return stopped.reason.value
        return "deprecated" if record.is_deprecated(now) else "active"

    # --- registration -----------------------------------------------------------------------------

    def register(
        self,
        *tools: Tool[..., Any] | Contract | PlainTool,
        grants: Iterable[Grant] = (),
        enabled: bool = True,
        allowed_agent_roles: Iterable[str] = (),
        allowed_tenants: Iterable[str] = (),
        rollout_percentage: int = 100,
    ) -> tuple[Problem, ...]:
        """Take in tools and grants: all of them, or none. Returns the warnings.

        ContractError lists every problem of every one of them.
        """
        candidates, problems = checks.read(tools)
        settings, wrong = _settings(
            enabled=enabled,
            allowed_agent_roles=_kept(allowed_agent_roles),
            allowed_tenants=_kept(allowed_tenants),
            rollout_percentage=rollout_percentage,
        )
        problems += wrong
        for candidate in candidates:
            problems += checks.contract_problems(candidate)
        new = [
            RegistryRecord(
                contract=candidate.contract,
                tool=candidate.tool,
                deprecation=Deprecation.of(candidate.contract.identity.lifecycle),
                **settings,
            )
            for candidate in candidates
            if parse_version(candidate.contract.version) is not None
        ]
        added = [grant for grant in grants if grant not in self._book]
        problems += self._joint_problems(new, added)
        errors = [problem for problem in problems if problem.severity is Severity.ERROR]
        if errors:
            raise ContractError(errors)
        self._take_in(new, added, problems)
        return tuple(problems)

    def _joint_problems(self, new: list[RegistryRecord], grants: list[Grant]) -> Iterable[Problem]:
        """What is wrong with the new records and grants beside the registered ones."""
        batch: defaultdict[str, list[RegistryRecord]] = defaultdict(list)
        for record in new:
            batch[record.name].append(record)

        def versions(name: str) -> list[RegistryRecord]:
            return [*self._shelf.versions(name), *batch.get(name, ())]

        def standing(name: str) -> Iterable[checks.Reference]:
            return self._references.get(name, ())

        yield from checks.duplicates(new, versions)
        yield from checks.reference_problems(new, versions, standing)
        yield from checks.variable_problems(new, self.records)
        yield from checks.missing_bumps(new, versions)
        yield from checks.grant_problems(grants, versions, self._now(), new)

    def _take_in(
        self, new: list[RegistryRecord], grants: list[Grant], warnings: list[Problem]
    ) -> None:
        self._shelf.put(new)
        for record in new:
            for reference in checks.references(record.contract):
                self._references[reference.target].append(reference)
        for grant in dict.fromkeys(grants):
            self._book.add(grant)
        self._warnings += warnings
        if new or grants:
            self._changed()

    # --- the way of a call ------------------------------------------------------------------------

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

    # --- grants -----------------------------------------------------------------------------------

    def grant(self, grant: Grant) -> None:
        """Add a grant. GrantError when it could not be used, or the tool is on its way out."""
        if grant in self._book:
            return
        for problem in checks.grant_problems([grant], self._shelf.versions, self._now()):
            raise GrantError(f"{problem.message}. {problem.fix}")
        now = self._now()
        deprecated = [r.version for r in self._shelf.versions(grant.tool) if r.is_deprecated(now)]
        self._book.add(grant, without=frozenset(deprecated))
        self._changed()

    def revoke(self, *grants: Grant) -> None:
        """Take grants back: all of them, or none. GrantError when one was never given."""
        for grant in grants:
            if grant not in self._book:
                raise GrantError(f"agent {grant.agent!r} has no such grant for {grant.tool}")
        for grant in dict.fromkeys(grants):
            self._book.remove(grant)
        if grants:
            self._changed()

    # --- records ----------------------------------------------------------------------------------

    def enable(self, name: str, version: str | None = None, *, reason: str) -> None:
        """Without a version: all of them."""
        self._change(name, version, enabled=True, note=_said(reason))

    def disable(self, name: str, version: str | None = None, *, reason: str) -> None:
        self._change(name, version, enabled=False, note=_said(reason))

    def set_rollout(self, name: str, version: str, percentage: int) -> None:
        self._change(name, version, rollout_percentage=percentage)

    def deprecate(self, name: str, version: str, deprecation: Deprecation | None) -> None:
        """None takes a deprecation back; a contract that declares itself sunset stays so."""
        self._change(name, version, deprecation=deprecation)

    def _change(self, name: str, version: str | None, **fields: Any) -> None:
        changed = [
            replace(record, **fields)
            for record in self._shelf.get(name, version)
            if any(getattr(record, field) != value for field, value in fields.items())
        ]
        self._shelf.put(changed)
        if changed:
            self._changed()

    # --- kill switch ------------------------------------------------------------------------------

    def kill(
        self, *, tool: str | None = None, effect: Effect | str | None = None, reason: str
    ) -> Kill:
        """Stop a tool, every tool of an effect, or everything, until `restore` undoes this kill."""
        kill = self._aim(tool, effect, _said(reason))
        self._switch.add(kill)
        self._changed()
        return kill

    def restore(self, kill: Kill) -> None:
        """Undo one kill. What another kill covers stays stopped."""
        self._switch.remove(kill)
        self._changed()

    def preview_kill(
        self, *, tool: str | None = None, effect: Effect | str | None = None
    ) -> tuple[RegistryRecord, ...]:
        """What such a kill would stop that nothing else has stopped yet."""
        kill, now = self._aim(tool, effect, ""), self._now()
        return tuple(
            record
            for record in self._shelf
            if kill.covers(record) and self._stopped(record, now) is None
        )

    def _aim(self, tool: str | None, effect: Effect | str | None, reason: str) -> Kill:
        if tool is not None:
            self._shelf.get(tool)  # a kill with a typo in it would stop nothing
        try:
            chosen = None if effect is None else Effect(effect)
        except ValueError:
            raise RegistryError(f"effect: {effect!r} is none of {', '.join(Effect)}") from None
        identity = f"kill_{self.epoch + 1}"
        return Kill(id=identity, tool=tool, effect=chosen, reason=reason, at=self._now())


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


def _said(reason: object) -> str:
    if not isinstance(reason, str) or not reason.strip():
        raise RegistryError("reason: say why; it is what the next person will read")
    return reason


def _kept(names: Iterable[str]) -> Any:
    """A generator can be read once, and these are read for every record."""
    return names if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)


def _settings(**settings: Any) -> tuple[dict[str, Any], list[Problem]]:
    """A record's settings if they are sound, and what is wrong with them if not."""
    wrong = setting_errors(**settings)
    problems = [
        Problem(rule="record-invalid", pointer=f"/{name}", message=f"{name}: {text}")
        for name, text in wrong.items()
    ]
    return ({} if wrong else settings), problems
