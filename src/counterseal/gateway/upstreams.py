"""What is behind the gateway, under contract: which tools of which upstream may be used, as what.

A tool is registered from its pin, so an upstream that is down is missed and not forgotten. What is
new or changed is quarantined until a person accepts it, which every process finds in the lock; and
each connection itself sends nothing for a tool that it has not shown as it was accepted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final

from counterseal.audit import Caller, Event, EventType
from counterseal.config import ConfigError
from counterseal.contract.declare import Tool
from counterseal.contract.model import Contract
from counterseal.contract.sources.mcp import Definition, Finding, Lock, Pin, State
from counterseal.contract.tool_context import ASKER, RefusedError
from counterseal.errors import ContractError, CountersealError, Problem
from counterseal.gateway.asking import lacks
from counterseal.gateway.names import Names
from counterseal.gateway.passing import pass_through
from counterseal.gateway.plans import Plan, plans
from counterseal.operations.operator import ALL_TENANTS
from counterseal.proposal import Principal
from counterseal.registry import Grant, Quarantine, QuarantineReason, Refusal
from counterseal.runtime import Runtime
from counterseal.telemetry import measure
from counterseal.upstream import Upstream, Upstreams, mcp_tool

__all__ = ["Behind", "Plan", "Seen", "plans"]

_log = logging.getLogger("counterseal.gateway")

_LOOK: Final = 2.0
"""Seconds between two looks at the lock file."""
_WHY: Final = {
    State.CHANGED: QuarantineReason.CHANGED,
    State.NEW: QuarantineReason.NEW,
    State.GONE: QuarantineReason.GONE,
}


@dataclass(eq=False)
class Seen:
    """What is known of one upstream by now."""

    definitions: tuple[Definition, ...] | None = None
    """As they were last listed. None: never."""
    current: bool = False
    """Whether that was since it last said that they have changed."""
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it was tried, whatever came of it."""
    findings: list[Finding] = field(default_factory=list)
    hidden: int = 0
    troubles: dict[str, str] = field(default_factory=dict)
    """By tool: why it can't be used, for an operator."""
    listing: bool = False
    turn: int = 0
    """How often it has said that its tools changed."""


