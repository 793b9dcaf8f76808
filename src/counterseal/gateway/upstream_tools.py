"""The tools of upstreams under contract: which of them may be used, and under which names.

A tool is registered from its pin in the lock file, so the tools of an upstream that is down stay
known. New and changed tools are quarantined until a person accepts them. Every process reads the
accepted definitions in the lock file. Beside that, a connection sends no call for a tool that the
upstream has not listed exactly as it was accepted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple

from counterseal.audit import CallFields, Event, EventType
from counterseal.config import ConfigError
from counterseal.config.upstream_contracts import UpstreamContracts, resource_contracts
from counterseal.contract.declare import Tool
from counterseal.contract.model import Contract
from counterseal.contract.sources.mcp.definition import Change, Definition, describe, read_listing
from counterseal.contract.sources.mcp.lock import Lock, LockFinding, Pin, PinState
from counterseal.contract.tool_context import ASKER, RefusedError
from counterseal.errors import ContractError, CountersealError, Problem
from counterseal.gateway.questions import note_missing_capability
from counterseal.operations.operator import ALL_TENANTS
from counterseal.proposal import Principal
from counterseal.registry import Grant, Quarantine, QuarantineReason, Refusal
from counterseal.runtime import Runtime
from counterseal.telemetry import measure
from counterseal.upstream import Upstream, Upstreams, mcp_tool
from counterseal.views.tools import QuarantineRow

_log = logging.getLogger("counterseal.gateway")

_LOCK_CHECK: Final = 2.0
"""Seconds between two looks at the lock file."""


@dataclass(eq=False)
class UpstreamState:
    """The listed tools of one upstream, and their comparison with the lock."""

    definitions: tuple[Definition, ...] | None = None
    """As they were last listed; None if they never were."""
    current: bool = False
    """True if they were listed after the last notice of a change."""
    first_listing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set after the first try to list them, whatever its outcome."""
    findings: list[LockFinding] = field(default_factory=list)
    """The comparison with the lock file."""
    hidden: int = 0
    troubles: dict[str, str] = field(default_factory=dict)
    """By tool: why it can't be used, for an operator."""
    listing: bool = False
    changes: int = 0
    """How many notices of changes have come."""


