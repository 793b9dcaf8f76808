"""The quarantine of upstreams' tools, for operators: what is held, what changed, their decision.

Accepting a tool writes the lock file, so it holds for every process and after a restart. Exactly
the definition that was shown is accepted, whatever the upstream lists by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from counterseal.audit import Caller, Event, EventType
from counterseal.contract.sources.mcp import (
    Change,
    Definition,
    Lock,
    LockFinding,
    PinState,
    describe,
)
from counterseal.errors import CountersealError
from counterseal.gateway.upstream_tools import UpstreamTools
from counterseal.operations.operator import ALL_TENANTS


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedTool:
    """A tool that can't be used until an operator has decided on it."""

    name: str
    """The name that agents see."""
    server: str
    tool: str
    """The server's name for it."""
    why: str
    definition: str
    """The hash of its definition as listed now; empty if it is not listed any more."""
    pinned: str
    """The hash of the accepted definition; empty if there is none."""

    def record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class QuarantinedTools:
    """The quarantined tools of a gateway, and decisions on them."""

    def __init__(self, upstreams: UpstreamTools) -> None:
        self._upstreams = upstreams

    def list(self, tenant: str | None = None) -> list[QuarantinedTool]:
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

    def _find(self, name: str, tenant: str | None) -> tuple[QuarantinedTool, LockFinding]:
        pair = next((pair for pair in self._all(tenant) if pair[0].name == name), None)
        if pair is None:
            raise CountersealError(f"{name} is not quarantined")
        return pair

    def _all(self, tenant: str | None) -> Iterator[tuple[QuarantinedTool, LockFinding]]:
        names = {each.name: each for each in self._upstreams.runtime.registry.quarantined}
        for server, plan in self._upstreams.plans.items():
            if tenant is not None and plan.tenants and tenant not in plan.tenants:
                continue
            for finding in self._upstreams.states[server].findings:
                name = plan.name(finding.tool) or ""
                if finding.state is not PinState.ACCEPTED and name in names:
                    yield _quarantined(name, names[name].why.value, finding), finding

    def _note(self, held: QuarantinedTool, by: str, decision: str, reason: str) -> None:
        runtime = self._upstreams.runtime
        caller = Caller(ALL_TENANTS, "", "", held.name, "", "counterseal", by, "")
        body = {**held.record(), "reason": reason}
        event = Event(EventType.QUARANTINED, caller, runtime.clock(), decision, body=body)
        runtime.store.note(event)


def _quarantined(name: str, why: str, finding: LockFinding) -> QuarantinedTool:
    return QuarantinedTool(
        name=name,
        server=finding.server,
        tool=finding.tool,
        why=why,
        definition=finding.definition.hash if finding.definition else "",
        pinned=finding.pin.definition.hash if finding.pin else "",
    )


def _empty(finding: LockFinding) -> Definition:
    """Return an empty definition, to compare a new or removed tool with."""
    return Definition.of({"name": finding.tool, "inputSchema": {"type": "object"}})


def upstream_summaries(upstreams: UpstreamTools) -> list[dict[str, Any]]:
    """Return the state of each upstream and of its tools, for an operator."""
    quarantined = {each.name: each.why.value for each in upstreams.runtime.registry.quarantined}
    return [_summary(upstreams, server, quarantined) for server in upstreams.plans]


def _summary(upstreams: UpstreamTools, server: str, quarantined: dict[str, str]) -> dict[str, Any]:
    state, upstream = upstreams.states[server], upstreams.upstreams[server]
    relayed = (f"{server}.resources", f"{server}.prompts")
    tools = [name for name in upstreams.names.of(server) if name not in relayed]
    return {
        "name": server,
        "state": "ready" if upstream.ready else "down",
        "trouble": upstream.trouble,
        "accepted": [name for name in tools if name not in quarantined],
        "quarantined": {name: quarantined[name] for name in tools if name in quarantined},
        "hidden": state.hidden,
        "unusable": dict(state.troubles),
    }
