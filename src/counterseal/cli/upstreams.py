"""What the project's upstreams list just now: connected to, asked once, let go again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from counterseal.cli.output import note, one_line
from counterseal.cli.serving import usable

if TYPE_CHECKING:
    from counterseal.config import Settings
    from counterseal.contract.sources.mcp import Definition
    from counterseal.upstream import Upstream

__all__ = ["Listing", "Refused", "listings"]


class Refused(NamedTuple):
    """A tool that no contract can be made for."""

    tool: str
    why: str


class Listing(NamedTuple):
    """What one upstream lists, or why it could not be asked."""

    server: str
    definitions: tuple[Definition, ...] = ()
    refused: tuple[Refused, ...] = ()
    trouble: str = ""


def listings(settings: Settings, names: Iterable[str]) -> list[Listing]:
    """One for each upstream that is named. Ends the command where the settings can't be used."""
    from counterseal.config.opening import secrets_of
    from counterseal.config.reaching import reached
    from counterseal.upstream import Upstreams

    wanted = list(names)
    if sys.stderr.isatty():
        note(f"Connecting to {', '.join(wanted)} …")

    async def ask() -> list[Listing]:
        async with Upstreams(reached(settings, *wanted), secrets=secrets_of(settings)) as upstreams:
            await upstreams.settle()
            return list(await asyncio.gather(*(_ask(upstreams[name]) for name in wanted)))

    with usable():
        return asyncio.run(ask()) if wanted else []


async def _ask(upstream: Upstream) -> Listing:
    if not upstream.ready:
        return Listing(upstream.name, trouble=one_line(upstream.trouble))
    try:
        listed = await upstream.definitions()
    except Exception as error:  # noqa: BLE001 - whatever one of them does, the others are shown
        return Listing(upstream.name, trouble=one_line(upstream.trouble or str(error)))
    return _taken(upstream.name, listed)


def _taken(server: str, listed: Iterable[object]) -> Listing:
    from counterseal.contract.sources.mcp import Definition

    taken: list[Definition] = []
    refused: list[Refused] = []
    for wire in listed:
        try:
            taken.append(Definition.of(wire))  # type: ignore[arg-type]  # it refuses what is none
        except ValueError as error:
            name = wire.get("name") if isinstance(wire, dict) else None
            refused.append(Refused(one_line(str(name))[:80], one_line(str(error))))
    return Listing(server, tuple(taken), tuple(refused))
