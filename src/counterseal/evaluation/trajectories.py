"""Trajectories: what an agent did with its tools in one run, as data.

`of_run` reads a run from the record: every fact about a use of a tool comes from events, ledger and
vault, and none from the agent. `formats/` reads trajectories of other programs, in which only tool,
arguments and answer are known; `scenarios run --agent FILE` proposes them again for the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from counterseal.audit import Event, EventType
from counterseal.audit.events import CallFact, filed, read_tally
from counterseal.canonical import thaw
from counterseal.ledger.requests import EventFilter
from counterseal.operations.auditor import NotKeptError, open_capture
from counterseal.runtime import Runtime
from counterseal.views.call_page import ModelInput

OK: Final = ("SUCCESS", "PARTIAL_SUCCESS")
_ALWAYS: Final = ("tool", "arguments", "name", "duration_ms")
_APPROVALS: Final = {
    EventType.APPROVAL_GRANTED: "approved",
    EventType.APPROVAL_REJECTED: "rejected",
    EventType.APPROVAL_EXPIRED: "expired",
    EventType.APPROVAL_VOID: "void",
}
_VERIFIED: Final = {
    EventType.VERIFIED: True,
    EventType.UNVERIFIED: False,
    EventType.OVERTAKEN: True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCall:
    """One proposal of an agent, and its outcome. A host that repeats a held call makes one use."""

    tool: str
    arguments: Any = None
    """As proposed and redacted; None where they were not kept."""
    id: str = ""
    """The caller's id of the call, else Counterseal's own."""
    code: str | None = None
    """None in trajectories of other programs."""
    answer: str = ""
    """The text that the model read, where it is kept."""
    gate: str | None = None
    """The gate that refused it."""
    rule: str | None = None
    mutates: bool = False
    executed: bool = False
    unknown: bool = False
    """Executed, with an unknown outcome."""
    repeated: bool = False
    """Answered from the ledger: nothing was executed again."""
    approval: str = ""
    """`asked`, `approved`, `rejected`, `expired` or `void`; empty if no approval was required."""
    unproven: bool = False
    """An approval token that does not prove an approval came with it."""
    repair_asked: bool = False
    """The first refusal of a repair loop."""
    repaired: bool = False
    """A success that ended a repair loop."""
    verified: bool | None = None
    """None if there was nothing to verify."""
    cut: bool = False
    """The output was larger than the contract allows, and the model got a summary."""
    latency_ms: int | None = None
    cost: float = 0.0
    currency: str = ""

    @property
    def ok(self) -> bool:
        return self.code in OK

    @property
    def changed(self) -> bool:
        """Whether it changed something, or may have changed it."""
        return self.executed and self.mutates and (self.ok or self.unknown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """What an agent did for one objective."""

    name: str
    """The name of the scenario, or the id that the other program gave the run."""
    objective: str = ""
    uses: tuple[AgentCall, ...] = ()
    words: str = ""
    """The agent's last words. No score depends on them."""
    model: str = ""
    tokens: int = 0
    started_at: float = 0.0
    """Seconds since the epoch."""
    duration_ms: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Other facts that the other program reports, such as its own score."""

    def record(self) -> dict[str, Any]:
        """Return plain JSON data, without fields that have their default value."""
        return {**_given(self), "uses": [_given(use) for use in self.uses]}

    @classmethod
    def from_record(cls, data: Mapping[str, Any]) -> Trajectory:
        """Return the trajectory of a record. ValueError says which field is missing or unknown."""
        uses = data.get("uses", [])
        if not isinstance(uses, list) or not all(isinstance(use, Mapping) for use in uses):
            raise ValueError("uses must be a list of mappings")
        made = tuple(AgentCall(**_known(AgentCall, use, "tool")) for use in uses)
        return replace(cls(**_known(cls, data, "name")), uses=made)


def _given(item: Trajectory | AgentCall) -> dict[str, Any]:
    defaults = {one.name: one.default for one in fields(item)}
    return {
        name: value
        for name, value in asdict(item).items()
        if value != defaults[name] or name in _ALWAYS
    }


def _known(kind: type, data: Mapping[str, Any], needed: str) -> dict[str, Any]:
    names = {one.name for one in fields(kind)}
    unknown = sorted(data.keys() - names)
    if unknown:
        raise ValueError(f"{unknown[0]} is not a field of a {kind.__name__}")
    if not isinstance(data.get(needed), str):
        raise ValueError(f"a {kind.__name__} needs {needed}, a text")
    return dict(data)


def parsed_arguments(arguments: Any) -> Any:
    """Return arguments as data where they are JSON text, else as they are."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


# --- from the record ------------------------------------------------------------------------------


