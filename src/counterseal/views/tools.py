"""Tools as one tenant has them: registry, grants, kills, rollouts, quarantine, and their changes.

The registry is shared. A change to a tool that several tenants have requires the role operator for
all tenants. An operator of one tenant can stop tools in that tenant, and change tools that only
this tenant has. Grants belong to a tenant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Protocol

from pydantic import BaseModel, ConfigDict, Field

from counterseal.accounts.users import Person, Role
from counterseal.canonical import canonical
from counterseal.contract.effects import Effect
from counterseal.contract.sources.mcp.definition import Change as DefinitionChange
from counterseal.errors import RegistryError
from counterseal.ledger.requests import CallFilter
from counterseal.registry import Grant, Kill, RegistryChange, RegistryRecord
from counterseal.registry.records import percentage_error
from counterseal.views.base import (
    ROW_CONFIG,
    JsonObject,
    JsonValue,
    Moment,
    NotFoundError,
    RoleRequiredError,
    RowModel,
    TenantSection,
    utc,
    window_seconds,
)
from counterseal.views.call_page import call_row

if TYPE_CHECKING:
    from counterseal.operations.operator import Operator
    from counterseal.runtime import Runtime

# --- rows -----------------------------------------------------------------------------------------


class ToolRow(BaseModel):
    """One tool: its newest version, and what stops it."""

    model_config = ROW_CONFIG

    name: str
    version: str = Field(description="The newest; empty if the tool is known to quarantine only.")
    versions: int
    effect: str | None
    risk: str
    owner: str
    status: str = Field(
        description="active, deprecated, disabled, held_for_review, killed, sunset or quarantined."
    )
    drift: int = Field(description="Settings that operators changed from what code declares.")
    grants: int
    kills: list[str]


class CatalogueEntry(RowModel):
    """A tool as an agent may use it, with MCP's field names."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"additionalProperties": True})

    name: str
    title: str
    description: str
    inputSchema: JsonObject  # noqa: N815 - MCP's name
    outputSchema: JsonObject | None = None  # noqa: N815 - MCP's name
    annotations: JsonObject
    effect: str | None
    version: str
    executed_by: str = Field(description="server, or client: then the caller carries it out.")


class DeprecationRow(RowModel):
    """When and why a version is withdrawn."""

    deprecated_at: Moment | None
    removal_at: Moment | None
    replacement_tool: str | None
    reason: str


class ToolVersion(RowModel):
    """One version of a tool, as the registry has it."""

    tool: str
    version: str
    contract_hash: str
    effect: str | None
    risk_class: str
    judged_as: str
    """The risk class that gates use: the effect's, if that is higher and no operator has accepted
    the lower one."""
    risk_accepted: bool
    held: list[str]
    """The changes for which the version is held for review; empty if it is not."""
    enabled: bool
    note: str
    allowed_agent_roles: list[str]
    allowed_tenants: list[str]
    rollout_percentage: int
    deprecation: DeprecationRow | None
    status: str
    drift: list[JsonObject]


class GrantRow(RowModel):
    """Permission for one agent to use one tool."""

    id: str
    agent: str
    tool: str
    version: str
    mode: str
    max_calls_per_run: int | None
    scopes: list[str]
    risk_limit: str | None
    expires_at: Moment | None
    tenant: str | None
    max_effect: str | None = Field(description="The highest effect that it was given for.")


class KillRow(RowModel):
    """One use of the kill switch. Without a tool and an effect it covers everything."""

    id: str
    tool: str | None
    effect: str | None
    tenant: str | None = Field(description="Where it holds; null: in every tenant.")
    reason: str
    by: str
    at: Moment


class StoppedTool(RowModel):
    """A tool that a kill would stop."""

    tool: str
    version: str
    effect: str | None
    risk_class: str


class ChangeRow(RowModel):
    """A change that an operator made to the registry."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"additionalProperties": True})

    number: int
    op: str
    reason: str
    by: str
    at: Moment


class QuarantineRow(RowModel):
    """A tool that no agent may use until an operator has accepted its definition."""

    name: str
    server: str
    tool: str
    """The server's name for it."""
    why: str
    definition: str
    """The hash of its definition as listed now; empty if it is not listed any more."""
    pinned: str
    """The hash of the accepted definition; empty if there is none."""


class DefinitionChangeRow(RowModel):
    """A difference between an MCP server's definition of a tool and the accepted one."""

    pointer: str
    kind: str
    before: JsonValue
    after: JsonValue
    text: str


