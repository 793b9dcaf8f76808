"""`counterseal diff OLD NEW`: the changes between two sets of contracts, and exceptions to them.

The command fails only if a change needs a decision (`undecided` in `contract/version_steps.py`). An
exception is recorded in counterseal.lock, so that it is reviewed and merged like the change itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from typer import Option

from counterseal import __version__
from counterseal.cli.lint import print_github
from counterseal.cli.options import By, expiry
from counterseal.cli.project import (
    contracts_at,
    errors_end_the_command,
    project_settings_if_any,
    user_name,
    with_store,
)
from counterseal.cli.render import (
    Parts,
    counted,
    fail,
    heading,
    line,
    named,
    note,
    one_line,
    print_json,
    print_page,
    safe,
    table,
)

if TYPE_CHECKING:
    from counterseal.config import Discovered
    from counterseal.config.baselines import ComparedSide
    from counterseal.contract.diff import ContractChange
    from counterseal.contract.sources.mcp.lock import ExceptionRecord, Lock
    from counterseal.contract.version_steps import VersionStep
    from counterseal.errors import Problem

_DAYS: Final = 90
_LOCK: Final = "counterseal.lock"
_AUDIENCES: Final = ("callers", "models", "guardians")


DiffFormat = Literal["text", "json", "github", "sarif", "markdown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewExceptions:
    """The options with which changes are allowed."""

    allow: Annotated[
        list[str] | None,
        Option(metavar="ID", help="Allow a change that needs a decision; can be repeated."),
    ] = None
    because: Annotated[
        str | None, Option(metavar="TEXT", help="Why it is allowed, for the record.")
    ] = None
    until: Annotated[
        str | None,
        Option(metavar="WHEN", help=f"Days or a date until it is allowed.  [default: {_DAYS}]"),
    ] = None
    by: By = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedStep:
    """What changed in one tool, what a person still has to decide, and what was allowed."""

    step: VersionStep
    open: tuple[ContractChange, ...]
    allowed: dict[str, ExceptionRecord]
    problems: tuple[Problem, ...]
    """Every change as a problem with its place; an error if it needs a decision."""

    @property
    def changes(self) -> tuple[ContractChange, ...]:
        """The changes that need a decision, then the others."""
        return (*self.open, *(one for one in self.step.changes if one not in self.open))


def compare(old: str, new: str | None, output: str, exceptions: NewExceptions) -> None:
    """Compare two sides, print the changes, and end the command with 1 if some need a decision."""
    from counterseal.config.baselines import read_sides
    from counterseal.contract.sources.mcp.lock import Lock
    from counterseal.contract.version_steps import version_steps

    settings = project_settings_if_any()
    lock_file = settings.lock_path() if settings else Path(_LOCK)
    with errors_end_the_command("nothing was compared"):
        default = settings.tool_paths() if settings else ()
        lock = Lock.load(lock_file)
        with read_sides(old, new, default or [Path()], _registered) as (before, after):
            _note_code(before, after)
            steps = version_steps(before.contracts, after.contracts)
            if exceptions.allow:
                lock = Lock.update(lock_file, lambda one: _allow(one, steps, exceptions))
                note(f"Recorded in {lock_file.name}. Commit it together with the change.")
            judged = [_judged(step, after, lock) for step in steps]
    _print(before.name, after.name, judged, output)
    if any(one.open for one in judged):
        raise typer.Exit(1)


def _registered(tool: str, version: str) -> Sequence[Discovered]:
    """Return the contract of a version: as the project declares it, else as the store knows it."""
    declared = [
        item
        for item in contracts_at([])
        if item.contract and (item.name, item.contract.version) == (tool, version)
    ]
    return declared or list(_stored(tool, version))


def _stored(tool: str, version: str) -> Iterator[Discovered]:
    """Yield the last contract of this version that a worker registered in the project's store."""
    from counterseal.config import Discovered
    from counterseal.contract.model import Contract
    from counterseal.errors import ContractError, Source

    settings = project_settings_if_any()
    if settings is None or settings.store_url() is None:
        return
    rows = with_store(None, lambda store: store.contracts({tool}))
    for row in [row for row in rows if row.version == version][-1:]:
        try:
            contract = Contract.model_validate(row.record)
        except ContractError as error:
            # A stored contract names its code, which only the project of that time has.
            reason = error.problems[0].message
            fail(
                one_line(f"{tool}@{version}: the stored contract can't be read: {reason}"),
                "Check out the code that declares it, and compare folders.",
            )
        place = Source(file="store")
        yield Discovered(name=tool, contract=contract, path=Path(place.file), source=place)


