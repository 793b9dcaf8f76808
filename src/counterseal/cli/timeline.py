"""Pages about calls: what each gate decided, and the events that are on record."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from counterseal.canonical import thaw
from counterseal.cli.render import can_show, heading, one_line, paragraph, table, title_line
from counterseal.gates import GATES, Verdict
from counterseal.gates.base import Decision, TimedDecision

if TYPE_CHECKING:
    from rich.console import RenderableType

    from counterseal.audit import Caller, Event
    from counterseal.call.call import Preview
    from counterseal.observation import Observation
    from counterseal.proposal import Principal

_MARKS: Final = {
    Verdict.ALLOW: ("✓", "+", "green"),
    Verdict.DENY: ("✗", "x", "red"),
    Verdict.REQUIRE_APPROVAL: ("?", "?", "yellow"),
    None: ("·", ".", "dim"),
}
"""By verdict: the mark, its ASCII substitute, and the style of both."""

_EVENT_STYLES: Final = {
    "tool.succeeded": "green",
    "tool.failed": "red",
    "tool.denied": "red",
    "approval.required": "yellow",
    "path.escalate": "yellow",
}


# A call, and a preview of one --------------------------------------------------------------------


def call_page(observation: Observation, principal: Principal) -> Iterator[RenderableType]:
    """Yield the gates' decisions, what the agent reads, and the code."""
    yield _title(observation.tool, observation.version, principal)
    yield Text()
    decisions = [
        decision for decision in observation.decisions if isinstance(decision, TimedDecision)
    ]
    yield _timeline(decisions, _execution(observation, decisions))
    yield heading("The agent reads")
    yield from (paragraph(line) for line in observation.for_model().splitlines())
    yield Text()
    held = observation.response.requires_approval and observation.approval_id is not None
    style = "green" if observation.ok else "yellow" if held else "red"
    yield Text.assemble(
        (observation.code.value, f"bold {style}"),
        f"  next action: {one_line(observation.next_action)}",
    )


def preview_page(preview: Preview, tool: str, principal: Principal) -> Iterator[RenderableType]:
    """Yield the gates' decisions, the arguments that the tool would get, and the outlook."""
    yield _title(tool, "", principal)
    yield Text()
    yield _timeline(preview.decisions)
    if preview.verdict == Verdict.DENY:
        for error in preview.decisions[-1].decision.field_errors:
            yield Text(f"  - {one_line(error.field or 'the call')}: {one_line(error.message)}")
    else:
        yield heading("The tool would get")
        yield paragraph(json.dumps(thaw(preview.arguments), ensure_ascii=False))
    yield Text()
    style = _MARKS[Verdict(preview.verdict)][2]
    code = f"  {preview.code}" if preview.code else ""
    yield Text.assemble((outlook(preview), f"bold {style}"), code)
    yield Text("Nothing was executed.", style="dim")


def preview_record(preview: Preview, tool: str) -> dict[str, Any]:
    """Return a preview as JSON data."""
    return {
        "tool": tool,
        "verdict": preview.verdict,
        "outlook": outlook(preview),
        "code": preview.code,
        "reason": preview.reason,
        "approvers": _approvers(preview),
        "arguments": thaw(preview.arguments),
        "decisions": [timed.record() for timed in preview.decisions],
    }


def outlook(preview: Preview) -> str:
    """Return what would happen to the call, in a few words."""
    if preview.verdict == Verdict.ALLOW:
        return "would execute"
    if preview.verdict == Verdict.REQUIRE_APPROVAL:
        number = _approvers(preview)
        return f"would be held for approval by {number} {'person' if number == 1 else 'people'}"
    return f"would be refused by {preview.decisions[-1].decision.gate}"


def _approvers(preview: Preview) -> int:
    if preview.verdict != Verdict.REQUIRE_APPROVAL:
        return 0
    return max([1, *(timed.decision.approvers or 0 for timed in preview.decisions)])


def _title(tool: str, version: str, principal: Principal) -> Text:
    return title_line(
        tool, version, agent=principal.agent, tenant=principal.tenant, user=principal.user
    )


def _timeline(decisions: Sequence[TimedDecision], *more: Sequence[Text]) -> RenderableType:
    by_gate = {timed.decision.gate: timed for timed in decisions}
    rows = [_gate_row(gate.name, by_gate.get(gate.name)) for gate in GATES]
    unit = "µs" if can_show("µ") else "us"
    return table([*rows, *more], titles=("Gate", f"{unit:>6}", "Rule", "Reason"))


