"""The registry: which versions of which tools live, for whom, and what stops them.

Pure and in memory: it stores nothing, calls nothing, and has no clock but the one it is given. It
is not thread-safe; one event loop owns it. `checks` says what may come in, `grants` weighs who may
use it, `choosing` answers calls, and what operators changed for good is replayed here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from counterseal.contract.declare import PlainTool, Tool
from counterseal.contract.effects import Effect
from counterseal.contract.model import Contract
from counterseal.errors import ContractError, GrantError, Problem, RegistryError, Severity
from counterseal.registry import checks
from counterseal.registry.changes import History, Op, RegistryChange
from counterseal.registry.grants import Grant
from counterseal.registry.identities import ADDED, Credential, CredentialIndex, User, UserIndex
from counterseal.registry.records import (
    Deprecation,
    Kill,
    Quarantine,
    RegistryRecord,
    known_effect,
    parse_version,
    setting_errors,
)
from counterseal.registry.selection import Choosing

__all__ = ["Registry"]

_LOCAL = "kill_local_"
"""How the ids of kills begin that were never stored."""
_WHO = frozenset({Op.KEY, Op.UNKEY, Op.USER, Op.UNUSER})
"""Changes of who is let in. No tool is concerned."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Registry(Choosing):
    """Records, grants and kills. Every change raises `epoch` by one; a change of nothing does not.

    `resolve` finds the version that a run gets, `authorize` whether a principal may use it. What is
    changed by this class's own methods is changed in this process only, and until it ends.
    """

    def __init__(self, *, clock: Callable[[], datetime] = _utc_now) -> None:
        super().__init__(clock)
        self._references: defaultdict[str, list[checks.ToolReference]] = defaultdict(list)
        self._warnings: list[Problem] = []
        self._declared: dict[tuple[str, str], RegistryRecord] = {}
        self._granted: set[Grant] = set()
        """As code declares them, whatever has become of them."""
        self._history = History()
        self.stored = 0
        """The number of the last stored change that was replayed here."""
        self._credentials = CredentialIndex()
        self._users = UserIndex()

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
    def credentials(self) -> tuple[Credential, ...]:
        """The API keys that were issued and not revoked, oldest first; some may have expired."""
        return tuple(self._credentials)

    def credential(self, key_id: str) -> Credential | None:
        """None when there is none, or it was revoked."""
        return self._credentials.get(key_id)

    @property
    def users(self) -> tuple[User, ...]:
        """Those who can sign in, and those who could if they were active; oldest first."""
        return tuple(self._users)

    def user(self, name: str) -> User | None:
        """Upper and lower case are the same. None when there is none."""
        return self._users.get(name)

    def existing_user(self, name: str) -> User:
        """RegistryError when there is none."""
        return self._users.check_there(name)

    def key_holder(self, key_id: str) -> User | None:
        """Whose personal key it is; None when it is nobody's."""
        return self._users.holder(key_id)

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
            "stored": self.stored,
            "records": [
                {
                    **record.export(),
                    "status": self._status(record, now),
                    "drift": self.drift(record.name, record.version),
                }
                for record in self._shelf
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
        granted = list(grants)
        added = [grant for grant in granted if grant not in self._book]
        problems += self._joint_problems(new, added)
        errors = [problem for problem in problems if problem.severity is Severity.ERROR]
        if errors:
            raise ContractError(errors)
        self._take_in(new, added, problems)
        self._granted.update(granted)
        return tuple(problems)

    def register_contract(
        self, contract: Tool[..., Any] | Contract | PlainTool, **settings: Any
    ) -> tuple[Problem, ...]:
        """Register one contract, with its code or without. Returns the warnings.

        Takes the settings of `register`. ContractError lists every problem.
        """
        return self.register(contract, **settings)

    def _joint_problems(self, new: list[RegistryRecord], grants: list[Grant]) -> Iterable[Problem]:
        """What is wrong with the new records and grants beside the registered ones."""
        batch: defaultdict[str, list[RegistryRecord]] = defaultdict(list)
        for record in new:
            batch[record.name].append(record)

        def versions(name: str) -> list[RegistryRecord]:
            return [*self._shelf.versions(name), *batch.get(name, ())]

        def standing(name: str) -> Iterable[checks.ToolReference]:
            return self._references.get(name, ())

        yield from checks.duplicates(new, versions)
        yield from checks.reference_problems(new, versions, standing)
        if any(record.contract.state_effects for record in new):
            yield from checks.variable_problems(new, self.records)
        yield from checks.missing_bumps(new, versions)
        yield from checks.grant_problems(grants, versions, self._now(), new)

    def _take_in(
        self, new: list[RegistryRecord], grants: list[Grant], warnings: list[Problem]
    ) -> None:
        self._shelf.put(self._history.onto(record) for record in new)
        for record in new:
            self._declared[record.name, record.version] = record
            for reference in checks.references(record.contract):
                self._references[reference.target].append(reference)
        for grant in dict.fromkeys(grants):
            if not self._history.settles(grant):
                self._book.add(grant)
        self._warnings += warnings
        if new or grants:
            self._changed()

    # --- grants -----------------------------------------------------------------------------------

    def grant(self, grant: Grant) -> None:
        """Add a grant. GrantError when it could not be used, or the tool is on its way out."""
        if grant in self._book:
            return
        self._check_grant(grant)
        self._book.add(grant, without=self.deprecated_versions(grant.tool))
        self._changed()

    def _check_grant(self, grant: Grant) -> None:
        for problem in checks.grant_problems([grant], self._shelf.versions, self._now()):
            raise GrantError(f"{problem.message}. {problem.fix}")

    def deprecated_versions(self, name: str) -> frozenset[str]:
        """Those of a tool that a new grant won't cover."""
        now, line = self._now(), self._shelf.versions(name)
        return frozenset(record.version for record in line if record.is_deprecated(now))

    def revoke(self, *grants: Grant) -> None:
        """Take grants back: all of them, or none. GrantError when one was never given."""
        for grant in grants:
            self._check_given(grant)
        for grant in dict.fromkeys(grants):
            self._book.remove(grant)
        if grants:
            self._changed()

    def _check_given(self, grant: Grant) -> None:
        if grant not in self._book:
            raise GrantError(f"agent {grant.agent!r} has no such grant for {grant.tool}")

    # --- records ----------------------------------------------------------------------------------

    def enable(self, name: str, version: str | None = None, *, reason: str) -> None:
        """Without a version: all of them."""
        self._change(name, version, enabled=True, note=_said(reason))

    def disable(self, name: str, version: str | None = None, *, reason: str) -> None:
        self._change(name, version, enabled=False, note=_said(reason))

    def supersede(self, name: str, version: str, *, by: str) -> None:
        """Put a version in another's place: whatever carries it out knows only that one now.

        A run that is pinned to the older one is told so; the newer one is for new runs.
        """
        self._change(name, version, enabled=False, superseded=True, note=f"replaced by {by}")

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

    # --- quarantine -------------------------------------------------------------------------------

    @property
    def quarantined(self) -> tuple[Quarantine, ...]:
        """By name."""
        return tuple(self._quarantine[name] for name in sorted(self._quarantine))

    def quarantine(self, *held: Quarantine) -> None:
        """Let nobody use these names until `release`."""
        new = [one for one in held if self._quarantine.get(one.name) != one]
        self._quarantine.update({one.name: one for one in new})
        if new:
            self._changed()

    def release(self, *names: str) -> None:
        """End their quarantine. Those that are in none stay as they are."""
        found = [name for name in names if self._quarantine.pop(name, None) is not None]
        if found:
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
        chosen = None if effect is None else known_effect(effect)
        identity = f"{_LOCAL}{self.epoch + 1}"
        return Kill(id=identity, tool=tool, effect=chosen, reason=reason, at=self._now())

    # --- what operators changed for good ----------------------------------------------------------

    @property
    def changes(self) -> tuple[RegistryChange, ...]:
        """All of them, oldest first."""
        return tuple(self._history)

    def apply(self, number: int, what: Mapping[str, Any]) -> None:
        """Replay a stored change. One that was replayed before changes nothing.

        What it says of a tool that is not registered holds once it is. StoreError when it can't be
        understood: then this registry knows less than it must, and stays where it is.
        """
        if number <= self.stored:
            return
        if number > self.stored + 1:
            raise RegistryError(f"change {number} came before change {self.stored + 1}")
        change = RegistryChange.stored(number, what)
        self._history.add(change)
        self.stored = len(self._history)
        if change.kill is not None:
            self._switch.add(change.kill)
        elif change.restores is not None:
            self._switch.discard(change.restores)
        elif change.grant is not None:
            self._settle(change, change.grant)
        elif change.op in _WHO:
            self._let_in(change)
        else:
            self._shelf.put(list(self._with(change)))
        self._changed()

    def _let_in(self, change: RegistryChange) -> None:
        if change.credential is not None:
            self._credentials.add(change.credential)
        elif change.unkeys is not None:
            self._credentials.discard(change.unkeys)
        elif change.user is not None:
            self._users.put(change.user)
        elif change.unuser is not None:
            self._users.discard(change.unuser)

    def _settle(self, change: RegistryChange, grant: Grant) -> None:
        if change.op is Op.GRANT:
            self._book.add(grant, without=change.without, number=change.number)
        elif grant in self._book:
            self._book.remove(grant)

    def _with(self, change: RegistryChange) -> Iterable[RegistryRecord]:
        for record in self._shelf.versions(change.tool or ""):
            if change.concerns(record):
                yield change.onto(record, self._declared[record.name, record.version])

    def check(self, what: Mapping[str, Any]) -> None:
        """Whether an operator's change makes sense here. RegistryError or GrantError says why not.

        Asked before it is stored; `apply` asks no more, because workers may know different tools.
        """
        change = RegistryChange.of(self.stored + 1, what)
        if change.kill is not None:
            self._aim(change.kill.tool, change.kill.effect, change.reason)
        elif change.restores is not None:
            if self._switch.get(change.restores).id.startswith(_LOCAL):
                raise RegistryError(f"{change.restores} holds in this process only: undo it there")
        elif change.op is Op.GRANT and change.grant is not None:
            if change.grant in self._book:
                raise GrantError(f"agent {change.grant.agent!r} has this grant already")
            self._check_grant(change.grant)
        elif change.grant is not None:
            self._check_given(change.grant)
        elif change.op in _WHO:
            self._check_who(change)
        else:
            self._shelf.get(change.tool or "", change.version)

    def _check_who(self, change: RegistryChange) -> None:
        if change.credential is not None:
            self._credentials.check(change.credential, self._now())
        elif change.unkeys is not None:
            self._credentials.check_there(change.unkeys)
        elif change.user is not None:
            self._users.check(change.user, new=change.did == ADDED)
        elif change.unuser is not None:
            self._users.check_there(change.unuser)

    def drift(self, name: str, version: str) -> list[dict[str, Any]]:
        """Where operators have left what code declares, as JSON data. RegistryError as in `get`."""
        record = self.get(name, version)
        declared = self._declared[record.name, record.version]
        return list(self._history.drift(declared, self._granted))


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
