"""`counterseal replay`: decide recorded calls again, with the same rules or with others."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from counterseal.cli.options import AllTenants, AsJson, By, StoreUrl, moment
from counterseal.cli.project import (
    contracts_at,
    errors_end_the_command,
    in_runtime,
    open_project,
    project_settings,
    require_packages,
    user_name,
)
from counterseal.cli.render import (
    Parts,
    ProgressBar,
    counted,
    fail,
    heading,
    note,
    one_line,
    render,
    safe,
    table,
)

if TYPE_CHECKING:
    from counterseal.config import Settings
    from counterseal.evaluation.replay import Judged, Rules
    from counterseal.evaluation.what_if import ReplayReport
    from counterseal.ledger.requests import EventFilter
    from counterseal.runtime import Runtime

_KINDS = {
    "refused": "now refused",
    "allowed": "newly allowed",
    "asked": "newly asked",
    "repeated": "answered from the ledger",
    "other": "other reason",
}
_FEW = 3
"""Calls that are named in a line of the table; --json has more."""


def replay(
    what: Annotated[
        str | None, Argument(metavar="[CALL|RUN]", help="A call or a run, by its id.")
    ] = None,
    since: Annotated[
        str | None, Option(metavar="TIME", help="All calls from a time on, or an age: 30d.")
    ] = None,
    policy: Annotated[
        list[Path] | None, Option(metavar="FILE", help="Policy files that decide instead.")
    ] = None,
    contracts: Annotated[
        list[Path] | None,
        Option(metavar="PATH", help="Contracts that decide instead: files or folders."),
    ] = None,
    sequential: Annotated[
        bool,
        Option("--sequential", help="As if these rules had been in force all along."),
    ] = False,
    as_case: Annotated[
        Path | None, Option("--as-case", metavar="FILE", help="Write the call as a test file.")
    ] = None,
    case: Annotated[
        list[Path] | None, Option(metavar="FILE", help="Decide the calls of test files again.")
    ] = None,
    serve: Annotated[
        bool, Option("--serve", help="Answer an agent from the run, as an MCP server on stdio.")
    ] = False,
    tenant: AllTenants = None,
    by: By = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Decide recorded calls again. Nothing is executed, asked or spent.

    With the contracts and the policy of the project, every decision must be the same: exits with 1
    if one is not. With --policy or --contracts, shows what other rules would have decided. Calls
    that can't be judged are counted by reason. Reading recorded arguments is itself recorded.
    """
    settings = project_settings()
    if case:
        _check_cases(settings, case, as_json=as_json)
        return
    if (what is None) == (since is None):
        fail("Name a call or a run, or give --since TIME.", "Such as --since 30d.")
    if (as_case or serve) and what is None:
        fail("--as-case and --serve need the id of a call or of a run.")
    runtime, who = open_project(settings, store), by or user_name("--by")
    if serve:
        require_packages("mcp")
        in_runtime(runtime, lambda opened: _serve(opened, tenant, what or "", who))
        return
    if as_case:
        _write_case(as_case, runtime, lambda opened: _case_text(opened, tenant, what or "", who))
        return
    rules, now = _rules(settings, runtime, policy, contracts), time.time()
    begin = None if since is None else moment("--since", since, now)
    label = f"replay of {what or f'calls since {since}'}"

    async def decide(opened: Runtime) -> ReplayReport:
        from counterseal.operations.auditor import note_export

        searches = await _searches(opened, tenant, what, begin)
        for name, _ in searches:
            await note_export(opened.store, name, by=who, calls=label, now=now)
        return await _decide(opened, searches, rules, sequential=sequential)

    report = in_runtime(runtime, decide)
    render(report.record(), lambda: _page(report, same=rules.same), as_json=as_json)
    if rules.same and report.changed:
        raise typer.Exit(1)


async def _decide(
    runtime: Runtime,
    searches: Sequence[tuple[str, EventFilter]],
    rules: Rules,
    *,
    sequential: bool,
) -> ReplayReport:
    """Decide the calls of all searches again, with a progress bar, into one report."""
    from counterseal.evaluation.what_if import ReplayReport
    from counterseal.evaluation.what_if import replay as decide_again

    report = ReplayReport(rules.same)
    gc.freeze()  # contracts and modules are not looked through again for each batch
    with ProgressBar("call") as bar:
        for name, search in searches:
            await decide_again(
                *(runtime.store, runtime.vault, name, rules, search),
                sequential=sequential,
                progress=bar.show,
                into=report,
            )
    return report


def _write_case(
    file: Path, runtime: Runtime, text: Callable[[Runtime], Coroutine[Any, Any, str]]
) -> None:
    """Write a call as a test file. A file that exists is not overwritten."""
    if file.exists():
        fail(f"{file} exists.", "Name another file.")
    file.write_text(in_runtime(runtime, text), "utf-8")
    note(f"Written to {file}. Decide it again with `counterseal replay --case {file}`.")


def _rules(
    settings: Settings,
    runtime: Runtime,
    policy: Sequence[Path] | None,
    contracts: Sequence[Path] | None,
) -> Rules:
    from counterseal.evaluation.replay import Rules
    from counterseal.policy import Policy

    decides = runtime.policy
    if policy:
        with errors_end_the_command("nothing was replayed"):
            decides = Policy.load(*policy, overlays=settings.overlay_paths())
    known = [record.contract for record in runtime.registry.records]
    instead = contracts_at(list(contracts)) if contracts else ()
    for item in instead:
        for problem in item.problems if item.contract is None else ():
            note(one_line(str(problem)))
            fail(f"{item.name} can't be read; nothing was replayed.")
    new = [item.contract for item in instead if item.contract is not None]
    return Rules(decides, known, new, same=not (policy or contracts))