def _gate_row(gate: str, timed: TimedDecision | None) -> Sequence[Text]:
    if timed is None:
        return _mark(None, gate), Text(), Text(), Text("not asked", style="dim")
    decision = timed.decision
    return (
        _mark(decision.verdict, gate),
        Text(f"{timed.nanoseconds / 1000:>6.1f}", style="dim"),
        Text(one_line(decision.rule or "")),
        Text(_reason(decision), style="dim" if decision.verdict is Verdict.ALLOW else ""),
    )


def _reason(decision: Decision) -> str:
    """Return the reason and the warnings, without the rule's name, which has its own column."""
    warnings = (warning.removesuffix(f" ({decision.rule})") for warning in decision.warnings)
    return one_line(" ".join(filter(None, (decision.reason, *warnings))))


def _execution(observation: Observation, decisions: Sequence[TimedDecision]) -> Sequence[Text]:
    """Return the last row of the timeline: whether the tool ran, and how it failed."""
    allowed = [timed for timed in decisions if timed.decision.verdict is Verdict.ALLOW]
    if len(allowed) < len(GATES):
        return _mark(None, "execution"), Text(), Text(), Text("not executed", style="dim")
    verdict = Verdict.ALLOW if observation.ok else Verdict.DENY
    failure = observation.errors[0].message if observation.errors and not observation.ok else ""
    return _mark(verdict, "execution"), Text(), Text(), Text(one_line(failure))


def _mark(verdict: Verdict | None, gate: str) -> Text:
    mark, ascii_mark, style = _MARKS[verdict]
    return Text.assemble((mark if can_show(mark) else ascii_mark, style), " ", gate)


# Events ------------------------------------------------------------------------------------------


def event_list(events: Sequence[tuple[str, Event]]) -> Iterator[RenderableType]:
    """Yield events in a table for each call."""
    for caller, group in groupby((event for _, event in events), lambda event: event.caller):
        yield _call_heading(caller)
        yield table(
            (
                f"{_time(event):%Y-%m-%d %H:%M:%S}",
                _event_type(event, width=22),
                one_line(event.decision),
                one_line(_code(event)),
            )
            for event in group
        )


def call_story(call_id: str, events: Sequence[tuple[str, Event]]) -> Iterator[RenderableType]:
    """Yield every event of a call, in the order in which they were recorded."""
    caller = next(event.caller for _, event in events if event.caller.call_id == call_id)
    days = {_time(event).date() for _, event in events}
    yield title_line(
        caller.tool, caller.version, agent=caller.agent, tenant=caller.tenant, user=caller.user
    )
    yield Text(f"{one_line(caller.call_id)} in run {one_line(caller.run_id)}")
    yield Text(f"{min(days)} (UTC), trace {one_line(caller.trace_id)}\n", style="dim")
    shape = "%H:%M:%S.%f" if len(days) == 1 else "%m-%d %H:%M:%S.%f"
    rows = [
        (
            _time(event).strftime(shape)[:-3],
            _event_type(event),
            one_line(event.decision),
            _details(event),
        )
        for _, event in events
    ]
    yield table(rows, titles=("Time", "Event", "Decision", "Code and details"))


def _call_heading(caller: Caller) -> Text:
    if not caller.call_id:
        return Text("(no call)", style="bold")
    return Text.assemble(
        (one_line(caller.call_id), "bold"),
        f"  {one_line(caller.tool)}",
        (f"  {one_line(caller.agent)}", "dim"),
    )


def _event_type(event: Event, width: int = 0) -> Text:
    return Text(event.type.value.ljust(width), style=_EVENT_STYLES.get(event.type.value, ""))


def _code(event: Event) -> str:
    """Return the event's code, unless the decision says the same."""
    code = event.body.get("code")
    return code if isinstance(code, str) and code != event.decision else ""


def _time(event: Event) -> datetime:
    return datetime.fromtimestamp(event.occurred_at, UTC)


def _details(event: Event) -> str:
    """Return the code, and the values that only this event has."""
    values = {name: value for name, value in event.body.items() if name not in ("code", "gates")}
    gates = event.body.get("gates")
    if isinstance(gates, Mapping):  # a gate that only allowed is recorded as a number
        reasons = {name: entry[1] for name, entry in gates.items() if not isinstance(entry, int)}
        values["gates"] = reasons
    if event.external_ref:
        values["external_ref"] = event.external_ref
    parts = [f"{name} {_value(value)}" for name, value in values.items() if value]
    return one_line(", ".join(filter(None, (_code(event), *parts))))


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_value, value))
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_value(item)}" for name, item in value.items())
    return str(value)
