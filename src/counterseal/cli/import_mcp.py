"""`counterseal import URL|COMMAND`: a starting overlay for the tools of an MCP server."""

from __future__ import annotations

import os
import re
import secrets
import shlex
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from counterseal.cli import upstream_entry
from counterseal.cli.output import fail, note, print_json, print_styled, safe
from counterseal.cli.serving import need_gateway, usable
from counterseal.cli.trying import user_name

if TYPE_CHECKING:
    from counterseal.cli.upstreams import Listing
    from counterseal.config import Settings

__all__ = ["ImportCommand", "import_mcp"]

_CREDENTIAL = re.compile(r"auth|token|secret|passw|api.?key|credential", re.IGNORECASE)


class ImportCommand(TyperCommand):
    """Leaves what stands behind a command's name to the command: `import npx -y server .`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        first = next(iter(given.get("words") or ()), "")
        ctx.allow_interspersed_args = upstream_entry.is_address(first) or " " in first
        return super().parse_args(ctx, args)


def import_mcp(
    words: Annotated[
        list[str],
        typer.Argument(metavar="URL|COMMAND...", help="Where the server is, or what starts it."),
    ],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="What to call it.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The overlay.  [default: overlays/NAME.yaml]"),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="K=V", help="Sent to a URL; may hold {secret:x}."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="K=V", help="For a command; may hold {secret:x}."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Speak plain http to another machine.")
    ] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="Pin all definitions as reviewed.")
    ] = False,
    by: Annotated[
        str | None, typer.Option("--by", metavar="NAME", help="Who.  [default: your user name]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what exists.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a starting overlay for the tools of an MCP server.

    Connects, lists the tools, and proposes an effect for each, on the strict side; lines marked
    `review:` are for a person to look at. Options stand before a command. Exits with 1 when the
    server can't be reached, or has no tool.
    """
    need_gateway("mcp")
    plan = _plan(words, name, out, header or [], env or [], insecure=insecure)
    if not dry_run and not force and os.path.lexists(plan.out):
        fail(
            f"{_shown(plan.out)} already exists.",
            "Nothing was written. Give --force to overwrite it, or --out FILE.",
        )
    listing = _listing(plan)
    from counterseal.contract.sources.mcp import overlay_text

    with usable():
        text = overlay_text(plan.name, listing.definitions, source=_source(words))
    if not dry_run:
        _write(plan.out, text)
        if accept:
            _accept(plan, listing, by or user_name("--by"))
    done = _Done(listing, text, written=not dry_run, accepted=accept and not dry_run)
    if as_json:
        _print_json(plan, done)
    else:
        _print(plan, done)
    _note_credentials(plan)


class _Plan(NamedTuple):
    """What is imported, and where to."""

    name: str
    table: dict[str, Any]
    settings: Settings
    """The project's, with this upstream alone."""
    out: Path
    missing: bool
    """Whether the project's file does not name it yet."""

    @property
    def block(self) -> str:
        from counterseal.config.settings import usual_overlay

        root = self.settings.file.parent.absolute()
        overlay = os.path.relpath(self.out, root)
        named = {} if overlay == usual_overlay(self.name) else {"overlay": overlay}
        return upstream_entry.block(self.name, {**self.table, **named})


class _Done(NamedTuple):
    """What became of it."""

    listing: Listing
    text: str
    written: bool
    accepted: bool


def _plan(
    words: list[str],
    name: str | None,
    out: Path | None,
    headers: list[str],
    env: list[str],
    *,
    insecure: bool,
) -> _Plan:
    from counterseal.config import FILE_NAME, ConfigError, Settings, find_config, load_settings
    from counterseal.config.settings import settings_from, usual_overlay

    if not words[0].strip():
        fail("There is nothing to import.", "Give a URL, or a command.")
    file = find_config(Path.cwd())
    try:
        project = Settings() if file is None else load_settings(file)
    except ConfigError as error:
        fail(str(error))
    file = file or Path.cwd() / FILE_NAME
    table = upstream_entry.entry(words, headers, env, insecure=insecure, folder=file.parent)
    name = name or upstream_entry.name_for(table)
    try:
        alone = settings_from({"upstreams": {name: table}}, file)
    except ConfigError as error:
        # Nothing of it stands in the file yet.
        told = str(error).replace(f"{file}: upstreams.{name}", "").lstrip(".: ")
        fail(told.replace("`insecure = true`", "give --insecure"))
    # Secrets and the lock are where the project says.
    kept = {"secrets": project.secrets, "gateway": project.gateway}
    return _Plan(
        name=name,
        table=table,
        settings=alone.model_copy(update=kept),
        out=out or file.parent / usual_overlay(name),
        missing=name not in project.upstreams,
    )


