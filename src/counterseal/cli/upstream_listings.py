"""Lists the tools of the project's upstreams: connect, list the tools once, disconnect."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from counterseal.cli.project import errors_end_the_command
from counterseal.cli.render import note, one_line

if TYPE_CHECKING:
    from counterseal.config import Settings
    from counterseal.contract.sources.mcp import Definition
    from counterseal.upstream import Upstream


class UnusableTool(NamedTuple):
    """A listed tool that no contract can be made for."""

    tool: str
    why: str


class Listing(NamedTuple):
    """The tools that an upstream lists, or why it could not be reached."""

    server: str
    definitions: tuple[Definition, ...] = ()
    unusable: tuple[UnusableTool, ...] = ()
    error: str = ""


def list_upstreams(settings: Settings, names: Iterable[str]) -> list[Listing]:
    """Return a listing for each named upstream. Ends the command if the settings are unusable."""
    from counterseal.config.build import secrets_of, upstream_settings
    from counterseal.upstream import Upstreams

    wanted = list(names)
    if sys.stderr.isatty():
        note(f"Connecting to {', '.join(wanted)} …")

    async def list_all() -> list[Listing]:
        connections = upstream_settings(settings, *wanted)
        async with Upstreams(connections, secrets=secrets_of(settings)) as upstreams:
            await upstreams.settle()
            return list(await asyncio.gather(*(_list(upstreams[name]) for name in wanted)))

    with errors_end_the_command("no upstream was contacted"):
        return asyncio.run(list_all()) if wanted else []


async def _list(upstream: Upstream) -> Listing:
    if not upstream.ready:
        return Listing(upstream.name, error=one_line(upstream.trouble))
    try:
        tools = await upstream.definitions()
    except Exception as error:  # noqa: BLE001 - one broken upstream must not hide the others
        return Listing(upstream.name, error=one_line(upstream.trouble or str(error)))
    return _listing(upstream.name, tools)


def _listing(server: str, tools: Iterable[object]) -> Listing:
    from counterseal.contract.sources.mcp import Definition

    definitions: list[Definition] = []
    unusable: list[UnusableTool] = []
    for wire in tools:
        try:
            definitions.append(Definition.of(wire))  # type: ignore[arg-type]  # it checks the type
        except ValueError as error:
            name = wire.get("name") if isinstance(wire, dict) else None
            unusable.append(UnusableTool(one_line(str(name))[:80], one_line(str(error))))
    return Listing(server, tuple(definitions), tuple(unusable))
