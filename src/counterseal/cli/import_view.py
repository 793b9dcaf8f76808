"""What an import proposes for each tool, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from counterseal.cli.layout import heading, table
from counterseal.cli.output import one_line
from counterseal.contract.sources.mcp import Definition, contract_of, propose_mcp_effect, visible
from counterseal.errors import ContractError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from counterseal.cli.upstreams import Listing

__all__ = ["page", "record"]


def page(listing: Listing) -> Iterator[RenderableType]:
    """What is proposed, what is suspicious, and what can't be had."""
    rows = []
    for definition in sorted(listing.definitions, key=lambda one: one.name):
        effect, reasons = propose_mcp_effect(definition)
        rows.append((definition.name, effect.value, "; ".join(reasons)))
    yield table(rows, titles=("Tool", "Effect", "Why"))
    twice = [(one.name, "holds characters that can't be seen") for one in _odd(listing)]
    unfit = [(one.name, why) for one in listing.definitions if (why := _unfit(one))]
    refused = [(one.tool, one.why) for one in listing.refused]
    for title, pairs in (("Look twice", twice), ("Hidden", unfit), ("Left out", refused)):
        if pairs:
            yield heading(title)
            yield table([(one_line(visible(name)), one_line(why)) for name, why in pairs])


def _odd(listing: Listing) -> list[Definition]:
    """Those with characters that a reader would not see, or take for others."""
    return [
        one for one in listing.definitions if any(visible(t) != t for t in _texts(one.record()))
    ]


def _unfit(definition: Definition) -> str:
    """Why no contract can be made for it; empty when one can."""
    try:
        contract_of(definition, None, server="-", unlisted="gated")
    except ContractError as error:
        return error.problems[0].message
    return ""


def _texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def record(listing: Listing) -> dict[str, Any]:
    """The same for programs."""
    tools = []
    odd = {one.name for one in _odd(listing)}
    for definition in listing.definitions:
        effect, reasons = propose_mcp_effect(definition)
        tools.append(
            {
                "tool": definition.name,
                "effect": effect.value,
                "why": list(reasons),
                "hidden": _unfit(definition) or None,
                "hidden_characters": definition.name in odd,
                "hash": definition.hash,
            }
        )
    return {"tools": tools, "left_out": [refused._asdict() for refused in listing.refused]}