def _listing(plan: _Plan) -> Listing:
    from counterseal.cli.upstreams import listings

    (listing,) = listings(plan.settings, [plan.name])
    if listing.trouble:
        fail(f"{plan.name} can't be asked: {listing.trouble}", "Nothing was written.", code=1)
    if not listing.definitions:
        for refused in listing.refused:
            note(f"{refused.tool}: {refused.why}")
        fail(f"{plan.name} has no tool that could be used.", "Nothing was written.", code=1)
    return listing


def _write(file: Path, text: str) -> None:
    """All of it, or nothing."""
    if file.is_dir():
        fail(f"{_shown(file)} is a folder.", "Nothing was written.")
    missing = [folder for folder in file.parents if not folder.exists()]
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()
        fail(f"{error.filename or file}: {error.strerror}.", "Nothing was written.")


def _accept(plan: _Plan, listing: Listing, by: str) -> None:
    from counterseal.contract.sources.mcp import Lock

    now = datetime.now(UTC).isoformat(timespec="seconds")

    def change(lock: Lock) -> Lock:
        for definition in listing.definitions:
            lock = lock.accept(plan.name, definition, by=by, at=now)
        return lock

    with usable():
        Lock.update(plan.settings.lock_path(), change)


# Printing -----------------------------------------------------------------------------------------


def _print(plan: _Plan, done: _Done) -> None:
    from counterseal.cli import import_view

    print_styled(*import_view.page(done.listing))
    count = len(done.listing.definitions)
    tools = f"{count} tool{'' if count == 1 else 's'}"
    verb = "written" if done.written else "would be written"
    print(safe(f"\n{plan.name}: an overlay for {tools} {verb} to {_shown(plan.out)}."))
    print("Look at every line `# review:` before an agent gets them.")
    if done.accepted:
        print(safe(f"Their definitions are accepted in {plan.settings.lock_path().name}."))
    if plan.missing:
        print(safe(f"\nAdd to {plan.settings.file.name}:\n\n{plan.block}"))
        print("# and a grant for each tool that an agent is to have:")
        first = done.listing.definitions[0].name
        print(safe(f'# [[grants]]\n# agent = "AGENT"\n# tool = "{first}"\n'))
    for step in _steps(plan, done):
        print(safe(f"Next: {step}"))


def _print_json(plan: _Plan, done: _Done) -> None:
    from counterseal.cli import import_view

    print_json(
        {
            "name": plan.name,
            "written": done.written,
            "file": str(plan.out),
            "text": done.text,
            "accepted": done.accepted,
            **import_view.record(done.listing),
            "config": plan.block if plan.missing else None,
            "next": _steps(plan, done),
        }
    )


def _steps(plan: _Plan, done: _Done) -> list[str]:
    if not done.written:
        return []
    review = [] if done.accepted else [f"counterseal diff {plan.name} --accept"]
    return [*review, "counterseal serve"]


def _source(words: list[str]) -> str:
    """Where it was found, as it may stand in a file: a query can hold a key."""
    address = upstream_entry.is_address(words[0])
    return words[0].partition("?")[0] if address else shlex.join(words)


def _note_credentials(plan: _Plan) -> None:
    pairs = {**plan.table.get("headers", {}), **plan.table.get("env", {})}
    plain = [
        key for key, text in pairs.items() if _CREDENTIAL.search(key) and "{secret:" not in text
    ]
    if plain:
        note(f"{', '.join(plain)}: keep credentials out of the file; write {{secret:name}} there.")


def _shown(path: Path) -> str:
    absolute = path.absolute()
    here = Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
