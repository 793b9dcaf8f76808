"""`counterseal import`: contracts written from what an API or an MCP server says of itself.

`import openapi` is here, `import mcp` in `import_mcp`; the latter is meant where neither is said.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from counterseal.cli import import_mcp
from counterseal.cli.output import fail, note, print_json, print_styled, safe

if TYPE_CHECKING:
    from counterseal.contract.sources.openapi import Imported, ImportedTool, LeftOut

__all__ = ["app"]


class _ImportGroup(TyperGroup):
    """`import URL` and `import COMMAND` are short for `import mcp`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = (*self.commands, "--help", "-h")
        return super().parse_args(ctx, ["mcp", *args] if args and args[0] not in known else args)


app = typer.Typer(
    cls=_ImportGroup,
    help="Write contracts from what others say of their tools.",
    no_args_is_help=True,
    rich_markup_mode=None,
    subcommand_metavar="URL|COMMAND... | openapi FILE",
)

_SLOW = 512 * 1024
_SPECIAL = ("", "/egress", "/http/url", "/http/headers", "/runs_code", "/secrets")


app.command("mcp", cls=import_mcp.ImportCommand)(import_mcp.import_mcp)


@app.command("openapi")
def openapi(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="OpenAPI 3, as JSON or YAML.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to write.")] = Path(
        "tools"
    ),
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", metavar="URL", help="The server, if the document errs."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="GLOB", help="Tools or paths to take; may be repeated."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what exists.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a contract for each operation of an OpenAPI document.

    The files call the API over HTTP; no Python is needed. Effects are proposed on the strict side,
    and what was guessed is marked with `review:`. Nothing is fetched. Exits with 1 when no
    operation can be expressed.
    """
    imported = _read(file, base_url)
    tools = [tool for tool in imported.tools if _wanted(only, tool.name, tool.path)]
    left_out = [one for one in imported.left_out if _wanted(only, one.what.partition(" ")[2])]
    if not tools and not left_out:
        fail(f"Nothing matches {', '.join(only or [])}.", "Without --only, all are imported.")
    texts = _texts(tools, out, file.name)
    if tools and not dry_run:
        _write(texts, out, force=force)
    steps = [f"counterseal lint {out}"] if tools and not dry_run else []
    if as_json:
        print_json(
            {
                "title": imported.title,
                "written": bool(tools) and not dry_run,
                "tools": list(map(_record, tools, texts)),
                "left_out": [{"what": one.what, "reason": one.reason} for one in left_out],
                "next": steps,
            }
        )
    else:
        _print(tools, left_out)
        _sum_up(imported.title, len(tools), out, steps, dry_run=dry_run)
    if not tools:
        raise typer.Exit(1)


def _read(file: Path, base_url: str | None) -> Imported:
    from counterseal.contract.sources.openapi import contracts_from_openapi, read_openapi
    from counterseal.errors import ContractError

    if file.suffix != ".json" and file.is_file() and file.stat().st_size > _SLOW:
        note(f"Reading {file}: a YAML document of this size takes a while; JSON would not.")
    try:
        return contracts_from_openapi(read_openapi(file), base_url=base_url)
    except ContractError as error:
        problem = error.problems[0]
        fail(f"{file}: {problem.message}.", problem.fix)


def _wanted(only: Sequence[str] | None, *names: str) -> bool:
    return not only or any(fnmatchcase(name, glob) for glob in only for name in names)


def _texts(tools: Sequence[ImportedTool], out: Path, source: str) -> dict[Path, str]:
    from counterseal.contract.sources.openapi import to_yaml

    return {out / f"{tool.name}.yaml": to_yaml(tool, source=source) for tool in tools}


def _write(texts: dict[Path, str], out: Path, *, force: bool) -> None:
    """All of it, or nothing."""
    standing = [str(path) for path in texts if os.path.lexists(path)]
    if standing and not force:
        more = f" and {len(standing) - 3} more" if len(standing) > 3 else ""
        fail(
            f"{', '.join(standing[:3])}{more} already "
            f"{'exists' if len(standing) == 1 else 'exist'}.",
            "Nothing was written. Give --force to overwrite, or --out DIR.",
        )
    folders = [path for path in standing if Path(path).is_dir()]
    if folders:
        fail(f"{folders[0]} is a folder.", "Nothing was written.")
    missing = [folder for folder in (out, *out.parents) if not folder.exists()]
    beside = {path: path.with_name(f".{path.name}.new") for path in texts}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            beside[path].write_text(text, encoding="utf-8")
        for path in texts:
            beside[path].replace(path)
    except OSError as error:
        for path in (*beside.values(), *missing):
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
        fail(f"{error.filename or out}: {error.strerror}.", "Nothing was written.")


# Printing ----------------------------------------------------------------------------------------


def _print(tools: Sequence[ImportedTool], left_out: Sequence[LeftOut]) -> None:
    from counterseal.cli.layout import heading, table

    rows = [
        (tool.name, tool.data["effect"], f"{tool.method} {tool.path}", str(len(tool.reviews)))
        for tool in tools
    ]
    if rows:
        print_styled(table(rows, titles=("Tool", "Effect", "Request", "To review")))
    special = [(text, tool.name) for tool in tools for text in _special(tool)]
    for title, pairs in (
        ("Look twice", special),
        ("Left out", [(one.reason, one.what) for one in left_out]),
    ):
        if pairs:
            print_styled(heading(title), table(_grouped(pairs)))


def _special(tool: ImportedTool) -> Iterator[str]:
    """What is not to be looked at in every import anyway."""
    for review in tool.reviews:
        if review.pointer in _SPECIAL or review.text.startswith("raised"):
            yield review.text.partition(";")[0]


def _grouped(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Each text once, with those that it is about."""
    groups: dict[str, list[str]] = {}
    for text, about in pairs:
        groups.setdefault(text, []).append(about)
    return [
        (text, ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else ""))
        for text, names in groups.items()
    ]


def _sum_up(title: str, count: int, out: Path, steps: Sequence[str], *, dry_run: bool) -> None:
    if not count:
        print(safe(f"\n{title}: no contract could be written."))
        return
    contracts = f"{count} contract{'' if count == 1 else 's'}"
    verb = "would be written" if dry_run else "written"
    print(safe(f"\n{title}: {contracts} {verb} to {out}{os.sep}, one file each."))
    print("Look at every line `# review:` before an agent gets them: effect, texts, bounds.")
    for step in steps:
        print(safe(f"Next: {step}"))


def _record(tool: ImportedTool, file: Path) -> dict[str, Any]:
    return {
        "name": tool.name,
        "effect": tool.data["effect"],
        "method": tool.method,
        "path": tool.path,
        "file": str(file),
        "review": [review._asdict() for review in tool.reviews],
    }
