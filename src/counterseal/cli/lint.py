"""`counterseal lint`: every problem of the contracts, with its place and its fix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from counterseal.cli.explain import rules as all_rules
from counterseal.cli.project import contracts_at
from counterseal.cli.render import console, counted, fail, one_line, print_json, render, safe, table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from counterseal.config import Discovered
    from counterseal.errors import Problem


class LintFormat(StrEnum):
    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


def lint(
    paths: Annotated[
        list[Path] | None,
        Argument(
            metavar="PATH",
            help="Contract files, Python files, folders.  [default: as in counterseal.toml]",
        ),
    ] = None,
    output: Annotated[
        LintFormat | None, Option("--format", help="How to print.  [default: text]")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Short for --format json.")] = False,
    strict: Annotated[bool, Option("--strict", help="Fail on warnings, too.")] = False,
    rules: Annotated[bool, Option("--rules", help="List all rules and stop.")] = False,
) -> None:
    """Check contracts, and print each problem with its place and its fix.

    Python files that PATH or counterseal.toml names, and those with tools in named folders, are
    imported, that is executed. No other file is. Accepted tools of upstreams are checked, too.
    Exits with 1 if there are errors, and with --strict also if there are warnings.
    """
    if as_json and output not in (None, LintFormat.JSON):
        fail(f"--json and --format {output} contradict each other.", "Give one of them.")
    chosen = LintFormat.JSON if as_json else output or LintFormat.TEXT
    if rules:
        known = all_rules()
        render({"rules": known}, lambda: [_rules_table(known)], as_json=chosen is LintFormat.JSON)
        return
    contracts = contracts_at(paths or [])
    problems = _in_order(contracts)
    summary = _summary(contracts, problems)
    if chosen is LintFormat.JSON:
        print_json({"problems": [problem.record() for problem in problems], "summary": summary})
    elif chosen is LintFormat.GITHUB:
        _print_github(problems)
    else:
        _print_text(problems, summary)
    if summary["errors"] or (strict and summary["warnings"]):
        raise typer.Exit(1)


def _in_order(contracts: Sequence[Discovered]) -> list[Problem]:
    """Return all problems, by file as discovered, then by place."""
    files = {str(item.path): index for index, item in reversed(list(enumerate(contracts)))}

    def order(problem: Problem) -> tuple[Any, ...]:
        if problem.source is None:
            return (len(files), "", 0, 0)
        source = problem.source
        return (files.get(source.file, len(files)), source.file, source.line, source.column)

    return sorted((problem for item in contracts for problem in item.problems), key=order)


def _summary(contracts: Sequence[Discovered], problems: Iterable[Problem]) -> dict[str, int]:
    severities = [problem.severity.value for problem in problems]
    return {
        "contracts": sum(1 for item in contracts if item.name),
        "errors": severities.count("error"),
        "warnings": severities.count("warning"),
    }


def _rules_table(rules: Iterable[dict[str, str]]) -> RenderableType:
    rows = [(rule["id"], rule["severity"], rule["summary"]) for rule in rules]
    return table(rows, titles=("Rule", "Severity", "A contract's …"))


# Text --------------------------------------------------------------------------------------------


def _print_text(problems: Sequence[Problem], summary: dict[str, int]) -> None:
    terminal = console()
    previous = None
    for problem in problems:
        file = problem.source.file if problem.source else None
        if previous is not None and file != previous:
            print()
        previous = file
        for line in _lines(problem, terminal.width if terminal.is_terminal else None):
            terminal.print(line, soft_wrap=True)
    if problems:
        print()
    print(_summary_line(summary))


def _lines(problem: Problem, width: int | None) -> Iterable[Text]:
    """Yield one line for a pipe, or wrapped lines for a terminal of this width."""
    from rich.text import Text

    place = one_line(str(problem.source) if problem.source else problem.tool)
    colour = "red" if problem.severity.value == "error" else "yellow"
    head = Text.assemble(
        (place, "bold"), "  ", (problem.severity.value, colour), "  ", (problem.rule, "cyan")
    )
    message = one_line(f"{problem.message}{_subject(problem)}")
    if width is None or len(head) + 2 + len(message) <= width:
        yield Text.assemble(head, "  ", message)
    else:
        yield head
        yield from _indented(message, "", width)
    if problem.fix:
        yield from _indented(one_line(problem.fix), "dim", width)


def _subject(problem: Problem) -> str:
    """Return the part of the contract in brackets, unless the message begins with its name."""
    name = problem.pointer.rpartition("/")[2]
    if not name or problem.message.startswith(name):
        return ""
    return f" ({problem.pointer.removeprefix('/affordance').removeprefix('/')})"


def _indented(text: str, style: str, width: int | None) -> Iterable[Text]:
    from textwrap import wrap

    from rich.text import Text

    lines = [text] if width is None else wrap(text, max(20, width - 4), break_on_hyphens=False)
    return [Text(f"    {line}", style=style) for line in lines]


def _summary_line(summary: dict[str, int]) -> str:
    errors, warnings = summary["errors"], summary["warnings"]
    parts = [
        counted(summary["contracts"], "contract"),
        counted(errors, "error") if errors else "",
        counted(warnings, "warning") if warnings else "",
        "" if errors or warnings else "no problems",
    ]
    return ", ".join(filter(None, parts))


# GitHub ------------------------------------------------------------------------------------------


def _print_github(problems: Sequence[Problem]) -> None:
    """Print workflow commands, which GitHub shows next to the lines of a pull request."""
    for problem in problems:
        properties = {"title": problem.rule}
        if problem.source is not None:
            source = problem.source
            properties = {
                "file": source.file,
                "line": str(source.line),
                "col": str(source.column),
                **properties,
            }
        listed = ",".join(f"{key}={_escape(text, ':,')}" for key, text in properties.items())
        message = "\n".join(filter(None, (problem.message, problem.fix)))
        print(safe(f"::{problem.severity.value} {listed}::{_escape(message)}"))


def _escape(text: str, further: str = "") -> str:
    """Percent-encode what would end a message or a property; the percent sign goes first."""
    for character in ("%", "\r", "\n", *further):
        text = text.replace(character, f"%{ord(character):02X}")
    return text