def _note_code(*sides: ComparedSide) -> None:
    """Say which Python files of a revision were left out, and what to do about them."""
    for side in sides:
        if not side.not_read:
            continue
        count = counted(len(side.not_read), "Python file")
        fault = f"{side.name}: {count} with tools were not read ({named(side.not_read)})"
        why = "reading them would run the code of that revision"
        revision = side.name.partition(":")[0]
        fix = (
            f"Check it out and compare folders: `git worktree add ../base {revision}`, then "
            "`counterseal diff ../base .`; or keep contracts as files: `counterseal show TOOL "
            "--as record`."
        )
        if not side.found:
            fail(one_line(f"{fault}: {why}."), fix)
        note(one_line(f"{fault}: {why}. {fix}"))


# Exceptions --------------------------------------------------------------------------------------


def _allow(lock: Lock, steps: Sequence[VersionStep], options: NewExceptions) -> Lock:
    """Return the lock with a record for every open change that has one of the ids."""
    from counterseal.contract.diff import MEANINGS
    from counterseal.contract.sources.mcp.lock import ExceptionRecord
    from counterseal.contract.version_steps import undecided

    if not options.because or not options.because.strip():
        fail("--allow needs a reason. Give it with --because TEXT.")
    today = datetime.now(UTC)
    ends = expiry(options.until, "--until") or today + timedelta(days=_DAYS)
    owner = options.by or user_name("--by")
    records = []
    for name in options.allow or ():
        if name not in MEANINGS:
            known = "All ids are in docs/reference/changes.md."
            fail(f"There is no change with the id {name!r}.", known)
        meant = [
            step
            for step in steps
            if any(change.id == name for change in (*step.changes, *undecided(step)))
        ]
        if not meant:
            fail(f"No change has the id {name}; nothing was recorded.")
        records += [
            ExceptionRecord(
                change=name,
                tool=step.tool,
                version=step.version,
                owner=owner,
                reason=options.because.strip(),
                made_on=today.date().isoformat(),
                ends_on=ends.date().isoformat(),
            )
            for step in meant
        ]
    return lock.allow(*records)


def _judged(step: VersionStep, after: ComparedSide, lock: Lock) -> JudgedStep:
    from counterseal.contract.diff import Compatibility
    from counterseal.contract.version_steps import undecided
    from counterseal.errors import Problem, Severity

    today = datetime.now(UTC).date()
    allowed = lock.allowed(step.tool, step.version, today)
    left = undecided(step, allowed)
    judged = JudgedStep(step=step, open=left, allowed=allowed, problems=())
    problems = []
    for change in judged.changes:
        if change not in left and change.kinds == (Compatibility.COMPATIBLE,):
            continue
        verdicts = ", ".join(kind.replace("_", " ") for kind in change.kinds)
        problems.append(
            Problem(
                rule=change.id,
                message=f"{step.tool}: {change.message}",
                fix=f"Needs a decision: {verdicts}." if change in left else "",
                pointer=change.pointer,
                severity=Severity.ERROR if change in left else Severity.WARNING,
                tool=step.tool,
                source=None if step.new is None else after.place(step.new, change.pointer),
            )
        )
    return JudgedStep(step=step, open=left, allowed=allowed, problems=tuple(problems))


# Formats -----------------------------------------------------------------------------------------


def _print(old: str, new: str, judged: Sequence[JudgedStep], output: str) -> None:
    problems = [problem for one in judged for problem in one.problems]
    if output == "json":
        print_json(_record(old, new, judged))
    elif output == "sarif":
        print_json(_sarif(problems))
    elif output == "github":
        print_github(problems)
    elif output == "markdown":
        print("\n".join(map(safe, _markdown(old, new, judged))))
    else:
        print_page(*_page(judged))


def _summary(judged: Sequence[JudgedStep]) -> dict[str, int]:
    changes = [change for one in judged for change in one.step.changes]
    kinds = [kind.value for change in changes for kind in change.kinds]
    reviews = ("breaking", "governance_review", "operational_review")
    return {
        "tools": len({one.step.tool for one in judged}),
        "changes": len(changes),
        **{kind: kinds.count(kind) for kind in reviews},
        "undecided": sum(len(one.open) for one in judged),
    }


def _record(old: str, new: str, judged: Sequence[JudgedStep]) -> dict[str, Any]:
    return {
        "old": old,
        "new": new,
        "tools": [
            {
                "tool": one.step.tool,
                "old_version": one.step.old and one.step.old.version,
                "new_version": one.step.new and one.step.new.version,
                **_bumps(one),
                "changes": [
                    {
                        **change.record(),
                        "undecided": change in one.open,
                        "exception": _exception(one, change),
                    }
                    for change in one.changes
                ],
            }
            for one in judged
        ],
        "summary": _summary(judged),
    }


def _bumps(one: JudgedStep) -> dict[str, Any]:
    """Return the part of the version that has to rise, and that did; None for a whole tool."""
    from counterseal.contract.version_steps import needed_bump

    if one.step.old is None or one.step.new is None:
        return {"bump_needed": None, "bump_made": None}
    needed, made = needed_bump(one.step.changes), one.step.made
    return {"bump_needed": needed.name.lower(), "bump_made": made.name.lower()}


