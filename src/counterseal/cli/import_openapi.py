"""`counterseal import`: write contracts from an OpenAPI document or for an MCP server.

`import openapi` is here, `import mcp` in `import_mcp`. `import URL` is short for `import mcp URL`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from counterseal.cli import import_mcp
from counterseal.cli.options import AsJson
from counterseal.cli.render import (
    Parts,
    ProgressBar,
    check_overwrite,
    counted,
    fail,
    heading,
    named,
    note,
    render,
    table,
    write_files,
)

if TYPE_CHECKING:
    from counterseal.contract.sources.openapi import Imported, ImportedTool, LeftOut


class _ImportGroup(TyperGroup):
    """Makes `import URL` and `import COMMAND` short for `import mcp`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = (*self.commands, "--help", "-h")
        return super().parse_args(ctx, ["mcp", *args] if args and args[0] not in known else args)


app = typer.Typer(
    cls=_ImportGroup,
    help="Write contracts from an OpenAPI document, or for an MCP server.",
    no_args_is_help=True,
    rich_markup_mode=None,
    subcommand_metavar="URL|COMMAND... | openapi FILE",
)

_LARGE_YAML = 512 * 1024
_UNUSUAL = ("", "/egress", "/http/url", "/http/headers", "/runs_code", "/secrets")
"""Places whose review notes are shown at once; the others occur in every import."""


app.command("mcp", cls=import_mcp.ImportCommand)(import_mcp.import_mcp)


@app.command("openapi")
def openapi(
    file: Annotated[Path, Argument(metavar="FILE", help="OpenAPI 3, as JSON or YAML.")],
    out: Annotated[Path, Option(metavar="DIR", help="Folder to write to.")] = Path("tools"),
    base_url: Annotated[
        str | None, Option(metavar="URL", help="The server, instead of the document's.")
    ] = None,
    only: Annotated[
        list[str] | None, Option(metavar="GLOB", help="Tools or paths to import; can be repeated.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Overwrite existing files.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a contract for each operation of an OpenAPI document.

    The contracts call the API over HTTP; no Python is needed. In doubt the stricter effect is
    proposed, and guesses are marked with `review:`. Nothing is fetched. Exits with 1 if no
    operation can be expressed.
    """
    with ProgressBar("operation") as progress:
        imported = _read(file, base_url, progress)
    tools = [tool for tool in imported.tools if _matches(only, tool.name, tool.path)]
    left_out = [one for one in imported.left_out if _matches(only, one.what.partition(" ")[2])]
    if not tools and not left_out:
        fail(f"Nothing matches {', '.join(only or [])}.", "Without --only, all are imported.")
    with ProgressBar("contract") as progress:
        texts = _texts(tools, out, file.name, progress)
    if tools and not dry_run:
        check_overwrite(list(texts), force=force, out="DIR")
        write_files(texts)
    steps = [f"counterseal lint {out}"] if tools and not dry_run else []
    record = {
        "title": imported.title,
        "written": bool(tools) and not dry_run,
        "tools": [
            {
                "name": tool.name,
                "effect": tool.data["effect"],
                "method": tool.method,
                "path": tool.path,
                "file": str(path),
                "review": [{"pointer": one.pointer, "text": one.text} for one in tool.reviews],
            }
            for tool, path in zip(tools, texts, strict=True)
        ],
        "left_out": [{"what": one.what, "reason": one.reason} for one in left_out],
        "next": steps,
    }

    def page() -> Parts:
        yield from _tools_page(tools, left_out)
        if not tools:
            yield f"\n{imported.title}: no contract could be written."
            return
        verb, count = "would be written" if dry_run else "written", counted(len(tools), "contract")
        yield f"\n{imported.title}: {count} {verb} to {out}{os.sep}, one file each."
        yield "Check every line marked `# review:` before you grant these tools."
        yield from (f"Next: {step}" for step in steps)

    render(record, page, as_json=as_json)
    if not tools:
        raise typer.Exit(1)


def _read(file: Path, base_url: str | None, progress: ProgressBar) -> Imported:
    from counterseal.contract.sources.openapi import contracts_from_openapi, read_openapi
    from counterseal.errors import ContractError

    if file.suffix != ".json" and file.is_file() and file.stat().st_size > _LARGE_YAML:
        note(f"Reading {file}. A YAML document of this size takes a while; JSON is faster.")
    try:
        document = read_openapi(file)
        return contracts_from_openapi(document, base_url=base_url, progress=progress.show)
    except ContractError as error:
        problem = error.problems[0]
        fail(f"{file}: {problem.message}.", problem.fix)


def _matches(only: Sequence[str] | None, *names: str) -> bool:
    return not only or any(fnmatchcase(name, glob) for glob in only for name in names)


def _texts(
    tools: Sequence[ImportedTool], out: Path, source: str, progress: ProgressBar
) -> dict[Path, str]:
    from counterseal.contract.sources.openapi import to_yaml

    texts: dict[Path, str] = {}
    for tool in tools:
        progress.show(len(texts), len(tools))
        texts[out / f"{tool.name}.yaml"] = to_yaml(tool, source=source)
    return texts


def _tools_page(tools: Sequence[ImportedTool], left_out: Sequence[LeftOut]) -> Parts:
    rows = [
        (tool.name, tool.data["effect"], f"{tool.method} {tool.path}", str(len(tool.reviews)))
        for tool in tools
    ]
    if rows:
        yield table(rows, titles=("Tool", "Effect", "Request", "To review"))
    unusual = [
        (review.text.partition(";")[0], tool.name)
        for tool in tools
        for review in tool.reviews
        if review.pointer in _UNUSUAL or review.raised
    ]
    reasons = [(one.reason, one.what) for one in left_out]
    for title, pairs in (("Look twice", unusual), ("Left out", reasons)):
        # Each text is shown once, with the names that it applies to.
        groups: dict[str, list[str]] = {}
        for text, name in pairs:
            groups.setdefault(text, []).append(name)
        if groups:
            yield heading(title)
            yield table([(text, named(names)) for text, names in groups.items()])
