"""Events and reports as pages for people, and moments as people write them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from counterseal.cli.layout import table
from counterseal.cli.output import fail, note, one_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from counterseal.audit import Caller, Event
    from counterseal.audit.report import Finding, Report

__all__ = ["call_story", "event_list", "moment", "print_report"]

_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_STYLES: Final = {
    "tool.succeeded": "green",
    "tool.failed": "red",
    "tool.denied": "red",
    "approval.required": "yellow",
    "path.escalate": "yellow",
}


def moment(option: str, text: str, now: float) -> float:
    """A time in ISO form (UTC unless it says otherwise), or how long ago it was."""
    ago = _AGO.fullmatch(text.strip())
    if ago:
        return max(0.0, now - float(ago[1]) * _SECONDS[ago[2]])
    try:
        given = datetime.fromisoformat(text.strip())
    except ValueError:
        fail(
            f"{option}: {text!r} is no time.",
            "Write 2026-07-31, 2026-07-31T12:00 (UTC) or 2026-07-31T12:00+02:00; or 30m, 2h, 7d for"
            " so long ago.",
        )
    return (given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp()


# Lists -------------------------------------------------------------------------------------------


def event_list(events: Sequence[tuple[str, Event]]) -> Iterator[RenderableType]:
    """Events under the calls that they are of."""
    for caller, several in groupby((event for _, event in events), lambda event: event.caller):
        yield _heading(caller)
        yield table(
            (
                f"{_time(event):%Y-%m-%d %H:%M:%S}",
                _kind(event, width=22),
                one_line(event.decision),
                one_line(_code(event)),
            )
            for event in several
        )


def _heading(caller: Caller) -> Text:
    if not caller.call_id:
        return Text("(no call)", style="bold")
    return Text.assemble(
        (one_line(caller.call_id), "bold"),
        f"  {one_line(caller.tool)}",
        (f"  {one_line(caller.agent)}", "dim"),
    )


def _kind(event: Event, width: int = 0) -> Text:
    return Text(event.type.value.ljust(width), style=_STYLES.get(event.type.value, ""))


def _code(event: Event) -> str:
    """Where it says more than the decision."""
    code = event.body.get("code")
    return code if isinstance(code, str) and code != event.decision else ""


def _time(event: Event) -> datetime:
    return datetime.fromtimestamp(event.occurred_at, UTC)


# One call ----------------------------------------------------------------------------------------


def call_story(call_id: str, events: Sequence[tuple[str, Event]]) -> Iterator[RenderableType]:
    """Every event of a call, in the order in which they were recorded."""
    caller = next(event.caller for _, event in events if event.caller.call_id == call_id)
    days = {_time(event).date() for _, event in events}
    user = f", user {one_line(caller.user)}" if caller.user else ""
    yield Text.assemble(
        (one_line(caller.tool), "bold"),
        (f" {one_line(caller.version)}", "dim"),
        f"  as {one_line(caller.agent)} ",
        (f"(tenant {one_line(caller.tenant)}{user})", "dim"),
    )
    yield Text(f"{one_line(caller.call_id)} in run {one_line(caller.run_id)}")
    yield Text(f"{min(days)} (UTC), trace {one_line(caller.trace_id)}\n", style="dim")
    shape = "%H:%M:%S.%f" if len(days) == 1 else "%m-%d %H:%M:%S.%f"
    rows = [
        (
            _time(event).strftime(shape)[:-3],
            _kind(event),
            one_line(event.decision),
            _about(event),
        )
        for _, event in events
    ]
    yield table(rows, titles=("Time", "Event", "Decision", "Code, and more"))


def _about(event: Event) -> str:
    """Its code where it has one, and what else only this event has."""
    told = {name: value for name, value in event.body.items() if name not in ("code", "gates")}
    gates = event.body.get("gates")
    if isinstance(gates, Mapping):  # those that did more than simply allow
        told["gates"] = {name: said[1] for name, said in gates.items() if not isinstance(said, int)}
    if event.external_ref:
        told["external_ref"] = event.external_ref
    parts = [f"{name} {_value(value)}" for name, value in told.items() if value]
    return one_line(", ".join(filter(None, (_code(event), *parts))))


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_value, value))
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_value(one)}" for name, one in value.items())
    return str(value)


# Reports -----------------------------------------------------------------------------------------


def print_report(report: Report) -> None:
    """One line on a tenant, and one for everything that is wrong."""
    segments = _number(report.segments, "segment")
    told = f"{one_line(report.tenant)}: {_number(report.events, 'event')} in {segments}: "
    told += "intact" if report.ok else _number(report.found, "finding")
    print(f"{told}; {_sealing(report)}")
    for finding in report.findings:
        print(f"  {finding.kind}: {_place(finding)}{one_line(finding.message)}")
    if report.found > len(report.findings):
        print(f"  … and {report.found - len(report.findings):,} more")
    if report.events and not report.checkpoints:
        note(
            f"{report.tenant}: nothing is sealed, so whoever can write to the store could have"
            " chained all of it anew. `counterseal audit seal` seals it."
        )


def _sealing(report: Report) -> str:
    parts = [f"{report.unsealed:,} unsealed"]
    if report.sealed:
        parts.insert(0, f"{report.sealed:,} sealed by {_number(report.checkpoints, 'checkpoint')}")
    if report.erased:
        unsealed = f" ({report.erased_unsealed:,} on unsealed record)"
        parts.append(f"{report.erased:,} erased{unsealed if report.erased_unsealed else ''}")
    return ", ".join(parts)


def _place(finding: Finding) -> str:
    parts = [finding.event_id] if finding.event_id else []
    if finding.segment is not None:
        place = "" if finding.place is None else f", place {finding.place}"
        parts.append(f"(segment {finding.segment}{place})")
    return f"{one_line(' '.join(parts))}: " if parts else ""


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
