"""One table for a person in a terminal, and the same for a page."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks._house.results import Results
from benchmarks._house.rows import Result

HEADS = ("", "ratio", "target", "ours", "p99", "beside", "p99", "rounds x calls", "load")
MARKS = {"aim": "✓✓", "reach": "✓", "short": "✗", "": ""}
STYLES = {"aim": "green", "reach": "green", "short": "red", "": ""}
TITLES = {
    "call": "In process, a read in memory, every gate: processor time",
    "ledger": "Durable changes, exactly once",
    "mcp_server": "MCP over HTTP",
    "gateway": "Through the gateway, before the same upstream",
    "http_api": "The HTTP API",
    "growth": "Growth",
    "workers": "Several workers on one Postgres",
    "registry": "The registry",
    "replay": "Proposals kept, and decided again: processor time",
    "isolation": "Isolation of tools",
    "slowness": "While something else is slow",
    "startup": "Start-up",
    "soak": "Ten minutes under load",
}


def by_benchmark(rows: Iterable[Result]) -> list[tuple[str, list[Result]]]:
    """Their titles, with their rows."""
    order = {name: number for number, name in enumerate(TITLES)}
    known = sorted(rows, key=lambda row: order.get(row.benchmark, len(order)))
    grouped = groupby(known, key=lambda row: row.benchmark)
    return [(TITLES.get(name, name), list(some)) for name, some in grouped]


def cells(row: Result) -> tuple[str, ...]:
    """A row in words, in the order of `HEADS`."""
    return (
        row.what,
        f"{row.ratio:g}x {meaning(row)} ({row.low:g} to {row.high:g})",
        f"{target(row)} {MARKS[row.verdict]}".strip(),
        *figures(row.ours.median, row.ours.p99, row.unit),
        *figures(row.theirs.median, row.theirs.p99, row.unit),
        f"{row.rounds} x {row.calls:,}",
        f"{row.load[0]:g}",
    )


def meaning(row: Result) -> str:
    """What a ratio is of."""
    if row.better == "higher":
        return "as fast"
    return "the memory" if row.unit == "MiB" else "the time" if row.unit else "as many"


def target(row: Result) -> str:
    sign = "≥" if row.better == "higher" else "≤"
    reach = "" if row.reach is None else f"{sign} {row.reach:g}"
    aim = "" if row.aim is None else f"aim {row.aim:g}"
    return ", ".join(filter(None, (reach, aim)))


def figures(median: float, last: float | None, unit: str) -> tuple[str, str]:
    return f"{median:,g} {unit}".strip(), "" if last is None else f"{last:,g}"


def show(results: Results, console: Console) -> None:
    """Everything that a run found."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, head in enumerate(HEADS):
        table.add_column(head, justify="right" if number else "left", overflow="fold")
    for title, rows in by_benchmark(results.rows.values()):
        table.add_row(f"[bold]{title}[/bold]")
        for row in rows:
            name, ratio, goal, *rest = cells(row)
            style = STYLES[row.verdict]
            goal = f"[{style}]{goal}[/{style}]" if style and goal else goal
            table.add_row(f"  {escape(name)}", ratio, goal, *rest)
    console.print(table)
    console.print(closing(results), highlight=False, markup=False)


def closing(results: Results) -> str:
    """What the figures were measured on and with, and who could not take part."""
    about = results.machine
    machine = f"{about['processors']} processors ({about['processor']}), {about['system']}"
    lines = [
        f"{machine}, Python {about['python']}. Ratios are what counts; times are this machine's.",
        f"Beside: {versions(results)}." if versions(results) else "",
        *(f"Could not take part: {one.party}: {one.why}" for one in results.missed.values()),
    ]
    return "\n".join(filter(None, lines))


def versions(results: Results) -> str:
    """Of everybody who was measured, each once."""
    found: dict[str, str] = {}
    for row in results.rows.values():
        found |= {**row.ours.versions, **row.theirs.versions}
    return ", ".join(f"{name} {number}" for name, number in sorted(found.items()))


BRIEF: Final = (
    "http_api/sqlite-note-32-wrk",
    "http_api/postgres-note-32-wrk",
    "gateway/fastmcp-shared-echo-2026-07-28",
    "gateway/fastmcp-shared-echo-2025-11-25",
    "gateway/direct-slow",
    "call/await-langchain",
)
"""The rows of the README: durable work first, won and lost; none older than the present code."""


def brief(results: Results) -> str:
    """For a front page: a few rows, each with what it is beside and how it came out."""
    made = ["| Counterseal with every gate, beside | ratio |", "|---|--:|"]
    made += [
        f"| {row.what} | {row.ratio:g}x {meaning(row)} |"
        for key in BRIEF
        if (row := results.rows.get(key)) is not None
    ]
    return "\n".join([*made, ""])


def markdown(results: Results) -> str:
    """For a page."""
    made = []
    for title, rows in by_benchmark(results.rows.values()):
        made += [f"### {title}", ""]
        made.append("| " + " | ".join(HEADS) + " |")
        made.append("|---" + "|--:" * (len(HEADS) - 1) + "|")
        made += ["| " + " | ".join(cells(row)) + " |" for row in rows]
        made.append("")
    return "\n".join([*made, closing(results).replace("\n", "\n\n"), ""])
