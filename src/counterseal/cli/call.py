"""`counterseal call`: try a call from the shell, and see what every gate decided.

Runs on the project's store. A project without one uses memory: budgets, keys and held calls are
forgotten when the command ends. The tool itself really runs in both cases.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer import Argument, Option

from counterseal.cli.options import AsJson, with_groups
from counterseal.cli.project import (
    HELD,
    REFUSED,
    Acting,
    in_runtime,
    open_project,
    project_settings,
)
from counterseal.cli.render import (
    Parts,
    can_show,
    fail,
    heading,
    line,
    note,
    one_line,
    paragraph,
    render,
    table,
    title_line,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from counterseal.execution.attempt import Progress as ToolProgress
    from counterseal.gates.base import TimedDecision
    from counterseal.observation import Observation
    from counterseal.proposal import Principal, Proposal
    from counterseal.runtime import Runtime

_MARKS: Final = {
    "allow": ("✓", "+", "green"),
    "deny": ("✗", "x", "red"),
    "require_approval": ("?", "?", "yellow"),
    None: ("·", ".", "dim"),
}
"""By verdict: the mark, its ASCII substitute, and the style of both."""


@with_groups
def call(
    tool: Annotated[str, Argument(metavar="TOOL", help="A tool's name.")],
    arguments: Annotated[
        str, Argument(metavar="ARGUMENTS", help="JSON; @FILE reads a file, - reads stdin.")
    ] = "{}",
    *,
    caller: Acting,
    scopes: Annotated[
        list[str] | None,
        Option(
            "--scope",
            metavar="S",
            help="Scope to act with, instead of the agent's own; can be repeated.",
        ),
    ] = None,
    roles: Annotated[
        list[str] | None,
        Option(
            "--role",
            metavar="R",
            help="Role to act with, instead of the agent's own; can be repeated.",
        ),
    ] = None,
    run: Annotated[str | None, Option(metavar="RUN", help="The run of the call.")] = None,
    key: Annotated[str | None, Option(metavar="K", help="The idempotency key.")] = None,
    timeout: Annotated[
        float | None, Option(metavar="SECONDS", help="How long to wait for the result.", min=0)
    ] = None,
    plan: Annotated[bool, Option("--plan", help="Ask the gates only; execute nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Try a call, and show what each gate decides.

    Tools, grants, policy and the agent's tenant, user, scopes and roles come from counterseal.toml.
    A tool's secrets are read from COUNTERSEAL_SECRET_<NAME>. The tool really runs; the call is kept
    in the [store], or forgotten if there is none. Exits with 1 if the call is refused or fails, and
    with 3 if a person has to approve it, or the client has to carry it out.
    """
    from counterseal.config import pinned_contracts
    from counterseal.proposal import Proposal

    settings = project_settings()
    principal = caller.principal(settings, roles=roles, scopes=scopes)
    proposal = Proposal(tool=tool, arguments=_read(arguments), run_id=run, key=key)
    runtime = open_project(settings)
    if plan:
        _preview(runtime, proposal, principal, as_json=as_json)
        return
    for server, contracts in pinned_contracts(settings).items() if settings.upstreams else ():
        if any(contract.name == tool for contract in contracts):
            fail(
                f"{tool} is a tool of the upstream {server}, which only the gateway calls.",
                "Start `counterseal serve` and call it there; `--plan` asks the gates here.",
            )
    _call(runtime, proposal, principal, timeout, as_json=as_json)


def _read(arguments: str) -> str | bytes:
    """Return the arguments as they are: the first gate checks that they are JSON."""
    if arguments == "-":
        return sys.stdin.buffer.read()
    if not arguments.startswith("@"):
        return arguments
    file = Path(arguments[1:])
    try:
        return file.read_bytes()
    except OSError as error:
        fail(f"Can't read {file}: {error.strerror}.")


def _call(
    runtime: Runtime,
    proposal: Proposal,
    principal: Principal,
    timeout: float | None,
    *,
    as_json: bool,
) -> None:
    def show(progress: ToolProgress) -> None:
        total = "" if progress.total is None else f" of {progress.total:g}"
        note(one_line(f"{progress.done:g}{total} {progress.message}"))

    observation = in_runtime(
        runtime, lambda one: one.submit(proposal, principal, timeout=timeout, progress=show)
    )
    render(observation.record(), lambda: _call_page(observation, principal), as_json=as_json)
    if not observation.ok:
        held = observation.code == "CONFIRMATION_MISSING" or _is_handed_over(observation)
        raise typer.Exit(HELD if held else REFUSED)


