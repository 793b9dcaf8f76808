"""`counterseal lint`: every problem of the contracts, with its place and its fix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from counterseal.cli.explain import rules as all_rules
from counterseal.cli.project import contracts_at
from counterseal.cli.render import console, counted, fail, one_line, print_json, render, safe, table

if TYPE_CHECKING:
    from rich.text import Text

    from counterseal.errors import Problem


LintFormat = Literal["text", "json", "github"]
ShortJson = Annotated[bool, Option("--json", help="Short for --format json.")]
Format = Annotated[LintFormat | None, Option("--format", help="How to print.  [default: text]")]


def lint(
    paths: Annotated[
        list[Path] | None,
        Argument(
            metavar="PATH",
            help="Contract files, Python files, folders.  [default: as in counterseal.toml]",
        ),
    ] = None,
    output: Format = None,
    as_json: ShortJson = False,
    strict: Annotated[bool, Option("--strict", help="Fail on warnings, too.")] = False,
    rules: Annotated[bool, Option("--rules", help="List all rules and stop.")] = False,
) -> None:
    """Check contracts, and print each problem with its place and its fix.

    Python files that PATH or counterseal.toml names, and those with tools in named folders, are
    imported, that is executed. No other file is. Accepted tools of upstreams are checked, too.
    Exits with 1 if there are errors, and with --strict also if there are warnings.
    """
    chosen = chosen_format(output, as_json=as_json)
    if rules:
        known = all_rules()
        rows = [(rule["id"], rule["severity"], rule["summary"]) for rule in known]
        listed = table(rows, titles=("Rule", "Severity", "A contract's …"))
        render({"rules": known}, lambda: [listed], as_json=chosen == "json")
        return
    contracts = contracts_at(paths or [])
    files = {str(item.path): index for index, item in reversed(list(enumerate(contracts)))}

    def order(problem: Problem) -> tuple[Any, ...]:
        if problem.source is None:
            return (len(files), "", 0, 0)
        source = problem.source
        return (files.get(source.file, len(files)), source.file, source.line, source.column)

    problems = sorted((problem for item in contracts for problem in item.problems), key=order)
    summary = {"contracts": sum(1 for item in contracts if item.name)}
    _print(problems, summary, chosen, strict=strict)


def check(
    path: Annotated[
        Path | None,
        Argument(metavar="PATH", help="The project's file or folder.  [default: the nearest]"),
    ] = None,
    output: Format = None,
    as_json: ShortJson = False,
) -> None:
    """Check everything that a project names, before it is started or deployed.

    Reads the settings, contracts, policies, plan rules, keys and grants, looks up every secret, and
    connects to the upstreams to compare their tools with the accepted ones. Contracts are checked
    strictly: parameters need a description. No tool is called, and the store is not opened. Prints
    all problems, and exits with 1 if there are errors.
    """
    import asyncio

    from counterseal.config.project import check_project

    chosen = chosen_format(output, as_json=as_json)
    _print(asyncio.run(check_project(path)), {}, chosen)


def chosen_format(output: str | None, *, as_json: bool) -> str:
    """Return the format that `--format` or `--json` names; text if neither is given."""
    if as_json and output not in (None, "json"):
        fail(f"--json and --format {output} contradict each other.", "Give one of them.")
    return "json" if as_json else output or "text"


def _print(
    problems: Sequence[Problem],
    summary: dict[str, int],
    chosen: str,
    *,
    strict: bool = False,
) -> None:
    """Print the problems, and end the command with 1 if there are errors."""
    severities = [problem.severity.value for problem in problems]
    summary |= {"errors": severities.count("error"), "warnings": severities.count("warning")}
    if chosen == "json":
        print_json({"problems": [problem.record() for problem in problems], "summary": summary})
    elif chosen == "github":
        print_github(problems)
    else:
        _print_text(problems, summary)
    if summary["errors"] or (strict and summary["warnings"]):
        raise typer.Exit(1)


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
    errors, warnings = summary["errors"], summary["warnings"]
    parts = [
        counted(summary["contracts"], "contract") if "contracts" in summary else "",
        counted(errors, "error") if errors else "",
        counted(warnings, "warning") if warnings else "",
        "" if errors or warnings else "no problems",
    ]
    print(", ".join(filter(None, parts)))


def _lines(problem: Problem, width: int | None) -> Iterator[Text]:
    """Yield one line for a pipe, or wrapped lines for a terminal of this width."""
    from rich.text import Text

    place = one_line(str(problem.source) if problem.source else problem.tool)
    colour = "red" if problem.severity.value == "error" else "yellow"
    head = Text.assemble(
        (place, "bold"), "  ", (problem.severity.value, colour), "  ", (problem.rule, "cyan")
    )
    message, name = problem.message, problem.pointer.rpartition("/")[2]
    if name and not message.startswith(name):
        message += f" ({problem.pointer.removeprefix('/affordance').removeprefix('/')})"
    message, below = one_line(message), [(one_line(problem.fix), "dim")]
    if width is None or len(head) + 2 + len(message) <= width:
        yield Text.assemble(head, "  ", message)
    else:
        yield head
        below.insert(0, (message, ""))
    for text, style in below:
        size = max(20, width - 4) if width else len(text) + 1
        for part in wrap(text, size, break_on_hyphens=False):
            yield Text(f"    {part}", style=style)


def print_github(problems: Sequence[Problem]) -> None:
    """Print workflow commands, which GitHub shows next to the lines of a pull request."""

    def escape(text: str, further: str = "") -> str:
        # Percent-encode what would end a message or a property; the percent sign goes first.
        for character in ("%", "\r", "\n", *further):
            text = text.replace(character, f"%{ord(character):02X}")
        return text

    for problem in problems:
        properties = {"title": problem.rule}
        if problem.source is not None:
            file, line, column = problem.source.file, problem.source.line, problem.source.column
            properties = {"file": file, "line": str(line), "col": str(column), **properties}
        listed = ",".join(f"{key}={escape(text, ':,')}" for key, text in properties.items())
        message = "\n".join(filter(None, (problem.message, problem.fix)))
        print(safe(f"::{problem.severity.value} {listed}::{escape(message)}"))
