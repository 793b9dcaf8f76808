"""`counterseal plan`: check a whole plan, and see what becomes of each step.

Asks the gates about every step and executes none. What they correct or drop is recorded, as for any
plan.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from counterseal.cli.options import AsJson, with_groups
from counterseal.cli.project import REFUSED, Acting, in_runtime, open_project, project_settings
from counterseal.cli.render import (
    Parts,
    can_show,
    counted,
    fail,
    heading,
    line,
    one_line,
    paragraph,
    render,
    table,
    title_line,
)

if TYPE_CHECKING:
    from counterseal.plans import Plan, PlannedStep
    from counterseal.proposal import Principal
    from counterseal.runtime import Runtime

_STYLES = {"keep": "green", "correct": "green", "hold": "yellow", "drop": "dim", "reject": "red"}
_COUNTED = {"correct": "corrected", "hold": "held", "drop": "dropped", "reject": "rejected"}
_MAX_VALUE = 40
_KEYS = ("steps", "objective")


@with_groups
def plan(
    file: Annotated[Path, Argument(metavar="FILE", help="The steps, as YAML or JSON.")],
    *,
    caller: Acting,
    run: Annotated[str | None, Option(metavar="RUN", help="The run of the plan.")] = None,
    objective: Annotated[
        str | None, Option(metavar="TEXT", help="Of the run, instead of the file's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a plan, and show what becomes of each step.

    FILE is a list of steps, each with `tool` and `arguments`; or a mapping with `steps` and an
    `objective`. Tools, grants, policy and plan rules come from counterseal.toml. Nothing is
    executed; corrections and dropped steps are recorded. Exits with 1 if the plan is rejected.
    """
    from counterseal.runs import RunError

    settings = project_settings()
    principal = caller.principal(settings)
    steps, in_file = _read(file)
    runtime = open_project(settings)

    async def check(opened: Runtime) -> Plan:
        goal = in_file if objective is None else objective
        return await (await opened.run(principal, run, objective=goal)).plan(steps)

    try:
        checked = in_runtime(runtime, check)
    except RunError as error:
        fail(str(error))
    render(checked.record(), lambda: _page(checked, file, principal), as_json=as_json)
    if not checked.ok:
        raise typer.Exit(REFUSED)


def _read(file: Path) -> tuple[list[Any], str | None]:
    """Return the steps and the objective. The gates check each step."""
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
            f"{file}: not a plan.",
            "Write a list of steps, each with `tool` and `arguments`; or put it under `steps`.",
        )
    unknown = [key for key in data if key not in _KEYS]
    if unknown:
        fail(f"{file}: unknown key {unknown[0]!r} in a plan.", f"Allowed: {', '.join(_KEYS)}.")
    objective = data.get("objective")
    if objective is not None and not isinstance(objective, str):
        fail(f"{file}: objective must be a text, got {type(objective).__name__}.")
    return data["steps"], objective


# The page ----------------------------------------------------------------------------------------


def _page(checked: Plan, file: Path, principal: Principal) -> Parts:
    from counterseal.plans import changes

    yield title_line(str(file), "", principal)
    yield ""
    rows = []
    corrections = []
    arrow = "→" if can_show("→") else "->"
    for step in checked.steps:
        fate = line((step.fate.value, _STYLES[step.fate.value]))
        why = "\n".join(map(one_line, _reasons(step)))
        rows.append((str(step.number), one_line(step.tool), fate, why))
        for correction in step.corrections:
            for change in changes(correction):
                before = _value(change["before"]) if "before" in change else "not given"
                after = _value(change["after"]) if "after" in change else "left out"
                place = f"step {step.number} {change['field'][1:]}"
                corrections.append(f"{place}: {before} {arrow} {after} ({correction.invariant})")
    yield table(rows, titles=("Step", "Tool", "Outcome", "Why"))
    if corrections:
        yield heading("Corrected")
        yield from (paragraph(one_line(text)) for text in corrections)
    if checked.broken:
        yield heading("Broken plan rules")
        yield from (paragraph(one_line(f"{rule.id}: {rule.rule}")) for rule in checked.broken)
    yield ""
    yield line(("Nothing was executed.", "dim"))
    fates = [step.fate.value for step in checked.steps]
    counts = [counted(len(fates), "step") if fates else "no steps"]
    counts += [f"{fates.count(fate)} {word}" for fate, word in _COUNTED.items() if fate in fates]
    if checked.broken:
        counts.append(f"{counted(len(checked.broken), 'plan rule')} broken")
    verdict, style = ("accepted", "green") if checked.ok else ("rejected", "red")
    yield line((verdict, f"bold {style}"), f": {', '.join(counts)}")


def _value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 3]}..."


def _reasons(step: PlannedStep) -> Iterator[str]:
    if step.reason:
        yield step.reason
    for error in step.field_errors:
        place = f"{error.field}: " if error.field else ""
        if error.message != step.reason:
            yield f"{place}{error.message}"
        elif error.expected:
            yield f"expected {error.expected}"
    yield from (correction.rule for correction in step.corrections)
    if step.unknown:
        yield f"not known yet: {', '.join(step.unknown)}"