class UpstreamTools:
    """All upstreams of a gateway, and those of their tools that may be used."""

    def __init__(
        self,
        runtime: Runtime,
        upstreams: Upstreams,
        contracts: Mapping[str, UpstreamContracts],
        lock: Path,
        *,
        grants: Iterable[Grant] = (),
    ) -> None:
        self.runtime = runtime
        self.upstreams = upstreams
        self.contracts = dict(contracts)
        self.lock = lock
        self._grants = list(grants)
        self.on_change: Callable[[str, str], None] = lambda _server, _kind: None
        """Called with a server and "resources", "prompts" or "resource:URI" after a change."""
        self.states = {server: UpstreamState() for server in contracts}
        self.names = ToolNames(record.name for record in runtime.registry.records)
        self._outdated: set[str] = set()
        self._wake = asyncio.Event()

    # --- life -------------------------------------------------------------------------------------

    def register_pinned(self) -> None:
        """Register the accepted tools. Raises ConfigError if two of them have one name."""
        lock = Lock.load(self.lock)
        for server, contracts in self.contracts.items():
            for pin in lock.servers.get(server, {}).values():
                self._register_accepted(contracts, pin, strict=True)
            for contract in resource_contracts(contracts):
                self._register(contracts, contract, contract.name)
            self.upstreams[server].on_change = partial(self._changed, server)

    async def run(self) -> None:
        """List tools when they change, and compare when the lock file changes, until cancelled."""
        self._outdated.update(self.contracts)
        stamp = self._lock_stamp()
        async with asyncio.TaskGroup() as group:
            while True:
                for server in list(self._outdated):
                    self._outdated.discard(server)
                    group.create_task(self._refresh(server))
                self._wake.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOCK_CHECK):
                        await self._wake.wait()
                if self._lock_stamp() != stamp:
                    stamp = self._lock_stamp()
                    self.compare_all()
                for server, state in self.states.items():  # those whose last listing failed
                    if not state.current and not state.listing and self.upstreams[server].ready:
                        self._outdated.add(server)

    def compare_all(self) -> None:
        """Compare the tools of every upstream with the lock file as it is now."""
        for server in self.contracts:
            try:
                self._compare(server)
            except Exception:  # noqa: BLE001 - an error with one upstream must not stop the others
                _log.exception("upstream %s could not be compared with the lock", server)

    async def wait_for_first_listing(self, seconds: float) -> None:
        """Wait until every upstream was asked for its tools once, at most `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for state in self.states.values():
                    await state.first_listing.wait()

    def _lock_stamp(self) -> tuple[int, int] | None:
        try:
            status = self.lock.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino

    # --- listing and comparing --------------------------------------------------------------------

    def _changed(self, server: str, kind: str) -> None:
        if kind == "tools":
            self.states[server].current = False
            self.states[server].changes += 1
            self._outdated.add(server)
            self._wake.set()
        else:
            self.on_change(server, kind)

    async def _refresh(self, server: str) -> None:
        state = self.states[server]
        changes, state.listing = state.changes, True
        try:
            tools = await self.upstreams[server].definitions()
            if changes != state.changes:  # they have changed meanwhile, and are listed again
                return
            definitions, unusable = read_listing(tools)
            state.troubles = dict(unusable)
            state.definitions = tuple(definitions.values())
            self._compare(server)
            state.current = True
        except CountersealError as error:
            _log.warning("upstream %s could not be listed: %s", server, error)
        except Exception:  # noqa: BLE001 - an error with one upstream must not stop the others
            _log.exception("upstream %s could not be listed", server)
        finally:
            state.listing = False
        state.first_listing.set()

    def _compare(self, server: str) -> None:
        """Compare the listed tools with the pinned ones; register or quarantine each."""
        contracts, state = self.contracts[server], self.states[server]
        try:
            lock = Lock.load(self.lock)
        except CountersealError as error:
            _log.error("the lock can't be read, so no new tool is accepted: %s", error)
            return
        state.hidden = 0
        if state.definitions is None:  # not reached yet: compared when it is
            for pin in lock.servers.get(server, {}).values():
                self._register_accepted(contracts, pin, strict=False)
            return
        state.findings = lock.compare(server, state.definitions)
        registry = self.runtime.registry
        for finding in state.findings:
            if finding.state is not PinState.ACCEPTED or finding.pin is None:
                self._quarantine(contracts, finding)
                continue
            name = self._register_accepted(contracts, finding.pin, strict=False)
            if name is not None and any(held.name == name for held in registry.quarantined):
                registry.release(name)
                body = {"server": server, "definition": finding.pin.definition.hash}
                self.note(EventType.RELEASED, name, "accepted", body)

    def _quarantine(self, contracts: UpstreamContracts, finding: LockFinding) -> None:
        state = self.states[contracts.server]
        name = contracts.name(finding.tool)
        if name is None:
            state.hidden += 1
            return
        conflict = self.names.claim(name, contracts.server, finding.tool, accepted=False)
        if conflict:
            state.troubles[finding.tool] = conflict
            return
        quarantine = Quarantine.of(name, QuarantineReason(finding.state.value), contracts.tenants)
        if quarantine not in self.runtime.registry.quarantined:
            self.runtime.registry.quarantine(quarantine)
            definition = finding.definition.hash if finding.definition else ""
            why = quarantine.why.value
            body = {"server": contracts.server, "definition": definition, "why": why}
            self.note(EventType.QUARANTINED, name, why, body)

    # --- registering ------------------------------------------------------------------------------

    def _register_accepted(
        self, contracts: UpstreamContracts, pin: Pin, *, strict: bool
    ) -> str | None:
        """Register an accepted tool. Return its name, or None if it is hidden or unusable."""
        state = self.states[contracts.server]
        tool = pin.definition.name
        try:
            contract = contracts.contract(pin.definition, pin.revision)
        except ContractError as error:
            if strict and contracts.overlay is not None and tool in contracts.overlay.tools:
                raise
            state.troubles[tool] = str(error)
            return None
        if contract is None:
            state.hidden += 1
            return None
        try:
            self._register(contracts, contract, tool)
        except (ConfigError, ContractError) as error:  # a name that is taken, or an invalid grant
            if strict:
                raise
            state.troubles[tool] = str(error)
            return None
        return contract.name

    def _register(self, contracts: UpstreamContracts, contract: Contract, tool: str) -> None:
        """Register a contract under its name. `tool` is the server's name for it."""
        conflict = self.names.claim(contract.name, contracts.server, tool, accepted=True)
        if conflict:
            raise ConfigError(conflict)
        registry = self.runtime.registry
        versions = registry.versions(contract.name)
        same = next((record for record in versions if record.version == contract.version), None)
        if same is not None and same.contract.mcp == contract.mcp:
            return
        if same is not None:  # the lock was made anew, or comes from another branch
            message = (
                f"revision {contract.version} was another definition when this gateway started; "
                "restart the gateway"
            )
            raise ContractError([Problem(rule="pin-reused", tool=contract.name, message=message)])
        grants = [grant for grant in self._grants if grant.tool == contract.name]
        measured = self._measured(contract, self.upstreams[contracts.server])
        self.runtime.register(measured, grants=grants, allowed_tenants=contracts.tenants)
        for record in versions:
            registry.supersede(record.name, record.version, by=contract.version)

    def _measured(self, contract: Contract, upstream: Upstream) -> Tool[..., Any]:
        """Return the tool, with its duration measured and missing client capabilities noted."""
        tool = mcp_tool(contract, upstream)
        function = tool.function

        async def measured(**arguments: Any) -> Any:
            ASKER.set(upstream.name)  # a tool runs in a context of its own
            began, failed = monotonic(), None
            try:
                return await function(**arguments)
            except BaseException as error:
                failed = type(error).__name__
                if isinstance(error, RefusedError):
                    note_missing_capability(error)
                raise
            finally:
                binding = tool.contract.mcp
                kind = "tool" if binding is None else binding.kind
                attributes = {  # named by OpenTelemetry's conventions for MCP
                    "mcp.method.name": _METHODS[kind],
                    "mcp.protocol.version": upstream.version or None,
                    "gen_ai.tool.name": None if binding is None else binding.tool or None,
                    "error.type": failed,
                }
                measure("mcp.client.operation.duration", monotonic() - began, attributes)

        return replace(tool, function=measured)

    def note(
        self, kind: EventType, name: str, what: str, body: Mapping[str, Any], by: str | None = None
    ) -> None:
        """Record what has happened to a tool."""
        caller = CallFields(ALL_TENANTS, "", "", name, "", "counterseal", by, "")
        self.runtime.store.note(Event(kind, caller, self.runtime.clock(), what, body=body))

    # --- queries ----------------------------------------------------------------------------------

    def allows(self, principal: Principal, server: str, what: str) -> bool:
        """Return True if a principal may use an upstream's `resources` or `prompts`."""
        registry = self.runtime.registry
        record = registry.resolve(f"{server}.{what}", tenant=principal.tenant, run_id="")
        if isinstance(record, Refusal):
            return False
        return isinstance(registry.authorize(record, principal), Grant)

    def relays_questions(self, contract: Contract) -> bool:
        """Return True if the upstream behind a contract may ask the client something."""
        return contract.mcp is not None and bool(self.upstreams[contract.mcp.server].settings.relay)

    def unused_grants(self) -> list[str]:
        """Return granted tools that no upstream has. Empty while an upstream was not reached."""
        if any(state.definitions is None for state in self.states.values()):
            return []
        quarantined = {each.name for each in self.runtime.registry.quarantined}
        return sorted({grant.tool for grant in self._grants} - quarantined - set(self.names))