class StepBack(RowModel):
    """A rollout that can be undone."""

    version: str
    now: int
    before: int
    by: str
    reason: str


class RolloutShare(RowModel):
    """How many of a hundred new runs get a version."""

    version: str = Field(description="Empty: the runs that get no version.")
    now: int
    then: int


class ToolPage(ToolRow):
    """A tool with its contract, versions, grants, kills and changes."""

    contract: JsonObject
    version_list: list[ToolVersion]
    grant_list: list[GrantRow]
    kill_list: list[KillRow]
    changes: list[ChangeRow]
    quarantine: QuarantineRow | None
    definition_changes: list[DefinitionChangeRow]
    steps_back: list[StepBack]
    may_operate: bool


class ToolUse(RowModel):
    """How a tool's latest calls ended."""

    window: str
    calls: int
    codes: dict[str, int]
    more: bool


def grant_row(grant: Grant) -> GrantRow:
    """Return a grant as a row. Its id is a hash of what identifies it."""
    record = grant.export()
    identity = {name: value for name, value in record.items() if name != "max_effect"}
    return GrantRow(id=f"grant_{sha256(canonical(identity)).hexdigest()[:24]}", **record)


def kill_row(kill: Kill) -> KillRow:
    """Return a kill as a row."""
    return KillRow.model_validate(kill.export())


def _change_row(change: RegistryChange) -> ChangeRow:
    return ChangeRow.model_validate(change.export())


# --- quarantine -----------------------------------------------------------------------------------


class QuarantineSource(Protocol):
    """The tools that a gateway keeps in quarantine."""

    def list(self, tenant: str | None = None) -> list[QuarantineRow]:
        """Return them by name; with a tenant, those that the tenant may know of."""

    def changes(self, name: str, tenant: str | None = None) -> Sequence[DefinitionChange]:
        """Return how a definition differs from the accepted one."""

    def accept(self, name: str, definition: str, *, by: str, tenant: str | None = None) -> None:
        """Accept a definition by its hash. Raises CountersealError if the server has changed it."""

    def refuse(self, name: str, *, by: str, reason: str, tenant: str | None = None) -> None:
        """Record that a definition is refused, and why."""


# --- rollouts -------------------------------------------------------------------------------------


def rollout_shares(
    live: Sequence[RegistryRecord], version: str, percentage: int
) -> list[RolloutShare]:
    """Return which versions new runs get now, and with a version rolled out to a percentage.

    `live` are the versions that new runs can get, newest first.
    """
    given = {record.version: record.rollout_percentage for record in live}
    changed = {name: percentage if name == version else own for name, own in given.items()}
    now, then = dict(_shares(given)), dict(_shares(changed))
    return [
        RolloutShare(version=name, now=now[name], then=then[name])
        for name in now
        if name or now[name] or then[name]
    ]