def _is_handed_over(observation: Observation) -> bool:
    """Return True for a call that the client, here the user of this command, is to carry out."""
    from counterseal.call.handover import CARRY_OUT

    return observation.next_action == CARRY_OUT


def _preview(runtime: Runtime, proposal: Proposal, principal: Principal, *, as_json: bool) -> None:
    from counterseal.canonical import thaw

    preview = in_runtime(runtime, lambda opened: opened.preview(proposal, principal))
    held = preview.verdict == "require_approval"
    needed = max([1, *(one.decision.approvers or 0 for one in preview.decisions)]) if held else 0
    outlook = "would execute"
    if held:
        people = "person" if needed == 1 else "people"
        outlook = f"would be held for approval by {needed} {people}"
    elif preview.verdict != "allow":
        outlook = f"would be refused by {preview.decisions[-1].decision.gate}"
    record = {
        "tool": proposal.tool,
        "verdict": preview.verdict,
        "outlook": outlook,
        "code": preview.code,
        "reason": preview.reason,
        "approvers": needed,
        "arguments": thaw(preview.arguments),
        "decisions": [timed.record() for timed in preview.decisions],
    }

    def page() -> Parts:
        yield title_line(proposal.tool, "", principal)
        yield ""
        yield _timeline(preview.decisions)
        if preview.verdict == "deny":
            for error in preview.decisions[-1].decision.field_errors:
                yield line(f"  - {one_line(error.field or 'the call')}: {one_line(error.message)}")
        else:
            yield heading("The tool would get")
            yield paragraph(json.dumps(record["arguments"], ensure_ascii=False))
        yield ""
        code = f"  {preview.code}" if preview.code else ""
        yield line((outlook, f"bold {_MARKS[preview.verdict][2]}"), code)
        yield line(("Nothing was executed.", "dim"))

    render(record, page, as_json=as_json)
    if preview.verdict != "allow":
        raise typer.Exit(HELD if held else REFUSED)


# Pages -------------------------------------------------------------------------------------------


def _call_page(observation: Observation, principal: Principal) -> Parts:
    """Yield the gates' decisions, what the agent reads, and the code."""
    from counterseal.gates import GATES
    from counterseal.gates.base import TimedDecision

    yield title_line(observation.tool, observation.version, principal)
    yield ""
    decisions = [one for one in observation.decisions if isinstance(one, TimedDecision)]
    if sum(timed.decision.verdict == "allow" for timed in decisions) < len(GATES):
        last = (_mark(None, "execution"), "", "", line(("not executed", "dim")))
    else:
        failure = observation.errors[0].message if observation.errors and not observation.ok else ""
        ended = "allow" if observation.ok else "deny"
        mark = _mark("require_approval" if _is_handed_over(observation) else ended, "execution")
        last = (mark, "", "", line(one_line(failure)))
    yield _timeline(decisions, last)
    yield heading("The agent reads")
    yield from (paragraph(text) for text in observation.for_model().splitlines())
    yield ""
    held = observation.response.requires_approval and observation.approval_id is not None
    held = held or _is_handed_over(observation)
    style = "green" if observation.ok else "yellow" if held else "red"
    next_action = f"  next action: {one_line(observation.next_action)}"
    yield line((observation.code.value, f"bold {style}"), next_action)


def _timeline(decisions: Sequence[TimedDecision], *more: Sequence[str | Text]) -> RenderableType:
    """Return a row for each gate: how long it took, the rule that decided, and the reason."""
    from counterseal.gates import GATES

    by_gate = {timed.decision.gate: timed for timed in decisions}
    rows: list[Sequence[str | Text]] = []
    for gate in GATES:
        timed = by_gate.get(gate.name)
        if timed is None:
            rows.append((_mark(None, gate.name), "", "", line(("not asked", "dim"))))
            continue
        decision, time = timed.decision, line((f"{timed.nanoseconds / 1000:>6.1f}", "dim"))
        # The rule's name has a column of its own.
        warnings = (warning.removesuffix(f" ({decision.rule})") for warning in decision.warnings)
        reason = one_line(" ".join(filter(None, (decision.reason, *warnings))))
        why = line((reason, "dim" if decision.verdict == "allow" else ""))
        rows.append((_mark(decision.verdict, gate.name), time, one_line(decision.rule or ""), why))
    unit = "µs" if can_show("µ") else "us"
    return table([*rows, *more], titles=("Gate", f"{unit:>6}", "Rule", "Reason"))


def _mark(verdict: str | None, gate: str) -> Text:
    mark, ascii_mark, style = _MARKS[verdict]
    return line((mark if can_show(mark) else ascii_mark, style), " ", gate)
