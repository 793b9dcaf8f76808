"""`counterseal scenarios`: how well an agent uses its tools, by what the record says.

Every trial runs in memory: the project's store is neither read nor written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer import Argument, Option

from counterseal.cli.options import AsJson, command_group
from counterseal.cli.project import project_settings
from counterseal.cli.render import (
    Parts,
    ProgressBar,
    can_show,
    counted,
    fail,
    heading,
    line,
    note,
    one_line,
    paragraph,
    print_json,
    render,
    table,
    write_files,
)

if TYPE_CHECKING:
    from counterseal.evaluation.agents import Agent
    from counterseal.evaluation.scores import Estimate, Summary
    from counterseal.evaluation.trials import ScenarioReport, TrialProject

app = command_group("Run scenarios with an agent, and compare agents, prompts and contracts.")

Files = Annotated[
    list[Path], Argument(metavar="FILE...", help="Scenario files.", show_default=False)
]
_MUTATIONS = ("descriptions",)


@app.command("run")
def run(
    files: Files,
    agent: Annotated[
        str,
        Option(
            metavar="AGENT",
            help="`script`, a URL of chat completions, FILE.py:FUNCTION, MODULE:FUNCTION, or a "
            "file with trajectories.",
        ),
    ] = "script",
    model: Annotated[str, Option(metavar="NAME", help="The model, for a URL.")] = "",
    prompt: Annotated[
        Path | None, Option(metavar="FILE", help="A system prompt for the model.")
    ] = None,
    trials: Annotated[int, Option(metavar="N", help="Tries of each scenario.", min=1)] = 1,
    setup: Annotated[
        str,
        Option(metavar="FILE:FUNCTION", help="Called with the scenario's name before each trial."),
    ] = "",
    allow_effects: Annotated[
        bool, Option("--allow-effects", help="Execute tools that change something.")
    ] = False,
    mutate: Annotated[
        str | None,
        Option(metavar="WHAT", help="`descriptions`: also run with less wording for the model."),
    ] = None,
    label: Annotated[str, Option(metavar="TEXT", help="A name for comparisons.")] = "",
    save: Annotated[Path | None, Option(metavar="FILE", help="Write the report to it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Let an agent work on scenarios, and score what the record says of its calls.

    Contracts, policy and grants are the project's. Each trial has a store in memory of its own.
    Tools with prepared answers are not executed; others are, and those that change something only
    with --allow-effects. A URL gets the key in COUNTERSEAL_AGENT_KEY. Exits with 1 if a trial
    fails.
    """
    import asyncio

    from counterseal.evaluation.agents import AS_DECLARED, WORDINGS
    from counterseal.evaluation.scenarios import read_scenarios
    from counterseal.evaluation.trials import run_trials

    if mutate is not None and mutate not in _MUTATIONS:
        fail(f"--mutate must be {' or '.join(_MUTATIONS)}, got {mutate!r}.")
    project, chosen = _trial_project(setup, allow_effects=allow_effects), _agent(agent, model)
    with _problems_end_the_command():
        scenarios = read_scenarios(*files, tools=project.tools, agents=project.settings.agents)
    refused = list(project.refusals(scenarios))
    if refused:
        _fail_with(refused)
    reports = []
    with _problems_end_the_command(), ProgressBar("trial") as progress:
        for wording in WORDINGS if mutate else (AS_DECLARED,):
            report = run_trials(
                *(project, scenarios, chosen),
                name=f"{agent} {model}".strip(),
                label=wording.name if mutate else label,
                trials=trials,
                wording=wording,
                prompt=_read_text(prompt) if prompt else "",
                progress=progress.show,
            )
            reports.append(asyncio.run(report))
    if save is not None:
        write_files({save: _json_of([one.record() for one in reports])})
    data = [one.record() for one in reports] if mutate else reports[0].record()
    render(data, lambda: _comparison(reports) if mutate else _page(reports[0]), as_json=as_json)
    if reports[0].failed:
        raise typer.Exit(1)


