"""`counterseal lint`: everything that is wrong with some contracts, with its place and its fix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterseal.cli.explain import rules as all_rules
from counterseal.cli.output import console, fail, one_line, print_json, print_styled, safe
from counterseal.cli.project import contracts_at

if TYPE_CHECKING:
    from counterseal.config import Discovered
    from counterseal.errors import Problem

__all__ = ["lint"]


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


def lint(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH",
            help="Contract files, Python files, folders.  [default: as in counterseal.toml, or .]",
        ),
    ] = None,
    output: Annotated[
        Format | None, typer.Option("--format", help="How to print.  [default: text]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Let warnings fail as well.")] = False,
    rules: Annotated[bool, typer.Option("--rules", help="List all rules and stop.")] = False,
) -> None:
    """Check contracts: what is wrong, where, and the fix.

    Exits with 1 when there are errors, and with --strict also when there are warnings.
    """
    if as_json and output not in (None, Format.JSON):
        fail(f"--json and --format {output} contradict each other.", "Give one of them.")
    chosen = Format.JSON if as_json else output or Format.TEXT
    if rules:
        _print_rules(chosen)
        return
    found = contracts_at(paths or [])
    problems = _in_order(found)
    summary = _summary(found, problems)
    if chosen is Format.JSON:
        print_json({"problems": [problem.record() for problem in problems], "summary": summary})
    elif chosen is Format.GITHUB:
        _print_github(problems)
    else:
        _print_text(problems, summary)
    if summary["errors"] or (strict and summary["warnings"]):
        raise typer.Exit(1)


def _in_order(found: Sequence[Discovered]) -> list[Problem]:
    """By file as discovered, then by place."""
    files = {str(item.path): index for index, item in reversed(list(enumerate(found)))}

    def order(problem: Problem) -> tuple[Any, ...]:
        if problem.source is None:
            return (len(files), "", 0, 0)
        source = problem.source
        return (files.get(source.file, len(files)), source.file, source.line, source.column)

    return sorted((problem for item in found for problem in item.problems), key=order)


def _summary(found: Sequence[Discovered], problems: Iterable[Problem]) -> dict[str, int]:
    severities = [problem.severity.value for problem in problems]
    return {
        "contracts": sum(1 for item in found if item.name),
        "errors": severities.count("error"),
        "warnings": severities.count("warning"),
    }


def _print_rules(chosen: Format) -> None:
    if chosen is Format.JSON:
        print_json({"rules": all_rules()})
        return
    from counterseal.cli.layout import table

    rows = [(rule["id"], rule["severity"], rule["summary"]) for rule in all_rules()]
    print_styled(table(rows, titles=("Rule", "Severity", "A contract's …")))


# Text --------------------------------------------------------------------------------------------


def _print_text(problems: Sequence[Problem], summary: dict[str, int]) -> None:
    made = console()
    previous = None
    for problem in problems:
        file = problem.source.file if problem.source else None
        if previous is not None and file != previous:
            print()
        previous = file
        for line in _lines(problem, made.width if made.is_terminal else None):
            made.print(line, soft_wrap=True)
    if problems:
        print()
    print(_count(summary))


def _lines(problem: Problem, width: int | None) -> Iterable[Any]:
    """One line for a pipe; for a person as many as it takes, with what follows set in."""
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
        yield from _set_in(message, "", width)
    if problem.fix:
        yield from _set_in(one_line(problem.fix), "dim", width)


def _subject(problem: Problem) -> str:
    """Which part of the contract is meant, unless the message begins with its name."""
    named = problem.pointer.rpartition("/")[2]
    if not named or problem.message.startswith(named):
        return ""
    return f" ({problem.pointer.removeprefix('/affordance').removeprefix('/')})"


def _set_in(text: str, style: str, width: int | None) -> Iterable[Any]:
    from textwrap import wrap

    from rich.text import Text

    lines = [text] if width is None else wrap(text, max(20, width - 4), break_on_hyphens=False)
    return [Text(f"    {line}", style=style) for line in lines]


def _count(summary: dict[str, int]) -> str:
    parts = [
        f"{count} {word if count == 1 else word + 's'}"
        for word, count in (
            ("contract", summary["contracts"]),
            ("error", summary["errors"]),
            ("warning", summary["warnings"]),
        )
        if count or word == "contract"
    ]
    return ", ".join(parts if len(parts) > 1 else [*parts, "no problems"])


# GitHub ------------------------------------------------------------------------------------------


def _print_github(problems: Sequence[Problem]) -> None:
    """Workflow commands, which GitHub shows beside the lines of a pull request."""
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
    """Percent-encode what would end a message or a property. The percent sign goes first."""
    for character in ("%", "\r", "\n", *further):
        text = text.replace(character, f"%{ord(character):02X}")
    return text
