"""`counterseal plan`: judge a whole plan, and see what becomes of each step.

Asks the gates about every step and executes none. Nothing goes into the project's store.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterseal.cli.output import fail, one_line, print_json, print_styled
from counterseal.cli.trying import (
    REFUSED,
    AsAgent,
    AsTenant,
    AsUser,
    fail_without_agent,
    failures_noted,
    opened,
    principal_of,
    project_settings,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from counterseal.plans import Plan, PlannedStep
    from counterseal.proposal import Principal
    from counterseal.runtime import Runtime

__all__ = ["plan"]

_STYLES = {"keep": "green", "correct": "green", "hold": "yellow", "drop": "dim", "reject": "red"}
_COUNTED = {"correct": "corrected", "hold": "held", "drop": "dropped", "reject": "rejected"}
_LONGEST_VALUE = 40
_KEYS = ("steps", "objective")


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The steps, as YAML or JSON.")],
    agent: AsAgent = None,
    tenant: AsTenant = None,
    user: AsUser = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="The run that the plan is for.")
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option("--objective", metavar="TEXT", help="Of the run, instead of the file's."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Judge a plan, and show what becomes of each step.

    FILE is a list of steps, each with `tool` and `arguments`; or a mapping with `steps` and an
    `objective`. Tools, grants, policy and plan rules come from counterseal.toml. Nothing is
    executed or remembered. Exits with 1 when the plan is rejected.
    """
    settings = project_settings()
    if agent is None:
        fail_without_agent(settings)
    principal = principal_of(settings, agent, {"tenant": tenant, "user": user})
    steps, written = _read(file)
    runtime = opened(settings)
    objective = written if objective is None else objective
    judged = _judge(runtime, steps, principal, run, objective)
    if as_json:
        print_json(judged.record())
    else:
        print_styled(*_page(judged, file, principal))
    if not judged.ok:
        raise typer.Exit(REFUSED)


def _read(file: Path) -> tuple[list[Any], str | None]:
    """The steps, and what they are for. What a step is like is for the gates to judge."""
    from counterseal.documents import read_document
    from counterseal.errors import ContractError

    try:
        data = read_document(file).data
    except ContractError as error:
        fail(one_line(f"{error.problems[0].source}: {error.problems[0].message}"))
    if isinstance(data, list):
        return data, None
    if not isinstance(data, Mapping) or not isinstance(data.get("steps"), list):
        fail(
            f"{file}: this is no plan.",
            "Write a list of steps, each with `tool` and `arguments`; or put it under `steps`.",
        )
    unknown = [key for key in data if key not in _KEYS]
    if unknown:
        fail(f"{file}: {unknown[0]} is no part of a plan; it takes {' and '.join(_KEYS)}.")
    objective = data.get("objective")
    if objective is not None and not isinstance(objective, str):
        fail(f"{file}: the objective is a text.")
    return data["steps"], objective


def _judge(
    runtime: Runtime,
    steps: list[Any],
    principal: Principal,
    run_id: str | None,
    objective: str | None,
) -> Plan:
    import asyncio

    from counterseal.runs import RunError

    async def judge() -> Plan:
        async with runtime:
            run = await runtime.run(principal, run_id, objective=objective)
            return await run.plan(steps)

    try:
        with failures_noted():
            return asyncio.run(judge())
    except RunError as error:
        fail(str(error))


# Showing -----------------------------------------------------------------------------------------


def _page(judged: Plan, file: Path, principal: Principal) -> Iterator[RenderableType]:
    from rich.text import Text

    from counterseal.cli.layout import heading, paragraph, table

    user = f", user {principal.user}" if principal.user else ""
    yield Text.assemble(
        (one_line(str(file)), "bold"),
        f"  as {one_line(principal.agent)} ",
        (one_line(f"(tenant {principal.tenant}{user})"), "dim"),
    )
    yield Text()
    yield table(map(_row, judged.steps), titles=("Step", "Tool", "Fate", "Why"))
    corrected = [line for step in judged.steps for line in _corrections(step)]
    if corrected:
        yield heading("Corrected")
        yield from (paragraph(line) for line in corrected)
    if judged.broken:
        yield heading("Broken plan rules")
        yield from (paragraph(one_line(f"{one.id}: {one.rule}")) for one in judged.broken)
    yield Text()
    verdict, style = ("accepted", "green") if judged.ok else ("rejected", "red")
    yield Text("Nothing was executed.", style="dim")
    yield Text.assemble((verdict, f"bold {style}"), f": {_summary(judged)}")


def _row(step: PlannedStep) -> tuple[Text, Text, Text, Text]:
    from rich.text import Text

    return (
        Text(str(step.number)),
        Text(one_line(step.tool)),
        Text(step.fate.value, style=_STYLES[step.fate.value]),
        Text("\n".join(map(one_line, _why(step)))),
    )


def _why(step: PlannedStep) -> Iterator[str]:
    if step.reason:
        yield step.reason
    for error in step.field_errors:
        place = f"{error.field}: " if error.field else ""
        if error.message != step.reason:
            yield f"{place}{error.message}"
        elif error.expected:
            yield f"expected {error.expected}"
    yield from (one.rule for one in step.corrections)
    if step.unknown:
        yield f"not known yet: {', '.join(step.unknown)}"


def _corrections(step: PlannedStep) -> Iterator[str]:
    """Each change on a line: where, what it was, what it is."""
    from counterseal.plans import changes

    for correction in step.corrections:
        for change in changes(correction):
            was = _value(change["before"]) if "before" in change else "not given"
            now = _value(change["after"]) if "after" in change else "left out"
            yield one_line(
                f"step {step.number} {change['field'][1:]}: {was} {_arrow()} {now}"
                f" ({correction.invariant})"
            )


def _value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def _arrow() -> str:
    try:
        "→".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return "->"
    return "→"


def _summary(judged: Plan) -> str:
    """How many steps there are, and what became of them."""
    fates = [step.fate.value for step in judged.steps]
    counts = [f"{fates.count(fate)} {word}" for fate, word in _COUNTED.items() if fate in fates]
    total = "no steps" if not fates else "1 step" if len(fates) == 1 else f"{len(fates)} steps"
    broken = len(judged.broken)
    rules = [f"{broken} plan rule{'' if broken == 1 else 's'} broken"] if broken else []
    return ", ".join([total, *counts, *rules])