_METHODS: Final = {"tool": "tools/call", "resource": "resources/read", "prompt": "prompts/get"}


# --- names ----------------------------------------------------------------------------------------


class _Owner(NamedTuple):
    server: str
    """Empty for a tool of this project."""
    tool: str
    """The server's name for it."""
    accepted: bool


class ToolNames:
    """The names of all tools, each for one tool only: agents could not tell two apart.

    An accepted tool keeps its name. A tool that is not accepted yet gives way to an accepted one:
    else a third party's server could take names away by listing them.
    """

    def __init__(self, project: Iterable[str]) -> None:
        self._owners = {name: _Owner("", name, accepted=True) for name in project}

    def claim(self, name: str, server: str, tool: str, *, accepted: bool) -> str:
        """Reserve a name for a tool. Return an empty text, or why it is taken and what to do."""
        owner, claimant = self._owners.get(name), _Owner(server, tool, accepted)
        if owner is None or owner[:2] == claimant[:2] or (accepted and not owner.accepted):
            keeps = owner is not None and owner[:2] == claimant[:2] and owner.accepted
            self._owners[name] = claimant._replace(accepted=accepted or keeps)
            return ""
        if owner.server == server:
            both = f"{owner.tool} and {tool} of {server} would both be called {name}"
            return f"{both}. Give one of them another name: `rename` in the overlay"
        other = owner.server or "this project"
        return (
            f"{name} is a tool of {other} and of {server}. Give one of them another name: "
            f'`rename` in its overlay, or `prefix = "{server}_"` in [upstreams.{server}]'
        )

    def of(self, server: str) -> list[str]:
        """Return the names of a server's tools, sorted."""
        return sorted(name for name, owner in self._owners.items() if owner.server == server)

    def __iter__(self) -> Iterator[str]:
        return iter(self._owners)


