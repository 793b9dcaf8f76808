"""How upstreams stand, for people: what is quarantined, what changed in it, and their decision.

Accepting writes the lock file, so it holds for every process that reads it, and after a restart.
Exactly the definition that was shown is accepted, whatever its upstream says by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from counterseal.audit import Caller, Event, EventType
from counterseal.contract.sources.mcp import Change, Definition, Finding, Lock, State, describe
from counterseal.errors import CountersealError
from counterseal.gateway.upstreams import Behind
from counterseal.operations.operator import ALL_TENANTS

__all__ = ["Quarantined", "Quarantines", "summary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A tool that nobody may use until somebody has looked at it."""

    name: str
    """As agents know it."""
    server: str
    tool: str
    """As its server calls it."""
    why: str
    definition: str
    """The hash of what its server says of it now; empty when it says nothing any more."""
    pinned: str
    """The hash of what was accepted; empty when nothing was."""

    def record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class Quarantines:
    """What is kept out of a gateway, and letting it in."""

    def __init__(self, behind: Behind) -> None:
        self._behind = behind

    def list(self, tenant: str | None = None) -> list[Quarantined]:
        """By name; only what a tenant may know of, where one is given."""
        return sorted(
            (held for held, _ in self._all(tenant)), key=lambda held: (held.name, held.server)
        )

    def changes(self, name: str, tenant: str | None = None) -> Sequence[Change]:
        """What is different from what was accepted. CountersealError when it is not held."""
        _, finding = self._find(name, tenant)
        before = finding.pin.definition if finding.pin else None
        return describe(before or _nothing(finding), finding.seen or _nothing(finding))

    def accept(self, name: str, definition: str, *, by: str, tenant: str | None = None) -> None:
        """Let a tool in as it was shown, by its hash. CountersealError: it is not so any more."""
        held, finding = self._find(name, tenant)
        if finding.seen is None or finding.seen.hash != definition:
            raise CountersealError(f"{name} has changed since it was shown; look at it again")
        seen, at = finding.seen, datetime.now(UTC).isoformat(timespec="seconds")
        Lock.update(self._behind.lock, lambda lock: lock.accept(held.server, seen, by=by, at=at))
        self._note(held, by, "accepted", "")
        self._behind.judge()

    def refuse(self, name: str, *, by: str, reason: str, tenant: str | None = None) -> None:
        """Put on record that it stays out, and why."""
        held, _ = self._find(name, tenant)
        if not reason.strip():
            raise CountersealError("reason: say why; it is what the next person will read")
        self._note(held, by, "refused", reason[:1000])

    def _find(self, name: str, tenant: str | None) -> tuple[Quarantined, Finding]:
        found = next((pair for pair in self._all(tenant) if pair[0].name == name), None)
        if found is None:
            raise CountersealError(f"{name} is not quarantined")
        return found

    def _all(self, tenant: str | None) -> Iterator[tuple[Quarantined, Finding]]:
        names = {one.name: one for one in self._behind.runtime.registry.quarantined}
        for server, plan in self._behind.plans.items():
            if tenant is not None and plan.tenants and tenant not in plan.tenants:
                continue
            for finding in self._behind.seen[server].findings:
                name = plan.name(finding.tool) or ""
                if finding.state is not State.ACCEPTED and name in names:
                    yield _held(name, names[name].why.value, finding), finding

    def _note(self, held: Quarantined, by: str, decision: str, reason: str) -> None:
        runtime = self._behind.runtime
        caller = Caller(ALL_TENANTS, "", "", held.name, "", "counterseal", by, "")
        body = {**held.record(), "reason": reason}
        event = Event(EventType.QUARANTINED, caller, runtime.clock(), decision, body=body)
        runtime.store.note(event)


def _held(name: str, why: str, finding: Finding) -> Quarantined:
    return Quarantined(
        name=name,
        server=finding.server,
        tool=finding.tool,
        why=why,
        definition=finding.seen.hash if finding.seen else "",
        pinned=finding.pin.definition.hash if finding.pin else "",
    )


def _nothing(finding: Finding) -> Definition:
    """What stands for a definition that is not there."""
    return Definition.of({"name": finding.tool, "inputSchema": {"type": "object"}})


def summary(behind: Behind) -> list[dict[str, Any]]:
    """How each upstream stands, for an operator."""
    held = {one.name: one.why.value for one in behind.runtime.registry.quarantined}
    return [_told_of(behind, server, held) for server in behind.plans]


def _told_of(behind: Behind, server: str, held: dict[str, str]) -> dict[str, Any]:
    seen, upstream = behind.seen[server], behind.upstreams[server]
    mine = [name for name in behind.names.of(server) if name not in _passed_on(server)]
    return {
        "name": server,
        "state": "ready" if upstream.ready else "down",
        "trouble": upstream.trouble,
        "accepted": [name for name in mine if name not in held],
        "quarantined": {name: held[name] for name in mine if name in held},
        "hidden": seen.hidden,
        "unusable": dict(seen.troubles),
    }


def _passed_on(server: str) -> tuple[str, str]:
    return f"{server}.resources", f"{server}.prompts"