@app.command("compare")
def compare(
    files: Annotated[
        list[Path], Argument(metavar="REPORT...", help="What `scenarios run --save` wrote.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show reports side by side: two models, two prompts, or two versions of contracts."""
    reports = [report for file in files for report in _reports(file)]
    if len(reports) < 2:
        fail("A comparison needs two reports, got one.", "Name another file.")
    render([report.record() for report in reports], lambda: _comparison(reports), as_json=as_json)


@app.command("import")
def import_trajectories(
    form: Annotated[str, Argument(metavar="FORMAT", help="One of the formats above.")],
    file: Annotated[Path, Argument(metavar="FILE", help="JSON, or JSON Lines.")],
    out: Annotated[
        Path | None, Option(metavar="FILE", help="Write the trajectories to it, as JSON Lines.")
    ] = None,
    name: Annotated[
        str, Option(metavar="NAME", help="The scenario that the one trajectory of the file is for.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Read what agents did from files of other programs, as trajectories.

    FORMAT is openai, anthropic (message lists), otel (spans as OTLP JSON), langsmith (runs),
    inspect (logs), tau2 (results) or trajectories. Give the written file to `scenarios run
    --agent`: the calls are proposed again, and judged by the project's contracts.
    """
    from dataclasses import replace

    from counterseal.evaluation.formats import READERS, FormatError, read_trajectories

    _check_format(form, READERS)
    try:
        found = read_trajectories(file, form)
    except FormatError as error:
        fail(one_line(f"{error}."))
    if name and len(found) > 1:
        fail(f"{file} has {len(found)} trajectories, so --name does not say which one is meant.")
    found = [replace(one, name=name or one.name) for one in found]
    records = [one.record() for one in found]
    if out is not None:
        lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        write_files({out: "".join(lines)})
    rows = [(one_line(one.name), str(len(one.uses)), one_line(one.objective)) for one in found]
    render(records, lambda: [table(rows, titles=("Name", "Uses", "Objective"))], as_json=as_json)


@app.command("export")
def export(
    form: Annotated[str, Argument(metavar="FORMAT", help="One of the formats above.")],
    files: Annotated[
        list[Path], Argument(metavar="REPORT...", help="What `scenarios run --save` wrote.")
    ],
    out: Annotated[
        Path | None, Option(metavar="FILE", help="Write to it.  [default: stdout]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write reports in the format of another program.

    FORMAT is junit (for CI systems), csv (for spreadsheets), inspect (a log for Inspect), otel
    (spans as OTLP JSON) or trajectories (for `--agent`).
    """
    from counterseal.evaluation.formats import WRITERS

    _check_format(form, WRITERS)
    reports = [report for file in files for report in _reports(file)]
    try:
        text = WRITERS[form](reports)
    except ValueError as error:
        fail(one_line(f"{error}."))
    if out is not None:
        write_files({out: text})
    if as_json:
        trials = sum(len(report.trials) for report in reports)
        print_json({"format": form, "trials": trials, "file": None if out is None else str(out)})
    elif out is None:
        typer.echo(text, nl=False)


def _check_format(form: str, known: Mapping[str, object]) -> None:
    if form not in known:
        fail(f"FORMAT must be one of {', '.join(known)}, got {form!r}.")


# What commands work with -------------------------------------------------------------------------


def _trial_project(setup: str, *, allow_effects: bool) -> TrialProject:
    from counterseal.evaluation.agents import AgentError, function_named
    from counterseal.evaluation.trials import TrialProject

    settings = project_settings()
    try:
        prepare = function_named(setup) if setup else None
    except AgentError as error:
        fail(f"--setup: {one_line(str(error))}.")
    with _problems_end_the_command():
        return TrialProject.of(settings, allow_effects=allow_effects, setup=prepare)


def _agent(name: str, model: str) -> Agent:
    from counterseal.evaluation.agents import AgentError, agent_named, recorded
    from counterseal.evaluation.formats import FormatError, read_trajectories

    try:
        if name.endswith((".json", ".jsonl")):
            return recorded(read_trajectories(Path(name)))
        return agent_named(name, model=model)
    except (AgentError, FormatError) as error:
        fail(f"--agent: {one_line(str(error))}.")


@contextmanager
def _problems_end_the_command() -> Iterator[None]:
    """End the command on an error, with every problem of a file, its place and its fix."""
    from counterseal.errors import ContractError, CountersealError
    from counterseal.policy import PolicyError

    try:
        yield
    except (ContractError, PolicyError) as error:
        _fail_with(error.problems)
    except CountersealError as error:
        fail(one_line(str(error)))


def _fail_with(problems: Sequence[Any]) -> NoReturn:
    for problem in problems:
        place = f"{problem.source}: " if problem.source else ""
        note(one_line(f"{place}{problem.message}"))
        if problem.fix:
            note(f"    {one_line(problem.fix)}")
    fail(f"{counted(len(problems), 'problem')}; nothing was run.")


def _reports(file: Path) -> list[ScenarioReport]:
    from counterseal.evaluation.trials import ScenarioReport

    try:
        data = json.loads(_read_text(file))
        items = data if isinstance(data, list) else [data]
        return [ScenarioReport.from_record(item) for item in items]
    except ValueError as error:
        fail(f"{file}: {one_line(str(error))}.", "Write one with `scenarios run --save FILE`.")


def _read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError as error:
        fail(f"Can't read {file}: {error.strerror}.")
    except UnicodeDecodeError:
        fail(f"{file} is not UTF-8 text.")


def _json_of(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


# Pages -------------------------------------------------------------------------------------------


def _page(report: ScenarioReport) -> Parts:
    from counterseal.evaluation.scores import MEASURES

    summary = report.summary
    rows = []
    for name, (many, of) in summary.scenarios.items():
        reasons = [
            reason
            for trial in report.trials
            if trial.scenario == name
            for reason in trial.score.wrong[:1]
        ]
        style = "green" if many == of else "red"
        passed = line((f"{many} of {of}", style))
        rows.append((one_line(name), passed, one_line(reasons[0]) if reasons else ""))
    yield table(rows, titles=("Scenario", "Passed", "Why not"))
    yield heading("What the record says")
    yield table(
        [
            (MEASURES[name].title, *_shown(name, one), MEASURES[name].question)
            for name, one in summary.measures.items()
        ],
        titles=("Measure", "Value", "95 % interval", "Question"),
    )
    yield ""
    yield from (paragraph(text, indent=0) for text in _sentences(summary))


def _sentences(summary: Summary) -> list[str]:
    lines = [f"{counted(summary.trials, 'trial')}, {summary.passed} passed."]
    for k, power in summary.powers.items():
        lines.append(
            f"pass^{k} {power.value:.0%} ({power.low:.0%} to {power.high:.0%}): the chance that "
            f"{'a try passes' if k == 1 else f'{k} tries in a row all pass'}."
        )
    if summary.latency_ms is not None:
        median, slow = summary.latency_ms
        lines.append(f"Tools answered in {median} ms in the median, and 95 % within {slow} ms.")
    if summary.prevented:
        lines.append(f"{counted(summary.prevented, 'repeated change')} did not happen twice.")
    if summary.refused_by:
        by = ", ".join(f"{one_line(name)} {count}" for name, count in summary.refused_by.items())
        lines.append(f"Refused by: {by}.")
    lines += [f"Cost: {amount:g} {currency}." for currency, amount in summary.cost.items()]
    if summary.tokens:
        lines.append(f"Tokens of the model: {summary.tokens:,}.")
    return lines


def _shown(name: str, one: Estimate) -> tuple[str, str]:
    if name == "approvals":
        return f"{one.value:.2f}", ""
    return f"{one.value:.0%}", f"{one.low:.0%} to {one.high:.0%}"


def _comparison(reports: Sequence[ScenarioReport]) -> Parts:
    from counterseal.evaluation.scores import MEASURES

    summaries = [report.summary for report in reports]
    labels = [one_line(report.label) for report in reports]
    rows = []
    most = min((max(one.powers, default=0) for one in summaries), default=0)
    for k in sorted({1, most} - {0}):
        powers = [one.powers.get(k) for one in summaries]
        rows.append((f"pass^{k}", *(_value(power, "") for power in powers), _differ(powers)))
    for name, measure in MEASURES.items():
        values = [one.measures.get(name) for one in summaries]
        if any(value is not None for value in values):
            shown = (_value(value, name) for value in values)
            rows.append((measure.title, *shown, _differ(values) if name != "approvals" else ""))
    yield table(rows, titles=("Measure", *labels, ""))
    yield ""
    trials = ", ".join(
        f"{label} {summary.trials}" for label, summary in zip(labels, summaries, strict=True)
    )
    note_of_marks = f"{_mark()} marks intervals of 95 % that do not overlap."
    yield paragraph(f"Trials: {trials}. {note_of_marks}", indent=0)
    yield from (paragraph(text, indent=0) for text in _changed(reports))


def _value(one: Estimate | None, name: str) -> str:
    if one is None:
        return "-"
    return f"{one.value:.2f}" if name == "approvals" else f"{one.value:.0%}"


def _differ(values: Sequence[Estimate | None]) -> str:
    known = [value for value in values if value is not None]
    apart = any(one.high < other.low for one in known for other in known)
    return _mark() if apart else ""


def _mark() -> str:
    return "≠" if can_show("≠") else "!="


def _changed(reports: Sequence[ScenarioReport]) -> list[str]:
    """Return which contracts differ between the first report and each other one."""
    first, lines = reports[0], []
    for other in reports[1:]:
        names = {*first.contracts, *other.contracts}
        changed = sorted(
            name for name in names if first.contracts.get(name) != other.contracts.get(name)
        )
        if first.policy != other.policy:
            changed.append("the policy")
        if changed:
            lines.append(
                f"Differs between {one_line(first.label)} and {one_line(other.label)}: "
                f"{', '.join(map(one_line, changed))}."
            )
    return lines