async def of_run(runtime: Runtime, tenant: str, run_id: str, name: str = "") -> Trajectory:
    """Return a run from the record; without uses if the run has no calls."""
    events = [event for _, event in await runtime.store.search(tenant, EventFilter(run_id=run_id))]
    uses: dict[tuple[Any, ...], AgentCall] = {}
    of_call: dict[str, tuple[Any, ...]] = {}
    of_approval: dict[Any, tuple[Any, ...]] = {}
    captures = {event.caller.call_id: event for event in events if "captured" in event.body}
    for event in events:
        code, tally, cost = filed(event.type, event.decision, event.body)
        known = of_call.get(event.caller.call_id) or of_approval.get(event.body.get("approval_id"))
        if code is None or tally is None:
            if known is not None:
                uses[known] = _aftermath(uses[known], event)
            continue
        if "system" in event.body:
            continue  # a reversal, which no agent proposed
        own = event.caller.caller_call_id or event.caller.call_id
        place = known or (own, event.caller.tool, event.body.get("payload_hash"))
        of_call[event.caller.call_id] = place
        if "approval_id" in event.body:
            of_approval[event.body["approval_id"]] = place
        use = uses.get(place) or AgentCall(tool=event.caller.tool, id=own)
        use = _ended(use, event, code, read_tally(tally)[2])
        use = replace(use, cost=use.cost + (cost or 0.0))
        if use.arguments is None and event.caller.call_id in captures:
            capture = captures[event.caller.call_id]
            use = replace(use, arguments=await _arguments(capture, runtime, tenant))
        uses[place] = await _with_answer(use, event, runtime, tenant)
    run = await runtime.store.find_run(tenant, run_id)
    first = min((event.occurred_at for event in events), default=0.0)
    last = max((event.occurred_at for event in events), default=0.0)
    spent = await runtime.store.recall(tenant, run_id, None)
    return Trajectory(
        name=name or run_id,
        objective=(run.objective if run else None) or "",
        uses=tuple(uses.values()),
        tokens=spent.run_counters.get("tokens", 0),
        started_at=first,
        duration_ms=round((last - first) * 1000),
    )


def _ended(use: AgentCall, event: Event, code: str, facts: int) -> AgentCall:
    """Return the use after an event that answered its call. A repeat adds only its code."""
    body = event.body
    if event.type is EventType.REPLAYED:
        return replace(use, code=code, repeated=use.code is None, mutates="mutates" in body)
    latency = body.get("latency_ms")
    return replace(
        use,
        code=code,
        gate=body.get("gate"),
        rule=body.get("rule"),
        mutates="mutates" in body,
        executed=use.executed or bool(facts & CallFact.EXECUTED),
        unknown=bool(facts & CallFact.EXECUTED) and not facts & CallFact.COMPLETE,
        approval="asked" if event.type is EventType.APPROVAL_REQUIRED else use.approval,
        unproven=use.unproven or bool(facts & CallFact.UNAPPROVED),
        repair_asked=use.repair_asked or bool(facts & CallFact.ASKED_TO_MEND),
        repaired=use.repaired or bool(facts & CallFact.MENDED),
        verified=False if facts & CallFact.TO_VERIFY else use.verified,
        latency_ms=latency if isinstance(latency, int) else use.latency_ms,
        currency=str(body.get("currency", use.currency)),
    )


def _aftermath(use: AgentCall, event: Event) -> AgentCall:
    """Return the use after an event that came later: a person's decision, or a verification."""
    if event.type in _APPROVALS:
        return replace(use, approval=_APPROVALS[event.type])
    if event.type in _VERIFIED:
        return replace(use, verified=_VERIFIED[event.type])
    return replace(use, unproven=True) if event.type is EventType.UNPROVEN else use


async def _arguments(event: Event, runtime: Runtime, tenant: str) -> Any:
    try:
        capture = await open_capture(runtime.store, runtime.vault, tenant, event)
    except NotKeptError:
        return None
    return thaw(capture.arguments)


async def _with_answer(use: AgentCall, event: Event, runtime: Runtime, tenant: str) -> AgentCall:
    """Return the use with the text that the model read, as far as it is kept."""
    entries = await runtime.store.look_up_call(tenant, event.caller.call_id)
    shown = await ModelInput.of_call(runtime, tenant, event, entries[0] if entries else None)
    if shown.text is None or shown.record is None:
        return use
    data = shown.record["result_payload"]["data"]
    cut = isinstance(data, Mapping) and data.get("truncated") is True
    return replace(use, answer=shown.text, cut=cut)


def changes(uses: Sequence[AgentCall]) -> list[AgentCall]:
    """Return the uses that changed something, or may have changed it."""
    return [use for use in uses if use.changed]
