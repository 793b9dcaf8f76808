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
    from rich.console import RenderableType

    from counterseal.config import Settings
    from counterseal.config.settings import SettingError
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
    plan = _plan(words, name, out, header or [], env or [], insecure=insecure)
    if not dry_run:
        check_overwrite([plan.out], force=force, out="FILE")
    listing = _listing(plan)
    from counterseal.contract.sources.mcp.overlay import overlay_text

    with errors_end_the_command("nothing was written"):
        text = overlay_text(plan.name, listing.definitions, source=_source(words))
    if not dry_run:
        write_files({plan.out: text})
        if accept:
            _accept(plan, listing, by or user_name("--by"))
    result = _ImportResult(listing, text, written=not dry_run, accepted=accept and not dry_run)
    render(_record(plan, result), lambda: _page(plan, result), as_json=as_json)
    _note_credentials(plan)


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
        from counterseal.config import usual_overlay

        root = self.settings.file.parent.absolute()
        overlay = os.path.relpath(self.out, root)
        named = {} if overlay == usual_overlay(self.name) else {"overlay": overlay}
        return toml_block(self.name, {**self.table, **named})


class _ImportResult(NamedTuple):
    """The result of the import."""

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
    from counterseal.config import FILE_NAME, ConfigError, Settings, settings_from, usual_overlay

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
        fail("\n".join(_entry_error(name, one) for one in error.errors))
    # Secrets and the lock are where the project says.
    kept = {"secrets": project.secrets, "gateway": project.gateway}
    return _Plan(
        name=name,
        table=entry,
        settings=alone.model_copy(update=kept),
        out=out or file.parent / usual_overlay(name),
        needs_entry=name not in project.upstreams,
    )


def _entry_error(name: str, error: SettingError) -> str:
    """Return the error without the key of the entry, which is not in the file yet."""
    from counterseal.config.tables import INSECURE

    message = error.message.replace(INSECURE, "give --insecure")
    field = error.key.removeprefix(f"upstreams.{name}").removeprefix(".")
    return f"{field}: {message}" if field else message


def _listing(plan: _Plan) -> Listing:
    (listing,) = list_upstreams(plan.settings, [plan.name])
    if listing.error:
        fail(f"{plan.name} is unreachable: {listing.error}", "Nothing was written.", code=1)
    if not listing.definitions:
        for unusable in listing.unusable:
            note(f"{unusable.tool}: {unusable.why}")
        fail(f"{plan.name} has no usable tool.", "Nothing was written.", code=1)
    return listing


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


def _page(plan: _Plan, result: _ImportResult) -> Iterator[RenderableType]:
    yield from _proposals(result.listing)
    tools = counted(len(result.listing.definitions), "tool")
    verb = "written" if result.written else "would be written"
    yield ""
    yield f"{plan.name}: an overlay for {tools} {verb} to {relative(plan.out)}."
    yield "Check every line marked `# review:` before you grant these tools."
    if result.accepted:
        yield f"Their definitions are accepted in {plan.settings.lock_path().name}."
    if plan.needs_entry:
        yield f"\nAdd to {plan.settings.file.name}:\n\n{plan.block}"
        yield "# and a grant for each tool that an agent is to have:"
        first = result.listing.definitions[0].name
        yield f'# [[grants]]\n# agent = "AGENT"\n# tool = "{first}"\n'
    for step in _next_steps(plan, result):
        yield f"Next: {step}"


def _proposals(listing: Listing) -> Iterator[RenderableType]:
    """Yield the proposed effects, and the tools that are suspicious or unusable."""
    from counterseal.contract.sources.effect_guess import propose_mcp_effect
    from counterseal.contract.sources.foreign_text import visible
    from counterseal.contract.sources.mcp.definition import instructions

    rows = []
    for definition in sorted(listing.definitions, key=lambda definition: definition.name):
        effect, reasons = propose_mcp_effect(definition)
        rows.append((definition.name, effect.value, "; ".join(reasons)))
    yield table(rows, titles=("Tool", "Effect", "Why"))
    suspicious = [(one.name, "has invisible characters") for one in _with_invisible_text(listing)]
    suspicious += [
        (one.name, f'{place} reads like an instruction to a model: "{visible(part)}"')
        for one in listing.definitions
        for place, part in instructions(one)
    ]
    unfit = [(one.name, why) for one in listing.definitions if (why := _why_unfit(one))]
    unusable = [(one.tool, one.why) for one in listing.unusable]
    for title, pairs in (("Look twice", suspicious), ("Hidden", unfit), ("Left out", unusable)):
        if pairs:
            yield heading(title)
            yield table([(one_line(visible(name)), one_line(why)) for name, why in pairs])