async def _searches(
    runtime: Runtime, tenant: str | None, what: str | None, since: float | None
) -> list[tuple[str, EventFilter]]:
    """Return the tenants whose calls are replayed, each with the search for them."""
    from counterseal.ledger.requests import EventFilter

    names = [name for name in await runtime.store.tenants() if tenant in (None, name)]
    if what is None:
        return [(name, EventFilter(since=since)) for name in names if name != "*"]
    for name in names:
        for search in (EventFilter(call_id=what), EventFilter(run_id=what)):
            if await runtime.store.search(name, search._replace(limit=1)):
                return [(name, search)]
    return fail(f"No call and no run is recorded under the id {what!r}.")


def _page(report: ReplayReport, *, same: bool) -> Parts:
    judged = report.calls - sum(report.not_judged.values())
    if not same:
        yield report.sentence()
    elif report.changed:
        yield f"{counted(report.changed, 'decision')} of {judged:,} differ from the record."
        yield "Check first whether a rule in Python reads a clock, a file or a global variable."
        yield "Otherwise this is a defect of Counterseal: please report it with these lines."
    else:
        yield f"{counted(judged, 'decision')} made again: the same as on record."
    if report.changes:
        rows = []
        for one in report.ordered():
            gate, then, now = one.example or ("", "", "")
            how = f"{gate}: {then} → {now}" if same else f"{_KINDS[one.kind]} by {one.rule}"
            shown = " ".join(one.calls[:_FEW]) + (" …" if one.count > _FEW else "")
            rows.append((f"{one.count:,}", one.tool, how, shown))
        yield table(rows, titles=("Calls", "Tool", "Change", "Such as"))
    unchecked = sum(one.unchecked for one in report.changes.values())
    if unchecked:
        yield f"{counted(unchecked, 'call')} of these: budgets not checked; --sequential does."
    if report.not_judged:
        yield heading("Not judged")
        reasons = report.not_judged.most_common()
        why_not = [(f"{count:,}", one_line(why)) for why, count in reasons]
        yield table(why_not, titles=("Calls", "Because"))


# Cases -------------------------------------------------------------------------------------------


async def _case_text(runtime: Runtime, tenant: str | None, what: str, by: str) -> str:
    from counterseal.errors import CountersealError
    from counterseal.evaluation.incidents import incident_text
    from counterseal.evaluation.recording import read_calls
    from counterseal.operations.auditor import note_export

    ((name, search),) = await _searches(runtime, tenant, what, None)
    await note_export(runtime.store, name, by=by, calls=f"replay of {what}", now=time.time())
    calls = [
        call
        async for batch in read_calls(runtime.store, runtime.vault, name, search)
        for call in batch
    ]
    if len(calls) != 1:
        fail(f"{what} has {counted(len(calls), 'decision')}.", "Name one call.")
    try:
        return incident_text(calls[0])
    except CountersealError as error:
        fail(str(error))


def _check_cases(settings: Settings, files: Sequence[Path], *, as_json: bool) -> None:
    from counterseal.evaluation.incidents import check_incident
    from counterseal.evaluation.replay import Rules

    runtime = open_project(settings, "memory:")
    contracts = [record.contract for record in runtime.registry.records]
    rules = Rules(runtime.policy, contracts, contracts, same=False)
    with errors_end_the_command("nothing was decided"):
        judged = [(file, check_incident(file, rules)) for file in files]

    def page() -> Parts:
        for file, one in judged:
            yield safe(f"{'ok' if _as_expected(one) else 'FAILED'}  {file}: {_line(one)}")

    record = [
        {"file": str(file), "ok": _as_expected(one), "result": _line(one)} for file, one in judged
    ]
    render(record, page, as_json=as_json)
    if not all(_as_expected(one) for _, one in judged):
        raise typer.Exit(1)


def _as_expected(judged: Judged) -> bool:
    return judged.now == judged.call.outcome


def _line(judged: Judged) -> str:
    if judged.now is None:
        return f"can't be judged: {judged.why}"
    expected = judged.call.outcome
    return str(judged.now) if judged.now == expected else f"{judged.now}, expected {expected}"


# Playback ----------------------------------------------------------------------------------------


async def _serve(runtime: Runtime, tenant: str | None, run_id: str, by: str) -> None:
    from counterseal.evaluation.playback import Playback, recorded_run, serve_playback
    from counterseal.evaluation.replay import Rules
    from counterseal.operations.auditor import note_export

    ((name, _),) = await _searches(runtime, tenant, run_id, None)
    await note_export(runtime.store, name, by=by, calls=f"replay of {run_id}", now=time.time())
    rules = Rules(runtime.policy, [record.contract for record in runtime.registry.records])
    calls = await recorded_run(runtime, name, run_id, rules)
    playback = Playback(calls, lambda text: note(f"First divergence: {text}"))
    note(f"{counted(len(calls), 'call')} of {run_id} in the recording.")
    await serve_playback(playback, runtime)
