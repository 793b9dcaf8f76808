"""Tools: the registry as one tenant sees it, and what operators do about it.

The registry is shared. Who stops, enables or rolls out a tool does so for every tenant that has
it, and needs the operator's role everywhere, unless nobody else has that tool. Grants are a
tenant's own. What is in quarantine is in `quarantine`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from counterseal.accounts.users import Role
from counterseal.contract.effects import Effect
from counterseal.errors import RegistryError
from counterseal.registry import Grant, Kill, RegistryChange, RegistryRecord
from counterseal.registry.records import percentage_error
from counterseal.storage.base import Calls
from counterseal.views.base import NotAllowed, NotThere
from counterseal.views.cards import ToolPage, ToolRow, ToolUse
from counterseal.views.quarantine import Quarantined, QuarantineDesk
from counterseal.views.rollout import Share, previewed, steps_back
from counterseal.views.story import call_row
from counterseal.views.windows import seconds_of

__all__ = ["ToolsDesk"]

_MOST_COUNTED: Final = 1000
_MOST_CHANGES: Final = 50


class ToolsDesk(QuarantineDesk):
    """Looking is for every viewer; changing takes an operator."""

    # --- looking ----------------------------------------------------------------------------------

    def tools(self) -> list[ToolRow]:
        """Every tool that this tenant can have, by name; quarantined ones too."""
        rows: dict[str, list[Mapping[str, Any]]] = {}
        for one in self._exported():
            rows.setdefault(one["tool"], []).append(one)
        held = {one.name: one for one in self.quarantined()}
        names = sorted({*rows, *held})
        return [self._row(name, rows.get(name, ()), held.get(name)) for name in names]

    def tool(self, name: str) -> ToolPage:
        """NotThere."""
        held = next((one for one in self.quarantined() if one.name == name), None)
        rows = [one for one in self._exported() if one["tool"] == name]
        if not rows and held is None:
            raise NotThere("tool")
        records, changes = self._records(name), list(self._changes(name))[:_MOST_CHANGES]
        return ToolPage(
            row=self._row(name, rows, held),
            contract=records[0].contract.record() if records else {},
            versions=rows,
            grants=self.grants(tool=name),
            kills=[kill for kill in self.kills() if any(map(kill.covers, records))],
            changes=changes,
            steps_back=steps_back(rows, changes),
            quarantine=held,
            definition_changes=[] if held is None else self.definition_changes(name),
            may_operate=self._may_operate(name),
        )

    def versions(self, name: str) -> list[Mapping[str, Any]]:
        """Its versions, newest first. NotThere."""
        found = [one for one in self._exported() if one["tool"] == name]
        if not found:
            raise NotThere("tool")
        return found

    async def use(self, name: str, window: str = "24h") -> ToolUse:
        """How its latest calls ended, a thousand at most. NotThere; ValueError for the window."""
        self._must_know(name)
        since = self.runtime.clock() - seconds_of(window)
        wanted = Calls(tool=name, since=since, limit=_MOST_COUNTED + 1)
        found = list(await self.runtime.store.calls(self.tenant, wanted))
        codes = Counter(call_row(event).code or "" for _, event in found[:_MOST_COUNTED])
        return ToolUse(
            window=window,
            calls=codes.total(),
            codes=dict(codes.most_common()),
            more=len(found) > _MOST_COUNTED,
        )

    def grants(self, *, tool: str | None = None, agent: str | None = None) -> list[Grant]:
        """Those that count in this tenant."""
        return [
            grant
            for grant in self.runtime.registry.grants
            if grant.tenant in (None, self.tenant)
            and tool in (None, grant.tool)
            and agent in (None, grant.agent)
            and self._records(grant.tool)
        ]

    def kills(self) -> list[Kill]:
        """What is stopped here, for the banner; not what stops other tenants' tools only."""
        mine = [one for one in self.runtime.registry.records if one.allows_tenant(self.tenant)]
        return [
            kill
            for kill in self.runtime.registry.kills
            if kill.tool is None or any(map(kill.covers, mine))
        ]

    # --- changing ---------------------------------------------------------------------------------

    async def preview_kill(
        self, *, tool: str | None = None, effect: Effect | str | None = None
    ) -> list[RegistryRecord]:
        """What such a kill would stop here that nothing else has stopped yet. NotThere."""
        self.needs(Role.OPERATOR)
        await self.runtime.catch_up()
        if tool is not None:
            self._must_know(tool)
        stopped = await self._operator().preview_kill(tool=tool, effect=effect)
        return [record for record in stopped if record.allows_tenant(self.tenant)]

    async def kill(
        self, *, tool: str | None = None, effect: Effect | str | None = None, reason: str
    ) -> Kill:
        """Stop a tool, every tool of an effect, or (with neither) everything. NotThere."""
        await self._must_operate(tool)
        return await self._operator().kill(tool=tool, effect=effect, reason=reason)

    async def restore(self, kill_id: str, *, reason: str) -> RegistryChange:
        """Undo one kill. NotThere."""
        self.needs(Role.OPERATOR)
        await self.runtime.catch_up()
        kill = next((one for one in self.kills() if one.id == kill_id), None)
        if kill is None:
            raise NotThere("kill")
        await self._must_operate(kill.tool)
        return await self._operator().restore(kill, reason=reason)

    async def enable(self, name: str, version: str | None = None, *, reason: str) -> RegistryChange:
        """Let a tool be used again; without a version, all of them. NotThere."""
        await self._must_operate(name, version)
        return await self._operator().enable(name, version, reason=reason)

    async def disable(
        self, name: str, version: str | None = None, *, reason: str
    ) -> RegistryChange:
        """Take a tool out of use; without a version, those that come later too. NotThere."""
        await self._must_operate(name, version)
        return await self._operator().disable(name, version, reason=reason)

    async def preview_rollout(self, name: str, version: str, percentage: int) -> list[Share]:
        """Which versions new runs would get. NotThere; RegistryError for the percentage."""
        await self._must_operate(name, version)
        wrong = percentage_error(percentage)
        if wrong is not None:
            raise RegistryError(f"percentage: {wrong}")
        now = datetime.fromtimestamp(self.runtime.clock(), UTC)
        live = [one for one in self._records(name) if one.ended(now) is None]
        return previewed(live, version, percentage)

    async def set_rollout(
        self, name: str, version: str, percentage: int, *, reason: str
    ) -> RegistryChange:
        """How many of the new runs get this version. NotThere."""
        await self._must_operate(name, version)
        return await self._operator().set_rollout(name, version, percentage, reason=reason)

    async def grant(self, grant: Grant, *, reason: str) -> RegistryChange:
        """Add a grant of this tenant's. One for all tenants takes a role everywhere. NotThere."""
        self._must_give(grant)
        await self.runtime.catch_up()
        self._must_know(grant.tool)
        return await self._operator().grant(grant, reason=reason)

    async def revoke(self, grant: Grant, *, reason: str) -> RegistryChange:
        """Take a grant back. NotThere."""
        self.needs(Role.OPERATOR)
        await self.runtime.catch_up()
        if grant not in self.grants():
            raise NotThere("grant")
        self._must_give(grant)
        return await self._operator().revoke(grant, reason=reason)

    # --- who may ----------------------------------------------------------------------------------

    async def _must_operate(self, name: str | None, version: str | None = None) -> None:
        """NotAllowed, or NotThere, unless this person may change the tool; None: all of them."""
        self.needs(Role.OPERATOR)
        await self.runtime.catch_up()
        if name is not None:
            self._must_know(name, version)
        if not self._may_operate(name):
            raise NotAllowed(Role.OPERATOR, everywhere=True)

    def _may_operate(self, name: str | None) -> bool:
        if self.person.may_everywhere(Role.OPERATOR):
            return True
        return name is not None and self.person.may(Role.OPERATOR) and self._only_ours(name)

    def _only_ours(self, name: str) -> bool:
        """Whether no other tenant has it."""
        records = self.runtime.registry.versions(name)
        return bool(records) and all(one.allowed_tenants == {self.tenant} for one in records)

    def _must_give(self, grant: Grant) -> None:
        self.needs(Role.OPERATOR)
        if grant.tenant == self.tenant:
            return
        if grant.tenant is not None:
            raise NotThere("tenant")
        if not self.person.may_everywhere(Role.OPERATOR):
            raise NotAllowed(Role.OPERATOR, everywhere=True)

    # --- inside -----------------------------------------------------------------------------------

    def _records(self, name: str) -> list[RegistryRecord]:
        """Its versions that this tenant can have, newest first."""
        versions = self.runtime.registry.versions(name)
        return [one for one in versions if one.allows_tenant(self.tenant)]

    def _must_know(self, name: str, version: str | None = None) -> None:
        if not any(version in (None, one.version) for one in self._records(name)):
            raise NotThere("tool")

    def _exported(self) -> Iterator[Mapping[str, Any]]:
        """Versions that this tenant can have, without a word of who else can."""
        for one in self.runtime.registry.export()["records"]:
            tenants = one["allowed_tenants"]
            if not tenants or self.tenant in tenants:
                drift = [left for left in one["drift"] if self._concerns_us(left)]
                ours = [self.tenant] if tenants else []
                yield {**one, "allowed_tenants": ours, "drift": drift}

    def _concerns_us(self, drift: Mapping[str, Any]) -> bool:
        """Whether a word of an operator's may be told here: not what is between it and others."""
        if drift["field"] == "allowed_tenants":
            return False
        grant = drift["stored"] or drift["declared"]
        return drift["field"] != "grants" or grant["tenant"] in (None, self.tenant)

    def _row(
        self, name: str, rows: Sequence[Mapping[str, Any]], held: Quarantined | None
    ) -> ToolRow:
        records = self._records(name)
        newest, first = (rows[0], records[0]) if rows and records else (None, None)
        return ToolRow(
            name=name,
            version=newest["version"] if newest else "",
            versions=len(rows),
            effect=newest["effect"] if newest else None,
            risk=newest["risk_class"] if newest else "",
            owner=first.contract.identity.owner if first else "",
            status="quarantined" if held is not None or newest is None else newest["status"],
            drift=sum(len(row["drift"]) for row in rows),
            grants=len(self.grants(tool=name)),
            kills=[kill.id for kill in self.kills() if any(map(kill.covers, records))],
        )

    def _changes(self, name: str) -> Iterator[dict[str, Any]]:
        for change in reversed(self.runtime.registry.changes):
            told = change.export()
            grant = told.get("grant") or {}
            ours = grant.get("tenant") in (None, self.tenant)
            if ours and name in (told.get("tool"), grant.get("tool")):
                yield told