# --- quarantine -----------------------------------------------------------------------------------


class QuarantinedTools:
    """The quarantined tools of a gateway, and decisions on them."""

    def __init__(self, upstreams: UpstreamTools) -> None:
        self._upstreams = upstreams

    def list(self, tenant: str | None = None) -> list[QuarantineRow]:
        """Return the quarantined tools by name; with a tenant, only those it may know of."""
        held = (tool for tool, _ in self._all(tenant))
        return sorted(held, key=lambda tool: (tool.name, tool.server))

    def changes(self, name: str, tenant: str | None = None) -> Sequence[Change]:
        """Return the differences to the accepted definition.

        Raises CountersealError if the tool is not quarantined.
        """
        _, finding = self._find(name, tenant)
        before = finding.pin.definition if finding.pin else None
        return describe(before or _empty(finding), finding.definition or _empty(finding))

    def accept(self, name: str, definition: str, *, by: str, tenant: str | None = None) -> None:
        """Accept a tool with the definition that was shown, by its hash.

        Raises CountersealError if its definition is another one by now.
        """
        held, finding = self._find(name, tenant)
        if finding.definition is None or finding.definition.hash != definition:
            raise CountersealError(
                f"{name} has changed since it was shown; review it again and accept it then"
            )
        listed, at = finding.definition, datetime.now(UTC).isoformat(timespec="seconds")
        Lock.update(
            self._upstreams.lock, lambda lock: lock.accept(held.server, listed, by=by, at=at)
        )
        self._note(held, by, "accepted", "")
        self._upstreams.compare_all()

    def refuse(self, name: str, *, by: str, reason: str, tenant: str | None = None) -> None:
        """Record that a tool stays in quarantine, and why."""
        held, _ = self._find(name, tenant)
        if not reason.strip():
            raise CountersealError("reason is empty; say why, for the next person who looks")
        self._note(held, by, "refused", reason[:1000])

    def _find(self, name: str, tenant: str | None) -> tuple[QuarantineRow, LockFinding]:
        pair = next((pair for pair in self._all(tenant) if pair[0].name == name), None)
        if pair is None:
            raise CountersealError(f"{name} is not quarantined; reload the list")
        return pair

    def _all(self, tenant: str | None) -> Iterator[tuple[QuarantineRow, LockFinding]]:
        names = {each.name: each for each in self._upstreams.runtime.registry.quarantined}
        for server, contracts in self._upstreams.contracts.items():
            if tenant is not None and contracts.tenants and tenant not in contracts.tenants:
                continue
            for finding in self._upstreams.states[server].findings:
                name = contracts.name(finding.tool) or ""
                if finding.state is not PinState.ACCEPTED and name in names:
                    held = QuarantineRow(
                        name=name,
                        server=server,
                        tool=finding.tool,
                        why=names[name].why.value,
                        definition=finding.definition.hash if finding.definition else "",
                        pinned=finding.pin.definition.hash if finding.pin else "",
                    )
                    yield held, finding

    def _note(self, held: QuarantineRow, by: str, decision: str, reason: str) -> None:
        body = {**held.model_dump(), "reason": reason}
        self._upstreams.note(EventType.QUARANTINED, held.name, decision, body, by)


def _empty(finding: LockFinding) -> Definition:
    """Return an empty definition, to compare a new or removed tool with."""
    return Definition.of({"name": finding.tool, "inputSchema": {"type": "object"}})


def upstream_summaries(upstreams: UpstreamTools) -> list[dict[str, Any]]:
    """Return the state of each upstream and of its tools, for an operator."""
    held = {each.name: each.why.value for each in upstreams.runtime.registry.quarantined}
    summaries = []
    for server, state in upstreams.states.items():
        upstream = upstreams.upstreams[server]
        not_tools = (f"{server}.resources", f"{server}.prompts")
        tools = [name for name in upstreams.names.of(server) if name not in not_tools]
        summary = {
            "name": server,
            "state": "ready" if upstream.ready else "down",
            "trouble": upstream.trouble,
            "accepted": [name for name in tools if name not in held],
            "quarantined": {name: held[name] for name in tools if name in held},
            "hidden": state.hidden,
            "unusable": dict(state.troubles),
        }
        summaries.append(summary)
    return summaries
