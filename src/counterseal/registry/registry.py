"""The registry: which versions of which tools are live, for whom, and what stops them.

Pure and in memory: it stores nothing, calls nothing and uses the clock that it is given. It is not
thread-safe; one event loop owns it. `checks` decides what may be registered, `grants` who may use
it, `selection` answers calls; stored changes of operators are replayed here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from counterseal.contract.declare import PlainTool, Tool
from counterseal.contract.diff import effect_rank
from counterseal.contract.effects import Effect
from counterseal.contract.model import Contract
from counterseal.errors import ContractError, GrantError, Problem, RegistryError, Severity
from counterseal.proposal import check_tenant
from counterseal.registry import checks
from counterseal.registry.changes import History, Op, RegistryChange
from counterseal.registry.checks import EarlierContract
from counterseal.registry.identities import ADDED, Credential, User, UserIndex
from counterseal.registry.records import (
    Deprecation,
    Grant,
    Kill,
    Quarantine,
    RegistryRecord,
    known_effect,
    parse_version,
    setting_errors,
)
from counterseal.registry.selection import VersionSelector

_LOCAL = "kill_local_"
"""The prefix of kills that exist in this process only."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Registry(VersionSelector):
    """Records, grants and kills. Every effective change raises `epoch` by one.

    `resolve` returns the version that a run gets, `authorize` the grant of a principal. Changes by
    methods of this class affect this process only; stored changes come through `apply`.
    """

    def __init__(self, *, clock: Callable[[], datetime] = _utc_now) -> None:
        super().__init__(clock)
        self._references: defaultdict[str, list[checks.ToolReference]] = defaultdict(list)
        self._warnings: list[Problem] = []
        self._declared: dict[tuple[str, str], RegistryRecord] = {}
        self._granted: set[Grant] = set()
        """Grants as the code declares them, before any change of operators."""
        self._history = History()
        self.stored = 0
        """The number of the last stored change that was replayed."""
        self._unreviewed: dict[tuple[str, str], RegistryRecord] = {}
        self._credentials: dict[str, Credential] = {}
        self._users = UserIndex()

    # --- contents ---------------------------------------------------------------------------------

    @property
    def records(self) -> tuple[RegistryRecord, ...]:
        """All records by name, newest version first."""
        return tuple(self._records)

    @property
    def grants(self) -> tuple[Grant, ...]:
        return tuple(self._grant_index)

    @property
    def kills(self) -> tuple[Kill, ...]:
        """The kills in force, oldest first."""
        return tuple(self._kills.values())

    @property
    def credentials(self) -> tuple[Credential, ...]:
        """The API keys that are not revoked, oldest first; some may have expired."""
        return tuple(self._credentials.values())

    def credential(self, key_id: str) -> Credential | None:
        """Return an API key, or None if it does not exist or was revoked."""
        return self._credentials.get(key_id)

    @property
    def users(self) -> tuple[User, ...]:
        """All users, including inactive ones, oldest first."""
        return tuple(self._users)

    def user(self, name: str) -> User | None:
        """Return a user by name (case-insensitive), or None."""
        return self._users.get(name)

    def existing_user(self, name: str) -> User:
        """Return a user by name. RegistryError when there is none."""
        return self._users.existing(name)

    def key_holder(self, key_id: str) -> User | None:
        """Return the user who has this personal key, or None."""
        return self._users.holder(key_id)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """The warnings of all registrations."""
        return tuple(self._warnings)

    def versions(self, name: str) -> tuple[RegistryRecord, ...]:
        """Return the versions of a tool, newest first; empty if it is unknown."""
        return self._records.versions(name)

    def get(self, name: str, version: str) -> RegistryRecord:
        """Return one version of a tool. RegistryError when there is none."""
        return self._records.get(name, version)[0]

    def grants_of(self, agent: str, tool: str) -> tuple[Grant, ...]:
        return self._grant_index.of(agent, tool)

    def export(self, tenant: str | None = None) -> dict[str, Any]:
        """Return the whole registry as plain JSON data, with the status of tools in a tenant."""
        now = self._now()
        return {
            "epoch": self.epoch,
            "stored": self.stored,
            "records": [
                {
                    **record.export(),
                    "status": self._status(record, now, tenant),
                    "drift": self.drift(record.name, record.version),
                }
                for record in self._records
            ],
            "grants": [grant.export() for grant in self._grant_index],
            "kills": [kill.export() for kill in self.kills],
            "deprecated_use": [
                {"tool": tool, "version": version, "count": count}
                for (tool, version), count in sorted(self.deprecated_use.items())
            ],
        }

    def _status(self, record: RegistryRecord, now: datetime, tenant: str | None) -> str:
        stopped = self._stopped(record, now, tenant)
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
        strict: bool = False,
    ) -> tuple[Problem, ...]:
        """Register tools and grants, all of them or none. Returns the warnings.

        ContractError lists all problems. With `strict`, parameters without a description are among
        them.
        """
        candidates, problems = checks.read(tools)
        settings, errors = _settings(
            enabled=enabled,
            allowed_agent_roles=_reusable(allowed_agent_roles),
            allowed_tenants=_reusable(allowed_tenants),
            rollout_percentage=rollout_percentage,
        )
        problems += errors
        for candidate in candidates:
            problems += checks.contract_problems(candidate, strict=strict)
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
        granted = list(grants)
        added = [grant for grant in granted if grant not in self._grant_index]
        problems += self._joint_problems(new, added)
        errors = [problem for problem in problems if problem.severity is Severity.ERROR]
        if errors:
            raise ContractError(errors)
        self._add(new, added, problems)
        self._granted.update(granted)
        return tuple(problems)

    register_contract = register
    """Another name for `register`, with a contract as a value."""

    def _joint_problems(self, new: list[RegistryRecord], grants: list[Grant]) -> Iterable[Problem]:
        """Yield conflicts of the new records and grants with each other and the registered ones."""
        batch: defaultdict[str, list[RegistryRecord]] = defaultdict(list)
        for record in new:
            batch[record.name].append(record)

        def versions(name: str) -> list[RegistryRecord]:
            return [*self._records.versions(name), *batch.get(name, ())]

        def standing(name: str) -> Iterable[checks.ToolReference]:
            return self._references.get(name, ())

        yield from checks.duplicates(new, versions)
        yield from checks.reference_problems(new, versions, standing)
        if any(record.contract.state_effects for record in new):
            yield from checks.variable_problems(new, self.records)
        yield from checks.missing_bumps(new, versions)
        yield from checks.grant_problems(grants, versions, self._now(), new)

    def _add(self, new: list[RegistryRecord], grants: list[Grant], warnings: list[Problem]) -> None:
        self._records.put(self._history.applied_to(record) for record in new)
        for record in new:
            self._declared[record.name, record.version] = record
            self._unreviewed[record.name, record.version] = record
            for reference in checks.references(record.contract):
                self._references[reference.target].append(reference)
        for grant in dict.fromkeys(grants):
            if not self._history.decides(grant):
                self._grant_index.add(grant)
        self._warnings += warnings
        if new or grants:
            self._changed()

    # --- governance holds -------------------------------------------------------------------------

    @property
    def unreviewed(self) -> tuple[RegistryRecord, ...]:
        """The records that were not compared with the stored contracts of their tools yet."""
        return tuple(self._unreviewed.values())

    def review(
        self, records: Iterable[RegistryRecord], stored: Sequence[EarlierContract]
    ) -> list[tuple[Contract, tuple[str, ...]]]:
        """Hold those of some unreviewed records that widen what their tools may do.

        `stored` has all contracts of their tools that were ever registered, oldest first. Returns
        the contracts that are not among them, with the changes that hold them. The records stay
        unreviewed until `end_review`.
        """
        known = {(row.tool, row.version, row.contract_hash): row.held for row in stored}
        accepted: defaultdict[str, list[EarlierContract]] = defaultdict(list)
        for row in stored:
            if not row.held or self._history.accepted(row.tool, row.contract_hash):
                accepted[row.tool].append(row)
        new = []
        for record in records:
            contract = record.contract
            key = (record.name, record.version, contract.hash)
            if key in known:
                held = known[key]
            else:
                held = checks.hold_reasons(contract, accepted[record.name])
                new.append((contract, held))
            if held and not self._history.accepted(record.name, contract.hash):
                self._declared[record.name, record.version] = replace(record, held=held)
                self._change(record.name, record.version, held=held)
        return new

    def end_review(self, records: Iterable[RegistryRecord]) -> None:
        """Note that records were compared, and that the store knows their contracts."""
        for record in records:
            self._unreviewed.pop((record.name, record.version), None)

    # --- grants -----------------------------------------------------------------------------------

    def effect_for(self, grant: Grant) -> Effect | None:
        """Return the highest effect of the versions that a new grant would cover now.

        Versions that are held for review don't count, so that accepting one widens no grant; only
        a grant that covers no other version is given for what they do.
        """
        line, tenant = self._records.versions(grant.tool), grant.tenant
        here = [record for record in line if tenant is None or record.allows_tenant(tenant)]
        covered = [record for record in here if grant.covers(record.parsed)]
        in_use = [record for record in covered if not record.held]
        effects = [record.contract.effect for record in in_use or covered]
        return max(filter(None, effects), key=effect_rank, default=None) if all(effects) else None

    def grant(self, grant: Grant) -> None:
        """Add a grant. GrantError when it could not be used, or the tool is deprecated."""
        if grant in self._grant_index:
            return
        self._check_grant(grant)
        self._grant_index.add(grant, without=self.deprecated_versions(grant.tool))
        self._changed()

    def _check_grant(self, grant: Grant) -> None:
        for problem in checks.grant_problems([grant], self._records.versions, self._now()):
            raise GrantError(f"{problem.message}. {problem.fix}")

    def deprecated_versions(self, name: str) -> frozenset[str]:
        """Return the versions of a tool that a new grant does not cover."""
        now, line = self._now(), self._records.versions(name)
        return frozenset(record.version for record in line if record.is_deprecated(now))

    def revoke(self, *grants: Grant) -> None:
        """Revoke grants, all of them or none. GrantError when one does not exist."""
        for grant in grants:
            self._check_given(grant)
        for grant in dict.fromkeys(grants):
            self._grant_index.remove(grant)
        if grants:
            self._changed()

    def _check_given(self, grant: Grant) -> None:
        if grant not in self._grant_index:
            raise GrantError(f"agent {grant.agent!r} has no such grant for {grant.tool}")

    # --- records ----------------------------------------------------------------------------------

    def enable(self, name: str, version: str | None = None, *, reason: str) -> None:
        """Enable one version, or all versions."""
        self._change(name, version, enabled=True, note=_required(reason))

    def disable(self, name: str, version: str | None = None, *, reason: str) -> None:
        self._change(name, version, enabled=False, note=_required(reason))

    def supersede(self, name: str, version: str, *, by: str) -> None:
        """Disable a version because the code that carried it out now serves another one.

        A run that is pinned to it gets a refusal that says so; new runs get the newer version.
        """
        self._change(name, version, enabled=False, superseded=True, note=f"replaced by {by}")

    def set_rollout(self, name: str, version: str, percentage: int) -> None:
        self._change(name, version, rollout_percentage=percentage)

    def deprecate(self, name: str, version: str, deprecation: Deprecation | None) -> None:
        """Set or remove (None) a deprecation. A contract that declares itself sunset stays so."""
        self._change(name, version, deprecation=deprecation)

    def _change(self, name: str, version: str | None, **fields: Any) -> None:
        changed = [
            replace(record, **fields)
            for record in self._records.get(name, version)
            if any(getattr(record, field) != value for field, value in fields.items())
        ]
        self._records.put(changed)
        if changed:
            self._changed()

    # --- quarantine -------------------------------------------------------------------------------

    @property
    def quarantined(self) -> tuple[Quarantine, ...]:
        """All quarantines by name."""
        return tuple(self._quarantine[name] for name in sorted(self._quarantine))

    def quarantine(self, *held: Quarantine) -> None:
        """Refuse calls of these tools until `release`."""
        new = [one for one in held if self._quarantine.get(one.name) != one]
        self._quarantine.update({one.name: one for one in new})
        if new:
            self._changed()

    def release(self, *names: str) -> None:
        """End the quarantine of these tools. Others are ignored."""
        released = [name for name in names if self._quarantine.pop(name, None) is not None]
        if released:
            self._changed()

    # --- kill switch ------------------------------------------------------------------------------

    def kill(
        self,
        *,
        tool: str | None = None,
        effect: Effect | str | None = None,
        tenant: str | None = None,
        reason: str,
    ) -> Kill:
        """Stop a tool, every tool of an effect, or everything, until `restore`.

        With a tenant, only there; without, in every tenant.
        """
        kill = self._aim(tool, effect, tenant, _required(reason))
        self._kills[kill.id] = kill
        self._changed()
        return kill

    def restore(self, kill: Kill) -> None:
        """Undo one kill. What another kill covers stays stopped."""
        self._check_kill(kill.id)
        del self._kills[kill.id]
        self._changed()

    def preview_kill(
        self,
        *,
        tool: str | None = None,
        effect: Effect | str | None = None,
        tenant: str | None = None,
    ) -> tuple[RegistryRecord, ...]:
        """Return the records that such a kill would stop and that are not stopped yet."""
        kill, now = self._aim(tool, effect, tenant, ""), self._now()
        return tuple(
            record
            for record in self._records
            if kill.covers(record, tenant)
            and (tenant is None or record.allows_tenant(tenant))
            and self._stopped(record, now, tenant) is None
        )

    def _aim(
        self, tool: str | None, effect: Effect | str | None, tenant: str | None, reason: str
    ) -> Kill:
        if tool is not None:
            self._records.get(tool)  # refuses a misspelt name, which would stop nothing
        chosen = None if effect is None else known_effect(effect)
        try:
            check_tenant("tenant", "any" if tenant is None else tenant)
        except ValueError as error:
            raise RegistryError(str(error)) from None
        return Kill(
            id=f"{_LOCAL}{self.epoch + 1}",
            tool=tool,
            effect=chosen,
            tenant=tenant,
            reason=reason,
            at=self._now(),
        )

    # --- stored changes of operators -------------------------------------------------------------

    @property
    def changes(self) -> tuple[RegistryChange, ...]:
        """All stored changes, oldest first."""
        return tuple(self._history)

    def apply(self, number: int, what: Mapping[str, Any]) -> None:
        """Replay a stored change. Replaying it again changes nothing.

        A change of a tool that is not registered applies once it is. StoreError when it can't be
        parsed: then this registry is out of date, and stays as it is.
        """
        if number <= self.stored:
            return
        if number > self.stored + 1:
            raise RegistryError(f"change {number} arrived before change {self.stored + 1}")
        change = RegistryChange.stored(number, what)
        self._history.add(change)
        self.stored = len(self._history)
        if change.kill is not None:
            self._kills[change.kill.id] = change.kill
        elif change.restored_kill is not None:
            self._kills.pop(change.restored_kill, None)
        elif change.grant is not None:
            self._apply_grant(change, change.grant)
        elif change.credential is not None:
            self._credentials[change.credential.key_id] = change.credential
        elif change.revoked_key is not None:
            self._credentials.pop(change.revoked_key, None)
        elif change.user is not None:
            self._users.put(change.user)
        elif change.removed_user is not None:
            self._users.discard(change.removed_user)
        else:
            self._records.put(list(self._changed_records(change)))
        self._changed()

    def _apply_grant(self, change: RegistryChange, grant: Grant) -> None:
        if change.op is Op.GRANT:
            self._grant_index.add(grant, without=change.without, number=change.number)
        elif grant in self._grant_index:
            self._grant_index.remove(grant)

    def _changed_records(self, change: RegistryChange) -> Iterable[RegistryRecord]:
        for record in self._records.versions(change.tool or ""):
            if change.concerns(record):
                yield change.applied_to(record, self._declared[record.name, record.version])

    def check(self, what: Mapping[str, Any]) -> None:
        """Raise RegistryError or GrantError if an operator's change is not valid here.

        Called before a change is stored. `apply` does not check, because workers may have different
        tools.
        """
        change = RegistryChange.of(self.stored + 1, what)
        if change.kill is not None:
            kill = change.kill
            self._aim(kill.tool, kill.effect, kill.tenant, change.reason)
        elif change.restored_kill is not None:
            self._check_kill(change.restored_kill)
            if change.restored_kill.startswith(_LOCAL):
                raise RegistryError(
                    f"{change.restored_kill} holds in this process only: undo it there"
                )
        elif change.op is Op.GRANT and change.grant is not None:
            if change.grant in self._grant_index:
                raise GrantError(f"agent {change.grant.agent!r} already has this grant")
            self._check_grant(change.grant)
        elif change.grant is not None:
            self._check_given(change.grant)
        elif change.tool is None:
            self._check_identity(change)
        else:
            records = self._records.get(change.tool, change.version)
            if change.op in (Op.ACCEPT_RISK, Op.ACCEPT_VERSION):
                _check_acceptance(change, records[0])

    def _check_identity(self, change: RegistryChange) -> None:
        key, user = change.credential, change.user
        if key is not None and key.key_id in self._credentials:
            raise RegistryError(f"key {key.key_id} already exists")
        if key is not None and key.expired(self._now()):
            raise RegistryError("expires_at: is in the past")
        if change.revoked_key is not None and change.revoked_key not in self._credentials:
            raise RegistryError(
                f"key {change.revoked_key} is not in force; "
                "`counterseal keys issued` lists the keys in force"
            )
        if change.removed_user is not None:
            self._users.existing(change.removed_user)
        if user is not None and change.user_change != ADDED:
            self._users.existing(user.name)
        elif user is not None and self._users.get(user.name) is not None:
            raise RegistryError(f"user {self._users.existing(user.name).name} already exists")

    def _check_kill(self, kill_id: str) -> None:
        if kill_id not in self._kills:
            in_force = ", ".join(self._kills) or "none"
            raise RegistryError(f"{kill_id} is not in force; in force: {in_force}")

    def drift(self, name: str, version: str) -> list[dict[str, Any]]:
        """Return where operators changed what code declares. RegistryError as in `get`."""
        record = self.get(name, version)
        declared = self._declared[record.name, record.version]
        return list(self._history.drift(declared, self._granted))


def _check_acceptance(change: RegistryChange, record: RegistryRecord) -> None:
    contract = record.contract
    if change.contract_hash not in (None, contract.hash):
        raise RegistryError(
            f"{record.name} {record.version}: the contract has changed; look at it again"
        )
    if change.op is Op.ACCEPT_VERSION:
        if not record.held:
            raise RegistryError(f"{record.name} {record.version} is not held for review")
        return
    if contract.risk == contract.risk_floor:
        raise RegistryError(
            f"{record.name} {record.version} does not lower the risk class of its effect, "
            "so there is nothing to accept"
        )


def _required(reason: object) -> str:
    if not isinstance(reason, str) or not reason.strip():
        raise RegistryError("reason: is required; say why, for the next person who reads it")
    return reason


def _reusable(names: Iterable[str]) -> Any:
    """Return names that can be read several times, even from a generator."""
    return names if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)


def _settings(**settings: Any) -> tuple[dict[str, Any], list[Problem]]:
    """Return the settings if they are valid, and their problems."""
    errors = setting_errors(**settings)
    problems = [
        Problem(rule="record-invalid", pointer=f"/{name}", message=f"{name}: {text}")
        for name, text in errors.items()
    ]
    return ({} if errors else settings), problems
