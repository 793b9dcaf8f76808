"""A call as a page: what each gate said and how long it took, then what came of it.

Also a plan, which is the same without an outcome.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from counterseal.canonical import thaw
from counterseal.cli.layout import heading, paragraph, table
from counterseal.cli.output import one_line, safe
from counterseal.gates import GATES, Verdict
from counterseal.gates.base import Decision, TimedDecision

if TYPE_CHECKING:
    from rich.console import RenderableType

    from counterseal.observation import Observation
    from counterseal.proposal import Principal
    from counterseal.runtime import Preview

__all__ = ["call_page", "outlook", "plan_page", "plan_record"]

_MARKS = {
    Verdict.ALLOW: ("✓", "+", "green"),
    Verdict.DENY: ("✗", "x", "red"),
    Verdict.REQUIRE_APPROVAL: ("?", "?", "yellow"),
    None: ("·", ".", "dim"),
}
"""By verdict: the mark, the one for terminals that lack it, and the style of both."""


def call_page(seen: Observation, principal: Principal) -> Iterator[RenderableType]:
    """What was decided, what the agent reads, and how it ended."""
    yield _title(seen.tool, seen.version, principal)
    yield Text()
    asked = [one for one in seen.decisions if isinstance(one, TimedDecision)]
    yield _timeline(asked, _execution(seen, asked))
    yield heading("The agent reads")
    yield from (paragraph(line) for line in seen.for_model().splitlines())
    yield Text()
    held = seen.response.requires_approval and seen.approval_id is not None
    style = "green" if seen.ok else "yellow" if held else "red"
    yield Text.assemble(
        (seen.code.value, f"bold {style}"), f"  next action: {one_line(seen.next_action)}"
    )


def plan_page(seen: Preview, tool: str, principal: Principal) -> Iterator[RenderableType]:
    """What would be decided, and what would come of it."""
    yield _title(tool, "", principal)
    yield Text()
    yield _timeline(seen.decisions)
    if seen.verdict == Verdict.DENY:
        for error in seen.decisions[-1].decision.field_errors:
            yield Text(f"  - {one_line(error.field or 'the call')}: {one_line(error.message)}")
    else:
        yield heading("The tool would get")
        yield paragraph(json.dumps(thaw(seen.arguments), ensure_ascii=False))
    yield Text()
    style = _MARKS[Verdict(seen.verdict)][2]
    code = f"  {seen.code}" if seen.code else ""
    yield Text.assemble((outlook(seen), f"bold {style}"), code)
    yield Text("Nothing was executed.", style="dim")


def plan_record(seen: Preview, tool: str) -> dict[str, Any]:
    """The plan as plain JSON data."""
    return {
        "tool": tool,
        "verdict": seen.verdict,
        "outlook": outlook(seen),
        "code": seen.code,
        "reason": seen.reason,
        "approvers": _approvers(seen),
        "arguments": thaw(seen.arguments),
        "decisions": [timed.record() for timed in seen.decisions],
    }


def outlook(seen: Preview) -> str:
    """What would happen, in a few words."""
    if seen.verdict == Verdict.ALLOW:
        return "would execute"
    if seen.verdict == Verdict.REQUIRE_APPROVAL:
        number = _approvers(seen)
        return f"would be held for approval by {number} {'person' if number == 1 else 'people'}"
    return f"would be refused by {seen.decisions[-1].decision.gate}"


def _approvers(seen: Preview) -> int:
    if seen.verdict != Verdict.REQUIRE_APPROVAL:
        return 0
    return max([1, *(timed.decision.approvers or 0 for timed in seen.decisions)])


def _title(tool: str, version: str, principal: Principal) -> Text:
    user = f", user {safe(principal.user)}" if principal.user else ""
    return Text.assemble(
        (safe(tool), "bold"),
        (f" {safe(version)}" if version else "", "dim"),
        f"  as {safe(principal.agent)} ",
        (f"(tenant {safe(principal.tenant)}{user})", "dim"),
    )


# The timeline ------------------------------------------------------------------------------------


def _timeline(asked: Sequence[TimedDecision], *more: Sequence[Text]) -> RenderableType:
    by_gate = {timed.decision.gate: timed for timed in asked}
    rows = [_row(gate.name, by_gate.get(gate.name)) for gate in GATES]
    unit = "µs" if _can_show("µ") else "us"
    return table([*rows, *more], titles=("Gate", f"{unit:>6}", "Rule", "Reason"))


def _row(gate: str, timed: TimedDecision | None) -> Sequence[Text]:
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
    """A gate that allows may have something to remark; it need not name its rule twice."""
    remarks = (remark.removesuffix(f" ({decision.rule})") for remark in decision.warnings)
    return one_line(" ".join(filter(None, (decision.reason, *remarks))))


def _execution(seen: Observation, asked: Sequence[TimedDecision]) -> Sequence[Text]:
    """The last row: whether the tool ran, and what is wrong if it did not do well."""
    allowed = [timed for timed in asked if timed.decision.verdict is Verdict.ALLOW]
    if len(allowed) < len(GATES):
        return _mark(None, "execution"), Text(), Text(), Text("not executed", style="dim")
    verdict = Verdict.ALLOW if seen.ok else Verdict.DENY
    failure = seen.errors[0].message if seen.errors and not seen.ok else ""
    return _mark(verdict, "execution"), Text(), Text(), Text(one_line(failure))


def _mark(verdict: Verdict | None, gate: str) -> Text:
    mark, plain, style = _MARKS[verdict]
    return Text.assemble((mark if _can_show(mark) else plain, style), " ", gate)


def _can_show(mark: str) -> bool:
    try:
        mark.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