def _shares(live: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield each version's share. A run that one version does not reach is offered the next."""
    taken = 0
    for version, percentage in live.items():
        yield version, max(0, percentage - taken)
        taken = max(taken, percentage)
    yield "", 100 - taken


def _steps_back(
    versions: Sequence[Mapping[str, Any]], changes: Iterable[Mapping[str, Any]]
) -> list[StepBack]:
    """Return the undo of the last rollout of each version. `changes` are newest first."""
    rollouts: dict[str, list[Mapping[str, Any]]] = {}
    for change in changes:
        if change["op"] == "rollout":
            rollouts.setdefault(change["version"], []).append(change)
    steps = []
    for version in versions:
        name, now = version["version"], version["rollout_percentage"]
        made = rollouts.get(name, [])
        declared = [d["declared"] for d in version["drift"] if d["field"] == "rollout_percentage"]
        # The percentage of the previous rollout, or the one that code declares.
        before = int([*(one["percentage"] for one in made[1:]), *declared, now][0])
        if made and before != now:
            by, reason = made[0]["by"], made[0]["reason"]
            steps.append(StepBack(version=name, now=now, before=before, by=by, reason=reason))
    return steps


# --- the section ----------------------------------------------------------------------------------

_MAX_COUNTED: Final = 1000
_MAX_CHANGES: Final = 50


class ToolViews(TenantSection):
    """Tools of a tenant. Viewers may read; changes require the role operator."""

    def __init__(
        self, runtime: Runtime, person: Person, quarantine: QuarantineSource | None = None
    ) -> None:
        super().__init__(runtime, person)
        self._quarantine = quarantine

    # --- reading ----------------------------------------------------------------------------------

    def rows(self) -> list[ToolRow]:
        """Return every tool that the tenant can have, by name, quarantined ones included."""
        versions: dict[str, list[Mapping[str, Any]]] = {}
        for version in self._exported():
            versions.setdefault(version["tool"], []).append(version)
        held = {row.name for row in self.quarantined()}
        return [
            ToolRow(**self._fields(name, versions.get(name, ()), quarantined=name in held))
            for name in sorted({*versions, *held})
        ]

    def page(self, name: str) -> ToolPage:
        """Return a tool with everything about it. Raises NotFoundError."""
        held = next((row for row in self.quarantined() if row.name == name), None)
        versions = [version for version in self._exported() if version["tool"] == name]
        if not versions and held is None:
            raise NotFoundError("tool")
        records, changes = self._records(name), list(self._changes(name))[:_MAX_CHANGES]
        return ToolPage(
            **self._fields(name, versions, quarantined=held is not None),
            contract=records[0].contract.record() if records else {},
            version_list=[ToolVersion(**version) for version in versions],
            grant_list=self.grants(tool=name),
            kill_list=[kill_row(kill) for kill in self._kills_of(records)],
            changes=[ChangeRow(**change) for change in changes],
            steps_back=_steps_back(versions, changes),
            quarantine=held,
            definition_changes=[] if held is None else self.definition_changes(name),
            may_operate=self._may_operate(name),
        )

    def versions(self, name: str) -> list[ToolVersion]:
        """Return a tool's versions, newest first. Raises NotFoundError."""
        versions = [version for version in self._exported() if version["tool"] == name]
        if not versions:
            raise NotFoundError("tool")
        return [ToolVersion(**version) for version in versions]

    async def use(self, name: str, window: str = "24h") -> ToolUse:
        """Return how a tool's latest calls ended, a thousand at most. Raises NotFoundError."""
        self._must_know(name)
        since = self.runtime.clock() - window_seconds(window)
        query = CallFilter(tool=name, since=since, limit=_MAX_COUNTED + 1)
        events = list(await self.runtime.store.calls(self.tenant, query))
        codes = Counter(call_row(event).code or "" for _, event in events[:_MAX_COUNTED])
        return ToolUse(
            window=window,
            calls=codes.total(),
            codes=dict(codes.most_common()),
            more=len(events) > _MAX_COUNTED,
        )

    def grants(self, *, tool: str | None = None, agent: str | None = None) -> list[GrantRow]:
        """Return the grants that apply in this tenant."""
        return [grant_row(grant) for grant in self._grants(tool, agent)]

    def kills(self) -> list[KillRow]:
        """Return the kills that stop tools of this tenant."""
        return [kill_row(kill) for kill in self._kills()]

    def quarantined(self) -> list[QuarantineRow]:
        """Return the tools that wait for an operator to accept them, by name."""
        return [] if self._quarantine is None else self._quarantine.list(self.tenant)

    def definition_changes(self, name: str) -> list[DefinitionChangeRow]:
        """Return how a quarantined definition differs from the accepted. Raises NotFoundError."""
        changes = self._quarantine_of(name).changes(name, self.tenant)
        return [DefinitionChangeRow(**change._asdict()) for change in changes]

    # --- changing ---------------------------------------------------------------------------------

    async def preview_kill(
        self, *, tool: str | None = None, effect: Effect | str | None = None
    ) -> list[StoppedTool]:
        """Return the running tools that a kill would stop in this tenant. Raises NotFoundError.

        A kill for every tenant stops the same tools in this one.
        """
        self.require(Role.OPERATOR)
        await self.runtime.catch_up()
        if tool is not None:
            self._must_know(tool)
        given = {"tool": tool, "effect": effect, "tenant": self.tenant}
        stopped = await self._operator().preview_kill(**given)
        return [StoppedTool.model_validate(record.export()) for record in stopped]

    async def kill(
        self,
        *,
        tool: str | None = None,
        effect: Effect | str | None = None,
        everywhere: bool | None = None,
        reason: str,
    ) -> KillRow:
        """Stop a tool, every tool of an effect, or (with neither) everything. Raises NotFoundError.

        In every tenant or in this one; by default in every tenant if the person may do that.
        """
        if everywhere is None:
            everywhere = self.person.may_everywhere(Role.OPERATOR)
        await self._must_operate(tool, here=not everywhere)
        tenant = None if everywhere else self.tenant
        given = {"tool": tool, "effect": effect, "tenant": tenant}
        return kill_row(await self._operator().kill(**given, reason=reason))

    def may_restore(self, kill: KillRow) -> bool:
        """Return whether this person may undo a kill: one of this tenant, or of all tenants."""
        here = kill.tenant is not None and self.person.may(Role.OPERATOR)
        return here or self._may_operate(kill.tool)

    async def restore(self, kill_id: str, *, reason: str) -> ChangeRow:
        """Undo a kill. Raises NotFoundError."""
        self.require(Role.OPERATOR)
        await self.runtime.catch_up()
        kill = next((kill for kill in self._kills() if kill.id == kill_id), None)
        if kill is None:
            raise NotFoundError("kill")
        await self._must_operate(kill.tool, here=kill.tenant is not None)
        return _change_row(await self._operator().restore(kill, reason=reason))

    async def enable(self, name: str, version: str | None = None, *, reason: str) -> ChangeRow:
        """Enable one version of a tool, or all of them. Raises NotFoundError."""
        await self._must_operate(name, version)
        return _change_row(await self._operator().enable(name, version, reason=reason))

    async def disable(self, name: str, version: str | None = None, *, reason: str) -> ChangeRow:
        """Disable one version, or all of them including later ones. Raises NotFoundError."""
        await self._must_operate(name, version)
        return _change_row(await self._operator().disable(name, version, reason=reason))

    async def accept_version(self, name: str, version: str, *, reason: str) -> ChangeRow:
        """Accept a version that is held for review. Raises NotFoundError or RegistryError."""
        await self._must_operate(name, version)
        return _change_row(await self._operator().accept_version(name, version, reason=reason))

    async def preview_rollout(self, name: str, version: str, percentage: int) -> list[RolloutShare]:
        """Return which versions new runs would get. Raises NotFoundError or RegistryError."""
        await self._must_operate(name, version)
        error, now = percentage_error(percentage), utc(self.runtime.clock())
        if error is not None:
            raise RegistryError(f"percentage: {error}")
        live = [record for record in self._records(name) if record.ended(now) is None]
        return rollout_shares(live, version, percentage)

    async def set_rollout(
        self, name: str, version: str, percentage: int, *, reason: str
    ) -> ChangeRow:
        """Set the percentage of new runs that get a version. Raises NotFoundError."""
        await self._must_operate(name, version)
        operator = self._operator()
        return _change_row(await operator.set_rollout(name, version, percentage, reason=reason))

    async def grant(self, grant: Grant, *, reason: str) -> GrantRow:
        """Add a grant; for all tenants, that requires the role in all. Raises NotFoundError."""
        self._must_own(grant)
        await self.runtime.catch_up()
        self._must_know(grant.tool)
        change = await self._operator().grant(grant, reason=reason)
        return grant_row(change.grant or grant)

    async def revoke(self, grant_id: str, *, reason: str) -> ChangeRow:
        """Remove a grant by the id of its row. Raises NotFoundError."""
        self.require(Role.OPERATOR)
        await self.runtime.catch_up()
        grant = next((one for one in self._grants() if grant_row(one).id == grant_id), None)
        if grant is None:
            raise NotFoundError("grant")
        self._must_own(grant)
        return _change_row(await self._operator().revoke(grant, reason=reason))

    async def accept(self, name: str, definition: str) -> None:
        """Accept exactly this definition, by its hash. Raises NotFoundError."""
        quarantine = self._quarantine_of(name, to_decide=True)
        quarantine.accept(name, definition, by=self.person.name, tenant=self.tenant)

    async def refuse(self, name: str, *, reason: str) -> None:
        """Record that a definition is refused. Raises NotFoundError."""
        quarantine = self._quarantine_of(name, to_decide=True)
        quarantine.refuse(name, by=self.person.name, reason=reason, tenant=self.tenant)

    # --- permission -------------------------------------------------------------------------------

    async def _must_operate(
        self, name: str | None, version: str | None = None, *, here: bool = False
    ) -> None:
        """Raise unless this person may change the tool; None stands for all tools.

        `here`: the change holds in this tenant only.
        """
        self.require(Role.OPERATOR)
        await self.runtime.catch_up()
        if name is not None:
            self._must_know(name, version)
        if not here and not self._may_operate(name):
            raise RoleRequiredError(Role.OPERATOR, everywhere=True)

    def _may_operate(self, name: str | None) -> bool:
        if self.person.may_everywhere(Role.OPERATOR):
            return True
        records = [] if name is None else self.runtime.registry.versions(name)
        exclusive = bool(records) and all(one.allowed_tenants == {self.tenant} for one in records)
        return exclusive and self.person.may(Role.OPERATOR)

    def _must_own(self, grant: Grant) -> None:
        self.require(Role.OPERATOR)
        if grant.tenant == self.tenant:
            return
        if grant.tenant is not None:
            raise NotFoundError("tenant")
        if not self.person.may_everywhere(Role.OPERATOR):
            raise RoleRequiredError(Role.OPERATOR, everywhere=True)

    def _must_know(self, name: str, version: str | None = None) -> None:
        if not any(version in (None, record.version) for record in self._records(name)):
            raise NotFoundError("tool")

    def _quarantine_of(self, name: str, *, to_decide: bool = False) -> QuarantineSource:
        """Return the quarantine that holds a tool. A decision applies to all tenants."""
        if to_decide:
            self.require(Role.OPERATOR)
        if self._quarantine is None or not any(row.name == name for row in self.quarantined()):
            raise NotFoundError("tool")
        if to_decide and not self.person.may_everywhere(Role.OPERATOR):
            raise RoleRequiredError(Role.OPERATOR, everywhere=True)
        return self._quarantine

    # --- inside -----------------------------------------------------------------------------------

    def _operator(self) -> Operator:
        return self.runtime.operator(self.person.name)

    def _grants(self, tool: str | None = None, agent: str | None = None) -> list[Grant]:
        return [
            grant
            for grant in self.runtime.registry.grants
            if grant.tenant in (None, self.tenant)
            and tool in (None, grant.tool)
            and agent in (None, grant.agent)
            and self._records(grant.tool)
        ]

    def _kills(self) -> list[Kill]:
        records = [one for one in self.runtime.registry.records if one.allows_tenant(self.tenant)]
        return [
            kill
            for kill in self.runtime.registry.kills
            if kill.tenant in (None, self.tenant)
            and (kill.tool is None or any(kill.covers(one, self.tenant) for one in records))
        ]

    def _kills_of(self, records: Sequence[RegistryRecord]) -> list[Kill]:
        return [
            kill
            for kill in self._kills()
            if any(kill.covers(record, self.tenant) for record in records)
        ]

    def _records(self, name: str) -> list[RegistryRecord]:
        """Return the versions that this tenant can have, newest first."""
        versions = self.runtime.registry.versions(name)
        return [record for record in versions if record.allows_tenant(self.tenant)]

    def _exported(self) -> Iterator[Mapping[str, Any]]:
        """Yield the versions that this tenant can have, without the names of other tenants."""
        for version in self.runtime.registry.export(self.tenant)["records"]:
            tenants = version["allowed_tenants"]
            if not tenants or self.tenant in tenants:
                drift = [one for one in version["drift"] if self._is_visible(one)]
                ours = [self.tenant] if tenants else []
                yield {**version, "allowed_tenants": ours, "drift": drift}

    def _is_visible(self, drift: Mapping[str, Any]) -> bool:
        """Return whether a changed setting may be shown here, and does not name other tenants."""
        if drift["field"] == "allowed_tenants":
            return False
        grant = drift["stored"] or drift["declared"]
        return drift["field"] != "grants" or grant["tenant"] in (None, self.tenant)

    def _fields(
        self, name: str, versions: Sequence[Mapping[str, Any]], *, quarantined: bool
    ) -> dict[str, Any]:
        """Return the fields of a tool's row."""
        records = self._records(name)
        newest, first = (versions[0], records[0]) if versions and records else (None, None)
        return {
            "name": name,
            "version": newest["version"] if newest else "",
            "versions": len(versions),
            "effect": newest["effect"] if newest else None,
            "risk": newest["risk_class"] if newest else "",
            "owner": first.contract.identity.owner if first else "",
            "status": "quarantined" if quarantined or newest is None else newest["status"],
            "drift": sum(len(version["drift"]) for version in versions),
            "grants": len(self._grants(tool=name)),
            "kills": [kill.id for kill in self._kills_of(records)],
        }

    def _changes(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield what operators changed about a tool, newest first."""
        for change in reversed(self.runtime.registry.changes):
            record = change.export()
            grant = record.get("grant") or {}
            ours = {grant.get("tenant"), record.get("tenant")} <= {None, self.tenant}
            if ours and name in (record.get("tool"), grant.get("tool")):
                yield record
