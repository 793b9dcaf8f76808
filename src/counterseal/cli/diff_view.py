"""Definitions beside each other, for whoever has to accept them.

Everything that is pinned is shown: nothing that an upstream could have put somewhere is left out
because it is unusual. Whatever can't be seen is written by name.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from counterseal.cli.layout import heading, paragraph, table
from counterseal.cli.output import console, print_styled
from counterseal.contract.sources.mcp import Definition, Finding, Kind, State, describe, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from counterseal.cli.upstreams import Listing

__all__ = ["record", "show"]

_ORDER = (State.CHANGED, State.NEW, State.GONE)
_STYLES = {State.CHANGED: "yellow", State.NEW: "cyan", State.GONE: "dim"}


def show(asked: Sequence[Listing], findings: Sequence[Finding], hidden: Sequence[Finding]) -> None:
    """How many of each there are, and then every one that is not accepted."""
    servers = dict.fromkeys([one.server for one in asked] + [one.server for one in findings])
    counts = [row for name in servers if (row := _counts(name, findings, hidden))]
    if counts:
        print_styled(table(counts))
    for state in _ORDER:
        for one in findings:
            if one.state is state:
                print_styled(*_page(one))
    if any(one.state is not State.ACCEPTED for one in findings):
        print()


def _counts(
    server: str, findings: Sequence[Finding], hidden: Sequence[Finding]
) -> tuple[str, str] | None:
    states = Counter(one.state for one in findings if one.server == server)
    parts = [f"{states[one]} {one.value}" for one in (*_ORDER, State.ACCEPTED) if states[one]]
    unseen = sum(one.server == server for one in hidden)
    parts += [f"{unseen} hidden"] if unseen else []
    return (server, ", ".join(parts)) if parts else None


def _page(one: Finding) -> Iterator[RenderableType]:
    title = heading(f"{one.server} {one.tool}")
    title.append(f"  {one.state.value}", style=_STYLES[one.state])
    if one.seen is not None:
        title.append(f"  {_short(one.seen.hash)}", style="dim")
    yield title
    if one.pin is not None:
        pin = one.pin
        accepted = f"accepted by {pin.accepted_by} on {pin.accepted_at[:10]}"
        yield _line(f"revision {pin.revision}, {accepted}", style="dim")
    if one.state is State.CHANGED and one.pin is not None and one.seen is not None:
        yield from _changes(one.pin.definition, one.seen)
    elif one.state is State.NEW and one.seen is not None:
        yield from _whole(one.seen)


def _changes(before: Definition, after: Definition) -> Iterator[RenderableType]:
    for change in describe(before, after):
        # Of prose the text shows what was put where, which the whole of both shows as well.
        prose = change.kind is Kind.WORDS and isinstance(change.after, str)
        told = change.pointer if prose else change.text
        yield _line(f"{told} ({change.kind.value})", style="bold")
        for mark, value, style in (("-", change.before, "red"), ("+", change.after, "green")):
            if value is not None:
                yield _marked(mark, _spelt(value), style)


def _marked(mark: str, text: str, style: str) -> RenderableType:
    """Each line with its mark, wrapped so that what goes on stands below what it goes on from."""
    lines = [
        f"{mark if first else ' '} {part}"
        for line in text.split("\n")
        for first, part in _wrapped(line)
    ]
    return paragraph("\n".join(lines), style=style, indent=4)


def _wrapped(line: str) -> list[tuple[bool, str]]:
    width = max(20, console().width - 6)
    parts = wrap(
        line, width, drop_whitespace=False, replace_whitespace=False, break_on_hyphens=False
    ) or [""]
    return [(index == 0, part) for index, part in enumerate(parts)]


def _whole(definition: Definition) -> Iterator[RenderableType]:
    """All that is pinned, its words first."""
    data = definition.record()
    for name in ("title", "description"):
        if data.pop(name, None):
            yield _line(name, style="dim")
            yield paragraph(visible(getattr(definition, name)), indent=4)
    data.pop("name")
    for name, value in data.items():
        yield _line(name, style="dim")
        yield paragraph(_spelt(value), indent=4)


def _line(text: str, style: str = "") -> RenderableType:
    return paragraph(visible(text), style=style)


def _spelt(value: Any) -> str:
    if isinstance(value, str):
        return visible(value)
    return visible("\n".join(_laid_out(_plain(value), max(20, console().width - 8))))


def _laid_out(value: Any, width: int) -> Iterator[str]:
    """JSON on as few lines as can be read: what fits on one stands on one."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) <= width or not isinstance(value, dict | list) or not value:
        yield flat
        return
    first, last = ("{", "}") if isinstance(value, dict) else ("[", "]")
    yield first
    items = value.items() if isinstance(value, dict) else [("", item) for item in value]
    for index, (key, item) in enumerate(items):
        begins = f"{json.dumps(key, ensure_ascii=False)}: " if isinstance(value, dict) else ""
        lines = list(_laid_out(item, width - 2 - len(begins)))
        lines[0] = f"{begins}{lines[0]}"
        lines[-1] += "," if index < len(value) - 1 else ""
        yield from (f"  {line}" for line in lines)
    yield last


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _short(digest: str) -> str:
    kind, _, digits = digest.partition(":")
    return f"{kind}:{digits[:12]}"


# For programs -------------------------------------------------------------------------------------


def record(
    asked: Sequence[Listing],
    findings: Sequence[Finding],
    hidden: Sequence[Finding],
    taken: Sequence[Finding],
    dropped: Sequence[Finding],
) -> dict[str, Any]:
    """What is new, changed or gone, in full, and what was done about it."""
    return {
        "servers": [
            {
                "server": one.server,
                "trouble": one.trouble or None,
                "refused": [refused._asdict() for refused in one.refused],
                "tools": len(one.definitions),
            }
            for one in asked
        ],
        "tools": [_record(one) for one in findings if one.state is not State.ACCEPTED],
        "hidden": [_named(one) for one in hidden],
        "accepted": [_named(one) for one in taken],
        "forgotten": [_named(one) for one in dropped],
    }


def _named(one: Finding) -> dict[str, Any]:
    return {"server": one.server, "tool": one.tool, "hash": one.seen.hash if one.seen else None}


def _record(one: Finding) -> dict[str, Any]:
    before, after = (one.pin.definition if one.pin else None), one.seen
    both = before is not None and after is not None
    return {
        **_named(one),
        "state": one.state.value,
        "revision": one.pin.revision if one.pin else None,
        "before": before.record() if before else None,
        "after": after.record() if after else None,
        "changes": [
            {
                "pointer": change.pointer,
                "kind": change.kind.value,
                "text": change.text,
                "before": _plain(change.before),
                "after": _plain(change.after),
            }
            for change in (describe(before, after) if both else ())  # type: ignore[arg-type]
        ],
    }
