"""`counterseal evaluate`: try every tool of the project with cases made from its contract."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Argument, Option

from counterseal.cli.options import AsJson
from counterseal.cli.project import errors_end_the_command, open_project, project_settings
from counterseal.cli.render import (
    ProgressBar,
    console,
    counted,
    fail,
    fields,
    heading,
    line,
    one_line,
    paragraph,
    render,
    safe,
    table,
    write_files,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from counterseal.evaluation.cases import EvaluationMode
    from counterseal.evaluation.evaluator import EvaluationTarget
    from counterseal.evaluation.report import EvaluationReport

_STYLES: Final = {"passed": "green", "failed": "bold red", "not tried": "yellow"}
_MODE_WIDTH: Final = 14


def evaluate(
    tools: Annotated[
        list[str] | None,
        Argument(metavar="TOOL", help="Tools for agents.  [default: all of the project]"),
    ] = None,
    mode: Annotated[
        list[str] | None, Option("--mode", metavar="M", help="One mode; may be repeated.")
    ] = None,
    allow_effects: Annotated[
        bool,
        Option("--allow-effects", help="Run functions that change something, where declared."),
    ] = False,
    listed: Annotated[
        bool, Option("--list", help="Say what would be tried and why, and stop.")
    ] = False,
    require: Annotated[
        bool,
        Option("--require", help="Fail if a tool has no passing case of one of the four kinds."),
    ] = False,
    record: Annotated[
        bool, Option("--record", help="Keep the report for the console, in gateway.evaluation.")
    ] = False,
    junit: Annotated[
        Path | None, Option("--junit", metavar="FILE", help="Write JUnit XML, too.")
    ] = None,
    markdown: Annotated[
        Path | None, Option("--markdown", metavar="FILE", help="Write the table as Markdown, too.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Try every tool with cases that are generated from its contract.

    Each case goes through the real runtime on a scratch store in memory. A tool is a stub that
    answers from its output schema, unless [evaluation.TOOL] in counterseal.toml says otherwise; a
    function that changes something runs only with --allow-effects. Exits with 1 if a case fails,
    and with --require also if a tool has no passing case of success, denial, bad argument or
    failure.
    """
    import asyncio

    from counterseal.evaluation.evaluator import evaluate as carry_out
    from counterseal.evaluation.evaluator import for_evaluation, subjects_of

    modes = _modes(mode or [])
    settings = project_settings()
    runtime = open_project(for_evaluation(settings), "memory:")

    async def run() -> tuple[list[EvaluationTarget], EvaluationReport | None]:
        chosen = await subjects_of(runtime, tools or (), allow_effects=allow_effects)
        if listed:
            return chosen, None
        with ProgressBar("case") as progress:
            return chosen, await carry_out(chosen, modes=modes, on_case=progress.show)

    with errors_end_the_command("nothing was evaluated"):
        candidates, report = asyncio.run(run())
    if report is None:
        plan = [_planned(one, modes) for one in candidates]
        render({"tools": plan}, lambda: _plan_page(plan), as_json=as_json)
        return
    texts = {junit: report.junit, markdown: report.markdown}
    files = {file: make() for file, make in texts.items() if file is not None}
    if record:
        files[settings.evaluation_path()] = json.dumps(report.record(), indent=1)
    write_files(files)
    render(report.record(), lambda: _page(report, require=require), as_json=as_json)
    if not report.ok or (require and report.missing()):
        raise typer.Exit(1)


def _modes(names: Sequence[str]) -> tuple[EvaluationMode, ...]:
    from counterseal.evaluation.modes import MODES

    known = {one.name: one for one in MODES}
    for name in names:
        if name not in known:
            fail(f"There is no mode {name!r}.", f"Modes: {', '.join(known)}.")
    return tuple(known[name] for name in dict.fromkeys(names)) or MODES


# --- what would be tried --------------------------------------------------------------------------