def _record(plan: _Plan, result: _ImportResult) -> dict[str, Any]:
    from counterseal.contract.sources.effect_guess import propose_mcp_effect
    from counterseal.contract.sources.mcp.definition import instructions

    listing, tools = result.listing, []
    suspicious = {definition.name for definition in _with_invisible_text(listing)}
    for definition in listing.definitions:
        effect, reasons = propose_mcp_effect(definition)
        tools.append(
            {
                "tool": definition.name,
                "effect": effect.value,
                "why": list(reasons),
                "hidden": _why_unfit(definition) or None,
                "hidden_characters": definition.name in suspicious,
                "instructions": [part for _, part in instructions(definition)],
                "hash": definition.hash,
            }
        )
    return {
        "name": plan.name,
        "written": result.written,
        "file": str(plan.out),
        "text": result.text,
        "accepted": result.accepted,
        "tools": tools,
        "left_out": [unusable._asdict() for unusable in listing.unusable],
        "config": plan.block if plan.needs_entry else None,
        "next": _next_steps(plan, result),
    }


def _with_invisible_text(listing: Listing) -> list[Definition]:
    """Return definitions with characters that a reader can't see, or takes for others."""
    from counterseal.contract.sources.foreign_text import visible

    return [
        definition
        for definition in listing.definitions
        if any(visible(text) != text for text in _texts(definition.record()))
    ]


def _why_unfit(definition: Definition) -> str:
    """Return why no contract can be made for a definition; empty if one can."""
    from counterseal.contract.sources.mcp.overlay import contract_of
    from counterseal.errors import ContractError

    try:
        contract_of(definition, None, server="-", unlisted="gated")
    except ContractError as error:
        return error.problems[0].message
    return ""


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


def _next_steps(plan: _Plan, result: _ImportResult) -> list[str]:
    if not result.written:
        return []
    review = [] if result.accepted else [f"counterseal diff {plan.name} --accept"]
    return [*review, "counterseal serve"]


def _source(words: list[str]) -> str:
    """Return where the server is, without the query of a URL, which can hold a key."""
    return words[0].partition("?")[0] if _is_url(words[0]) else shlex.join(words)


def _note_credentials(plan: _Plan) -> None:
    pairs = {**plan.table.get("headers", {}), **plan.table.get("env", {})}
    plain = [
        key for key, text in pairs.items() if _CREDENTIAL.search(key) and "{secret:" not in text
    ]
    if plain:
        note(f"{', '.join(plain)}: keep credentials out of the file; write {{secret:name}} there.")


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
    entry = {"command": _split(words[0]) if len(words) == 1 else list(words)}
    here = os.path.relpath(Path.cwd(), folder)
    entry |= {} if here == "." else {"cwd": here}
    return entry | ({"env": _pairs("--env", env)} if env else {})


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        fail(f"Can't split the command {text!r}: {error}.", "Write it after --, word by word.")


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
    words = _host_words(table["url"]) if "url" in table else _command_words(table["command"])
    return next((name for word in words if (name := _as_name(word))), "upstream")


def _host_words(url: str) -> Iterator[str]:
    host = urlsplit(url).hostname or ""
    if not re.fullmatch(r"[0-9.]*|.*:.*|localhost", host):
        yield from (part for part in host.split(".") if part not in _COMMON_HOSTS)


def _command_words(command: Sequence[str]) -> Iterator[str]:
    """Yield the words that name the program, not options or ways to start one."""
    for word in command:
        last = re.split(r"[/\\]", word)[-1].partition("@")[0]
        stem = re.sub(r"\.(py|js|mjs|ts|sh|exe)$", "", last)
        if not word.startswith("-") and re.sub(r"[0-9.]+$", "", stem) not in _RUNNERS:
            yield stem


def _as_name(text: str) -> str:
    name = re.sub(r"[^a-z0-9_-]+", "-", text.lower())
    previous = ""
    while name != previous:
        previous, name = name, _AFFIXES.sub("", name)
    return re.sub(r"^[^a-z]+|[-_]+$", "", name)[:32]


def toml_block(name: str, table: Mapping[str, Any]) -> str:
    """Return the table as TOML, to be pasted into the configuration file."""
    lines = [f"{_toml_key(key)} = {_toml_value(value)}" for key, value in table.items()]
    return "\n".join([f"[upstreams.{name}]", *lines])


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