class Behind:
    """All upstreams of a gateway, and what of them may be used."""

    def __init__(
        self,
        runtime: Runtime,
        upstreams: Upstreams,
        plans: Mapping[str, Plan],
        lock: Path,
        *,
        grants: Iterable[Grant] = (),
    ) -> None:
        self.runtime = runtime
        self.upstreams = upstreams
        self.plans = dict(plans)
        self.lock = lock
        self._grants = list(grants)
        self.changed: Callable[[str, str], None] = lambda _server, _kind: None
        """Told which server's "resources", "prompts" or "resource:URI" may have changed."""
        self.seen = {server: Seen() for server in plans}
        self.names = Names(record.name for record in runtime.registry.records)
        self._stale: set[str] = set()
        self._stir = asyncio.Event()

    # --- beginning --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Register what is pinned, before anybody is connected. ConfigError: two of one name."""
        pinned = Lock.load(self.lock)
        for server, plan in self.plans.items():
            for pin in pinned.servers.get(server, {}).values():
                self._take_in(plan, pin, strict=True)
            for contract in pass_through(plan):
                shadow = self.names.claim(contract.name, server, contract.name, accepted=True)
                if shadow:
                    raise ConfigError(shadow)
                self._register(plan, contract)
            self.upstreams[server].on_change = partial(self._told, server)

    async def run(self) -> None:
        """Keep looking: at what upstreams say of themselves, and at the lock. Until cancelled."""
        self._stale.update(self.plans)
        stamp = self._stamp()
        async with asyncio.TaskGroup() as group:
            while True:
                for server in list(self._stale):
                    self._stale.discard(server)
                    group.create_task(self._refresh(server))
                self._stir.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK):
                        await self._stir.wait()
                if self._stamp() != stamp:
                    stamp = self._stamp()
                    self.judge()
                self._stale.update(self._missed())

    def judge(self) -> None:
        """Compare with the lock as it is now."""
        for server in self.plans:
            try:
                self._judge(server)
            except Exception:  # noqa: BLE001 - one upstream's oddities must not end the watch over all
                _log.exception("upstream %s could not be compared with the lock", server)

    def _missed(self) -> Iterator[str]:
        """Those that are there, and could not be listed when they should have been."""
        for server, seen in self.seen.items():
            if not seen.current and not seen.listing and self.upstreams[server].ready:
                yield server

    async def looked(self, seconds: float) -> None:
        """Wait until every upstream was tried once, or the time is over."""
        waits = [asyncio.ensure_future(seen.looked.wait()) for seen in self.seen.values()]
        if waits:
            await asyncio.wait(waits, timeout=seconds)
        for wait in waits:
            wait.cancel()

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = self.lock.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    # --- what upstreams say -----------------------------------------------------------------------

    def _told(self, server: str, kind: str) -> None:
        if kind == "tools":
            self.seen[server].current = False
            self.seen[server].turn += 1
            self._stale.add(server)
            self._stir.set()
        else:
            self.changed(server, kind)

    async def _refresh(self, server: str) -> None:
        seen = self.seen[server]
        turn, seen.listing = seen.turn, True
        try:
            listed = await self.upstreams[server].definitions()
            if turn != seen.turn:  # it has changed meanwhile, and is listed anew
                return
            seen.troubles.clear()
            seen.definitions = tuple(self._read(seen, listed))
            self._judge(server)
            seen.current = True
        except CountersealError as error:
            _log.warning("upstream %s could not be listed: %s", server, error)
        except Exception:  # noqa: BLE001 - one upstream's oddities must not end the watch over all
            _log.exception("upstream %s could not be listed", server)
        finally:
            seen.listing = False
        seen.looked.set()

    def _read(self, seen: Seen, listed: Sequence[Mapping[str, Any]]) -> Iterator[Definition]:
        names: set[str] = set()
        for wire in listed:
            try:
                definition = Definition.of(wire)
            except ValueError as error:
                seen.troubles[str(wire.get("name"))[:128]] = str(error)
                continue
            if definition.name in names:
                seen.troubles[definition.name] = "it is listed twice; only the first is looked at"
                continue
            names.add(definition.name)
            yield definition

    def _judge(self, server: str) -> None:
        """Compare what was listed with what is pinned, and let in or keep out accordingly."""
        plan, seen = self.plans[server], self.seen[server]
        try:
            pinned = Lock.load(self.lock)
        except CountersealError as error:
            _log.error("the lock can't be read, so nothing new is accepted: %s", error)
            return
        seen.hidden = 0
        if seen.definitions is None:  # not reached yet: what is pinned will be compared then
            for pin in pinned.servers.get(server, {}).values():
                self._take_in(plan, pin, strict=False)
            return
        seen.findings = pinned.compare(server, seen.definitions)
        for finding in seen.findings:
            if finding.state is State.ACCEPTED and finding.pin is not None:
                self._let_in(plan, finding.pin)
            else:
                self._keep_out(plan, finding)

    def _let_in(self, plan: Plan, pin: Pin) -> None:
        name = self._take_in(plan, pin, strict=False)
        if name is None:
            return
        if any(held.name == name for held in self.runtime.registry.quarantined):
            self.runtime.registry.release(name)
            self._note(EventType.RELEASED, plan.server, name, pin.definition.hash)

    def _keep_out(self, plan: Plan, finding: Finding) -> None:
        seen = self.seen[plan.server]
        name = plan.name(finding.tool)
        if name is None:
            seen.hidden += 1
            return
        shadow = self.names.claim(name, plan.server, finding.tool, accepted=False)
        if shadow:
            seen.troubles[finding.tool] = shadow
            return
        held = Quarantine.of(name, _WHY[finding.state], plan.tenants)
        if held not in self.runtime.registry.quarantined:
            self.runtime.registry.quarantine(held)
            definition = finding.seen.hash if finding.seen else ""
            self._note(EventType.QUARANTINED, plan.server, name, definition, held.why.value)

    # --- what may be used -------------------------------------------------------------------------

    def _take_in(self, plan: Plan, pin: Pin, *, strict: bool) -> str | None:
        """Register an accepted tool. Under which name; None when it is hidden, or can't be."""
        seen = self.seen[plan.server]
        try:
            contract = plan.contract(pin.definition, pin.revision)
        except ContractError as error:
            if strict and plan.overlay is not None and pin.definition.name in plan.overlay.tools:
                raise
            seen.troubles[pin.definition.name] = str(error)
            return None
        if contract is None:
            seen.hidden += 1
            return None
        shadow = self.names.claim(contract.name, plan.server, pin.definition.name, accepted=True)
        if shadow:
            if strict:
                raise ConfigError(shadow)
            seen.troubles[pin.definition.name] = shadow
            return None
        try:
            self._register(plan, contract)
        except ContractError as error:  # most likely a grant that makes no sense
            if strict:
                raise
            seen.troubles[pin.definition.name] = str(error)
            return None
        return contract.name

    def _register(self, plan: Plan, contract: Contract) -> None:
        registry = self.runtime.registry
        line = registry.versions(contract.name)
        same = next((record for record in line if record.version == contract.version), None)
        if same is not None and same.contract.mcp == contract.mcp:
            return
        if same is not None:  # the lock was begun anew, or is another branch's
            told = f"revision {contract.version} is another definition here; start the gateway anew"
            raise ContractError([Problem(rule="pin-reused", tool=contract.name, message=told)])
        grants = [grant for grant in self._grants if grant.tool == contract.name]
        tool = self._guarded(contract, self.upstreams[plan.server])
        self.runtime.register(tool, grants=grants, allowed_tenants=plan.tenants)
        for record in line:
            registry.supersede(record.name, record.version, by=contract.version)

    def _guarded(self, contract: Contract, upstream: Upstream) -> Tool[..., Any]:
        """The tool, which leaves word of what the client in front of its call could not do."""
        made = mcp_tool(contract, upstream)
        call = made.function

        async def guarded(**arguments: Any) -> Any:
            ASKER.set(upstream.name)  # a tool runs in a context of its own
            began, failed = monotonic(), None
            try:
                return await call(**arguments)
            except BaseException as error:
                failed = type(error).__name__
                if isinstance(error, RefusedError):
                    lacks(error)
                raise
            finally:
                about = _about(contract, upstream, failed)
                measure("mcp.client.operation.duration", monotonic() - began, about)

        return replace(made, function=guarded)

    def _note(
        self, kind: EventType, server: str, name: str, definition: str, why: str = ""
    ) -> None:
        caller = Caller(ALL_TENANTS, "", "", name, "", "counterseal", None, "")
        body = {"server": server, "definition": definition, **({"why": why} if why else {})}
        now = self.runtime.clock()
        self.runtime.store.note(Event(kind, caller, now, why or "accepted", body=body))

    # --- to be looked at --------------------------------------------------------------------------

    def uses(self, who: Principal, server: str, what: str) -> bool:
        """Whether a principal may use an upstream's `resources` or `prompts`."""
        record = self.runtime.registry.resolve(f"{server}.{what}", tenant=who.tenant, run_id="")
        if isinstance(record, Refusal):
            return False
        return isinstance(self.runtime.registry.authorize(record, who), Grant)

    def relays(self, contract: Contract) -> bool:
        """Whether the upstream that carries a contract out may ask something of the client."""
        return contract.mcp is not None and bool(self.upstreams[contract.mcp.server].settings.relay)

    def idle_grants(self) -> list[str]:
        """Tools that grants name and nobody has, as far as all upstreams could be asked."""
        if any(seen.definitions is None for seen in self.seen.values()):
            return []
        held = {one.name for one in self.runtime.registry.quarantined}
        wanted = {grant.tool for grant in self._grants} - held - set(self.names)
        return sorted(wanted)


_METHODS: Final = {"tool": "tools/call", "resource": "resources/read", "prompt": "prompts/get"}


def _about(contract: Contract, upstream: Upstream, failed: str | None) -> dict[str, Any]:
    """A request to an upstream in the words of the conventions for MCP."""
    binding = contract.mcp
    kind = "tool" if binding is None else binding.kind
    return {
        "mcp.method.name": _METHODS[kind],
        "mcp.protocol.version": upstream.version or None,
        "gen_ai.tool.name": None if binding is None else binding.tool or None,
        "error.type": failed,
    }