def _planned(candidate: EvaluationTarget, modes: Sequence[EvaluationMode]) -> dict[str, Any]:
    from counterseal.evaluation.evaluator import planned

    rows = []
    for mode in modes:
        reason, applies, cases = planned(candidate, mode)
        rows.append(
            {
                "mode": mode.name,
                "purpose": mode.purpose,
                "applies": applies,
                "reason": reason,
                "cases": [{"name": case.name, "why": case.why} for case in cases],
            }
        )
    good = candidate.subject.good
    return {**candidate.about.record(), "good_call": dict(good.arguments), "modes": rows}


def _plan_page(plan: Sequence[dict[str, Any]]) -> Iterator[RenderableType]:
    for tool in plan:
        yield heading(f"{one_line(tool['name'])} {one_line(tool['version'])}")
        yield fields(
            [
                ("runs", tool["ran"]),
                ("good call", one_line(f"{tool['good_call']} ({tool['arguments']})")),
                ("note", one_line(tool["note"])),
            ]
        )
        for row in tool["modes"]:
            cases = row["cases"]
            says = counted(len(cases), "case") if cases else "not applicable"
            if row["applies"] and not cases:
                says = "not tried"
            yield line("  ", (f"{row['mode']:<{_MODE_WIDTH}}", "bold"), f"{says}")
            if row["reason"]:
                yield paragraph(row["reason"], style="dim", indent=4)
            if cases:
                yield table([(f"  {case['name']}", case["why"]) for case in cases])


# --- what came of it ------------------------------------------------------------------------------


def _page(report: EvaluationReport, *, require: bool) -> Iterator[RenderableType]:
    for names in _groups([tool.name for tool in report.tools]):
        yield line("")
        rows = []
        for mode in report.modes:
            cells = [report.cell(name, mode) for name in names]
            shown = [line((one.shown(), _STYLES.get(one.status, "dim"))) for one in cells]
            rows.append([line((mode, "bold")), *shown])
        yield table(rows, titles=["", *names], whole=len(names) + 1)
    if report.failures:
        yield heading("Failures")
    for cell, case in report.failures:
        yield line("  ", (f"{cell.tool}, {cell.mode}: {one_line(case.name)}", "bold red"))
        yield paragraph(case.message, indent=4)
        yield paragraph(f"from {case.why}", style="dim", indent=4)
        if case.arguments is not None:
            yield paragraph(f"arguments: {case.arguments}", style="dim", indent=4)
    yield from _untried(report)
    counts = report.summary()
    tried = f"{counts['passed']:,} of {counted(counts['cases'], 'case')} passed"
    rest = "".join(f", {counts[name]} {name}" for name in ("failed", "not tried") if counts[name])
    yield line("")
    yield line("  ", (f"{tried}{rest}.", "bold red" if counts["failed"] else "bold"))
    for tool in report.tools:
        if tool.note:
            yield paragraph(f"{tool.name}: {tool.note}", style="dim")
    for name, kinds in report.missing().items() if require else ():
        yield paragraph(f"{name}: no passing case of {', '.join(kinds)}", style="dim")


def _untried(report: EvaluationReport) -> Iterator[RenderableType]:
    """Yield each reason why modes could not be tried, with the tools and modes."""
    reasons: dict[str, list[str]] = {}
    for cell in report.cells:
        if cell.applies and cell.reason:
            reasons.setdefault(cell.reason, []).append(f"{cell.tool} {cell.mode}")
    if reasons:
        yield heading("Not tried")
    for reason, places in reasons.items():
        yield paragraph(f"{safe(', '.join(places))}: {reason}")


def _groups(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the names in groups, each as wide as the terminal at most."""
    group: list[str] = []
    width, most = _MODE_WIDTH, console().width
    for name in names:
        wide = max(len(name), 9) + 2
        if group and width + wide > most:
            yield group
            group, width = [], _MODE_WIDTH
        group.append(name)
        width += wide
    if group:
        yield group