def _exception(one: JudgedStep, change: ContractChange) -> dict[str, str] | None:
    record = one.allowed.get(change.id)
    return None if record is None else record._asdict()


def _versions(step: VersionStep) -> str:
    if step.old is None or step.new is None:
        return f"{step.version} {'removed' if step.new is None else 'added'}"
    if step.old.version == step.new.version:
        return f"{step.version}, unchanged"
    return f"{step.old.version} to {step.new.version}"


def _verdict(change: ContractChange) -> str:
    """Return the verdicts of a change that are not `compatible`, with their audiences."""
    record = change.record()
    parts = [f"{name}: {record[name]}" for name in _AUDIENCES if record[name] != "compatible"]
    return ", ".join(parts).replace("_", " ") or "compatible"


def _bump_text(one: JudgedStep) -> str:
    bumps = _bumps(one)
    needed, made = bumps["bump_needed"], bumps["bump_made"]
    if needed is None or needed == "none":
        return ""
    rose = "the version did not rise" if made == "none" else f"the {made} version rose"
    return f"needs a new {needed} version; {rose}"


def _page(judged: Sequence[JudgedStep]) -> Parts:
    for one in judged:
        yield heading(f"{one.step.tool} {_versions(one.step)}")
        rows = []
        for change in one.changes:
            if change.id == "version-changed":
                continue
            style = "red" if change in one.open else "dim"
            exception = one.allowed.get(change.id)
            text = one_line(change.message)
            if exception is not None:
                until = f"by {exception.owner} until {exception.ends_on}: {exception.reason}"
                text += f" (allowed {one_line(until)})"
            rows.append((line((change.id, style)), f"{text}\n{_verdict(change)}"))
        if rows:
            yield table(rows, whole=1)
        if _bump_text(one):
            yield f"  {_bump_text(one)}"
    yield ("\n" if judged else "") + _summary_text(judged)


def _summary_text(judged: Sequence[JudgedStep]) -> str:
    summary = _summary(judged)
    if not judged:
        return "No changes."
    verbs = {"breaking": "breaking", "governance_review": "for governance review"}
    verbs["operational_review"] = "for operational review"
    parts = [f"{counted(summary['changes'], 'change')} in {counted(summary['tools'], 'tool')}"]
    parts += [f"{summary[name]} {text}" for name, text in verbs.items() if summary[name]]
    left = summary["undecided"]
    decided = f"{left} {'needs' if left == 1 else 'need'} a decision" if left else "all decided"
    return f"{', '.join(parts)}; {decided}."


def _markdown(old: str, new: str, judged: Sequence[JudgedStep]) -> Iterator[str]:
    def cell(text: str) -> str:
        return one_line(text).replace("|", "\\|").replace("<", "&lt;")

    yield f"## Contracts: {cell(old)} to {cell(new)}"
    yield ""
    yield _summary_text(judged)
    for one in judged:
        yield ""
        yield f"### `{one.step.tool}` {cell(_versions(one.step))}"
        yield ""
        yield "| change | | callers | models | guardians |"
        yield "| --- | --- | --- | --- | --- |"
        for change in one.changes:
            record = change.record()
            verdicts = " | ".join(record[name].replace("_", " ") for name in _AUDIENCES)
            mark = " **undecided**" if change in one.open else ""
            yield f"| `{change.id}`{mark} | {cell(change.message)} | {verdicts} |"
        if _bump_text(one):
            yield ""
            yield f"{_bump_text(one)[:1].upper()}{_bump_text(one)[1:]}."


def _sarif(problems: Sequence[Problem]) -> dict[str, Any]:
    """Return SARIF 2.1.0, which code hosts show beside the lines of a change."""
    rules = list(dict.fromkeys(problem.rule for problem in problems))
    results = []
    for problem in problems:
        result = {
            "ruleId": problem.rule,
            "ruleIndex": rules.index(problem.rule),
            "level": problem.severity.value,
            "message": {"text": " ".join(filter(None, (problem.message, problem.fix)))},
        }
        field = {"fullyQualifiedName": f"{problem.tool}{problem.pointer}"}
        location: dict[str, Any] = {"logicalLocations": [field]}
        if problem.source is not None:
            region = {"startLine": problem.source.line, "startColumn": problem.source.column}
            place = {"artifactLocation": {"uri": problem.source.file}, "region": region}
            location["physicalLocation"] = place
        results.append({**result, "locations": [location]})
    driver = {
        "name": "counterseal",
        "version": __version__,
        "rules": [
            {"id": rule, "shortDescription": {"text": rule.replace("-", " ").capitalize()}}
            for rule in rules
        ],
    }
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
