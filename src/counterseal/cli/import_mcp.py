"""`counterseal import URL|COMMAND`: write a starting overlay for the tools of an MCP server.

Also turns what was typed into an `[upstreams.NAME]` table for `counterseal.toml`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import urlsplit

from typer import Argument, Option
from typer.core import TyperCommand

from counterseal.cli.options import AsJson, By
from counterseal.cli.project import (
    Listing,
    errors_end_the_command,
    list_upstreams,
    project_settings_if_any,
    require_packages,
    user_name,
)
from counterseal.cli.render import (
    Parts,
    check_overwrite,
    counted,
    fail,
    heading,
    note,
    one_line,
    relative,
    render,
    table,
    write_files,
)

if TYPE_CHECKING:
    from counterseal.config import Settings
    from counterseal.contract.sources.mcp.definition import Definition

_CREDENTIAL = re.compile(r"auth|token|secret|passw|api.?key|credential", re.IGNORECASE)


class ImportCommand(TyperCommand):
    """Passes options after a command's name on to that command: `import npx -y server .`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        first = next(iter(given.get("words") or ()), "")
        ctx.allow_interspersed_args = _is_url(first) or " " in first
        return super().parse_args(ctx, args)


def import_mcp(
    words: Annotated[
        list[str], Argument(metavar="URL|COMMAND...", help="The server's URL, or its command.")
    ],
    name: Annotated[str | None, Option(metavar="NAME", help="Name of the upstream.")] = None,
    out: Annotated[
        Path | None, Option(metavar="FILE", help="The overlay.  [default: overlays/NAME.yaml]")
    ] = None,
    header: Annotated[
        list[str] | None, Option(metavar="K=V", help="Header for a URL; may hold {secret:x}.")
    ] = None,
    env: Annotated[
        list[str] | None, Option(metavar="K=V", help="Variable for a command; may hold {secret:x}.")
    ] = None,
    insecure: Annotated[
        bool, Option("--insecure", help="Allow plain http to another machine.")
    ] = False,
    accept: Annotated[bool, Option("--accept", help="Pin all definitions as reviewed.")] = False,
    by: By = None,
    force: Annotated[bool, Option("--force", help="Overwrite existing files.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a starting overlay for the tools of an MCP server.

    Connects, lists the tools, and proposes an effect for each, the stricter one in doubt. A person
    has to check lines marked `review:`. Options come before a command. Exits with 1 if the server
    is unreachable or has no tool.
    """
    require_packages("mcp")
    from counterseal.contract.sources.mcp.overlay import overlay_text

    plan = _plan(words, name, out, header or [], env or [], insecure=insecure)
    if not dry_run:
        check_overwrite([plan.out], force=force, out="FILE")
    (listing,) = list_upstreams(plan.settings, [plan.name])
    if listing.error:
        fail(f"{plan.name} is unreachable: {listing.error}", "Nothing was written.", code=1)
    if not listing.definitions:
        for unusable in listing.unusable:
            note(f"{unusable['tool']}: {unusable['why']}")
        fail(f"{plan.name} has no usable tool.", "Nothing was written.", code=1)
    # The query of a URL can hold a key.
    source = words[0].partition("?")[0] if _is_url(words[0]) else shlex.join(words)
    with errors_end_the_command("nothing was written"):
        text = overlay_text(plan.name, listing.definitions, source=source)
    if not dry_run:
        write_files({plan.out: text})
    if accept and not dry_run:
        _accept(plan, listing, by or user_name("--by"))
    _print(plan, listing, text, accepted=accept and not dry_run, dry_run=dry_run, as_json=as_json)
    given = {**plan.table.get("headers", {}), **plan.table.get("env", {})}
    plain = [key for key in given if _CREDENTIAL.search(key) and "{secret:" not in given[key]]
    if plain:
        note(f"{', '.join(plain)}: keep credentials out of the file; write {{secret:name}} there.")


class _Plan(NamedTuple):
    """The upstream to import and the file to write."""

    name: str
    table: dict[str, Any]
    settings: Settings
    """The project's settings, with this upstream only."""
    out: Path
    needs_entry: bool
    """Whether the project's file has no entry for it yet."""

    @property
    def block(self) -> str:
        """The table as TOML, to be pasted into the configuration file."""
        from counterseal.config import usual_overlay

        overlay = os.path.relpath(self.out, self.settings.file.parent.absolute())
        named = {} if overlay == usual_overlay(self.name) else {"overlay": overlay}
        values = {**self.table, **named}
        lines = [f"{_toml_key(key)} = {_toml_value(value)}" for key, value in values.items()]
        return "\n".join([f"[upstreams.{self.name}]", *lines])


def _plan(
    words: list[str],
    name: str | None,
    out: Path | None,
    headers: list[str],
    env: list[str],
    *,
    insecure: bool,
) -> _Plan:
    from counterseal.config import FILE_NAME, ConfigError, Settings, settings_from, usual_overlay
    from counterseal.config.tables import INSECURE

    if not words[0].strip():
        fail("There is nothing to import.", "Give a URL or a command.")
    in_file = project_settings_if_any()
    project = in_file or Settings()
    file = in_file.file if in_file else Path.cwd() / FILE_NAME
    entry = upstream_table(words, headers, env, insecure=insecure, folder=file.parent)
    name = name or suggested_name(entry)
    try:
        alone = settings_from({"upstreams": {name: entry}}, file)
    except ConfigError as error:
        messages = []
        for key, text in error.errors:  # the entry is not in the file, so its key says nothing
            field = key.removeprefix(f"upstreams.{name}").removeprefix(".")
            message = text.replace(INSECURE, "give --insecure")
            messages.append(f"{field}: {message}" if field else message)
        fail("\n".join(messages))
    # Secrets and the lock are where the project says.
    kept = {"secrets": project.secrets, "gateway": project.gateway}
    return _Plan(
        name=name,
        table=entry,
        settings=alone.model_copy(update=kept),
        out=out or file.parent / usual_overlay(name),
        needs_entry=name not in project.upstreams,
    )


def _accept(plan: _Plan, listing: Listing, by: str) -> None:
    from counterseal.contract.sources.mcp.lock import Lock

    now = datetime.now(UTC).isoformat(timespec="seconds")

    def change(lock: Lock) -> Lock:
        for definition in listing.definitions:
            lock = lock.accept(plan.name, definition, by=by, at=now)
        return lock

    with errors_end_the_command("nothing was accepted"):
        Lock.update(plan.settings.lock_path(), change)


# Page and record ---------------------------------------------------------------------------------


def _print(
    plan: _Plan, listing: Listing, text: str, *, accepted: bool, dry_run: bool, as_json: bool
) -> None:
    tools = [_tool_record(definition) for definition in listing.definitions]
    review = [] if accepted else [f"counterseal diff {plan.name} --accept"]
    steps = [] if dry_run else [*review, "counterseal serve"]
    record = {
        "name": plan.name,
        "written": not dry_run,
        "file": str(plan.out),
        "text": text,
        "accepted": accepted,
        "tools": tools,
        "left_out": list(listing.unusable),
        "config": plan.block if plan.needs_entry else None,
        "next": steps,
    }

    def page() -> Parts:
        yield from _proposals(listing, tools)
        verb = "would be written" if dry_run else "written"
        count = counted(len(tools), "tool")
        yield f"\n{plan.name}: an overlay for {count} {verb} to {relative(plan.out)}."
        yield "Check every line marked `# review:` before you grant these tools."
        if accepted:
            yield f"Their definitions are accepted in {plan.settings.lock_path().name}."
        if plan.needs_entry:
            yield f"\nAdd to {plan.settings.file.name}:\n\n{plan.block}"
            yield "# and a grant for each tool that an agent is to have:"
            yield f'# [[grants]]\n# agent = "AGENT"\n# tool = "{tools[0]["tool"]}"\n'
        for step in steps:
            yield f"Next: {step}"

    render(record, page, as_json=as_json)


def _tool_record(definition: Definition) -> dict[str, Any]:
    """Return the proposed effect of a tool, and what looks wrong with its definition."""
    from counterseal.contract.sources.effect_guess import propose_mcp_effect
    from counterseal.contract.sources.foreign_text import visible
    from counterseal.contract.sources.mcp.definition import instructions
    from counterseal.contract.sources.mcp.overlay import contract_of
    from counterseal.errors import ContractError

    effect, reasons = propose_mcp_effect(definition)
    unfit = None  # else why no contract can be made for the definition
    try:
        contract_of(definition, None, server="-", unlisted="gated")
    except ContractError as error:
        unfit = error.problems[0].message
    return {
        "tool": definition.name,
        "effect": effect.value,
        "why": list(reasons),
        "hidden": unfit,
        # A reader can't see these characters, or takes them for others.
        "hidden_characters": any(visible(text) != text for text in _texts(definition.record())),
        "instructions": [part for _, part in instructions(definition)],
        "hash": definition.hash,
    }


def _proposals(listing: Listing, tools: Sequence[dict[str, Any]]) -> Parts:
    """Yield the proposed effects, and the tools that are suspicious or unusable."""
    from counterseal.contract.sources.foreign_text import visible
    from counterseal.contract.sources.mcp.definition import instructions

    rows = sorted((one["tool"], one["effect"], "; ".join(one["why"])) for one in tools)
    yield table(rows, titles=("Tool", "Effect", "Why"))
    suspicious = [
        *((one["tool"], "has invisible characters") for one in tools if one["hidden_characters"]),
        *(
            (one.name, f'{place} reads like an instruction to a model: "{visible(part)}"')
            for one in listing.definitions
            for place, part in instructions(one)
        ),
    ]
    unfit = [(one["tool"], one["hidden"]) for one in tools if one["hidden"]]
    unusable = [(one["tool"], one["why"]) for one in listing.unusable]
    for title, pairs in (("Look twice", suspicious), ("Hidden", unfit), ("Left out", unusable)):
        if pairs:
            yield heading(title)
            yield table([(one_line(visible(name)), one_line(why)) for name, why in pairs])


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


# From words to an upstream's table ---------------------------------------------------------------

_URL = re.compile(r"https?://", re.IGNORECASE)
_RUNNERS = {"bun", "bunx", "docker", "node", "npx", "pipx", "pnpm", "podman", "uv", "uvx", "yarn"}
_RUNNERS |= {"dlx", "exec", "python", "python3", "run", "tool", "x"}
"""Words of a command that start something and don't name it."""
_COMMON_HOSTS = {"api", "mcp", "www"}
_AFFIXES = re.compile(r"^(mcp|server)[-_]+|[-_]+(mcp|server)$")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def _is_url(word: str) -> bool:
    return _URL.match(word) is not None


def upstream_table(
    words: Sequence[str],
    headers: Sequence[str],
    env: Sequence[str],
    *,
    insecure: bool,
    folder: Path,
) -> dict[str, Any]:
    """Return the table for one URL, or for a command in one word or several."""
    is_url = _is_url(words[0])
    if is_url and len(words) > 1:
        fail(f"Unexpected argument {words[1]!r}.", "Import one URL at a time.")
    if is_url and env:
        fail("--env is for a command.", "A URL takes --header NAME=VALUE.")
    if not is_url and headers:
        fail("--header is for a URL.", "A command takes --env NAME=VALUE.")
    if is_url:
        entry: dict[str, Any] = {"url": words[0]}
        entry |= {"insecure": True} if insecure else {}
        return entry | ({"headers": _pairs("--header", headers)} if headers else {})
    try:
        entry = {"command": shlex.split(words[0]) if len(words) == 1 else list(words)}
    except ValueError as error:
        again = "Write it after --, word by word."
        fail(f"Can't split the command {words[0]!r}: {error}.", again)
    here = os.path.relpath(Path.cwd(), folder)
    entry |= {} if here == "." else {"cwd": here}
    return entry | ({"env": _pairs("--env", env)} if env else {})


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            fail(f"{option} must be NAME=VALUE, got {text.partition(':')[0]!r}.")
        pairs[name.strip()] = value.strip()
    return pairs


def suggested_name(table: Mapping[str, Any]) -> str:
    """Return a name for the upstream, from its host or its command; else `upstream`."""
    words: list[str] = []
    if "url" in table:
        host = urlsplit(table["url"]).hostname or ""
        if not re.fullmatch(r"[0-9.]*|.*:.*|localhost", host):
            words = [part for part in host.split(".") if part not in _COMMON_HOSTS]
    else:
        # The words that name the program, not options or ways to start one.
        for word in table["command"]:
            last = re.split(r"[/\\]", word)[-1].partition("@")[0]
            stem = re.sub(r"\.(py|js|mjs|ts|sh|exe)$", "", last)
            if not word.startswith("-") and re.sub(r"[0-9.]+$", "", stem) not in _RUNNERS:
                words.append(stem)
    for word in words:
        name, previous = re.sub(r"[^a-z0-9_-]+", "-", word.lower()), ""
        while name != previous:
            previous, name = name, _AFFIXES.sub("", name)
        if name := re.sub(r"^[^a-z]+|[-_]+$", "", name)[:32]:
            return name
    return "upstream"


def _toml_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _toml_value(name)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_toml_key(key)} = {_toml_value(item)}" for key, item in value.items())
        return f"{{ {inside} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    # JSON and TOML write strings alike, except that TOML also escapes DEL.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
