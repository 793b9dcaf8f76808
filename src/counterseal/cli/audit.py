"""`counterseal audit`: look at the record, and take it elsewhere.

Sealing and checking it are in `sealing`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from counterseal.cli.output import fail, note, print_json, print_styled
from counterseal.cli.sealing import AnyTenant, AsJson, AsLines, seal, verify
from counterseal.cli.stores import Counting, StoreUrl, one_tenant, with_store

if TYPE_CHECKING:
    from counterseal.audit import Event
    from counterseal.storage import Store
    from counterseal.storage.base import Search

__all__ = ["app"]

PAGE = 1000

app = typer.Typer(
    help="Look at the record, export it, seal it, and check that nobody changed it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

OneTenant = Annotated[
    str | None, typer.Option("--tenant", metavar="T", help="Whose.  [default: the only one]")
]
Call = Annotated[str | None, typer.Option("--call", metavar="ID", help="Of this call.")]
Run = Annotated[str | None, typer.Option("--run", metavar="ID", help="Of this run.")]
Tool = Annotated[str | None, typer.Option("--tool", metavar="NAME", help="Of this tool.")]
Types = Annotated[
    list[str] | None, typer.Option("--type", metavar="TYPE", help="Of this type; may be repeated.")
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="From then on: 2026-07-31T12:00, or 2h, 7d ago."),
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Before then.")]


app.command("seal")(seal)
app.command("verify")(verify)


class Format(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"


# Looking -----------------------------------------------------------------------------------------


@app.command("list")
def list_events(
    tenant: OneTenant = None,
    call: Call = None,
    run: Run = None,
    tool: Tool = None,
    types: Types = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", help="How many, newest first.", min=1)
    ] = 50,
    store: StoreUrl = None,
    as_json: AsLines = False,
) -> None:
    """List events, newest first. Erased ones are not shown."""
    search = _search(call, run, tool, types, since, until)._replace(newest_first=True)

    async def found(there: Store) -> Sequence[tuple[str, Event]]:
        whose = await one_tenant(there, tenant)
        pages = [page async for page in _pages(there, whose, search, limit)]
        return [one for page in pages for one in page]

    events = with_store(store, found)
    if as_json:
        from counterseal.audit.export import json_line

        sys.stdout.writelines(json_line(*one) for one in events)
    elif not events:
        note("Nothing of that is on record.")
    else:
        from counterseal.cli.events import event_list

        print_styled(*event_list(events))


@app.command("show")
def show(
    call_id: Annotated[str, typer.Argument(metavar="CALL_ID", help="The id of a call.")],
    tenant: OneTenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show all that is on record of one call, in its order, and who approved it."""

    async def found(there: Store) -> Sequence[tuple[str, Event]]:
        whose = await one_tenant(there, tenant)
        told = list(await there.search(whose, _search(call_id)))
        for other in await _asked_by(there, whose, call_id, told):
            asked = await there.search(whose, _search(other))
            # Asked before it was carried out, under the id that it had then.
            told[:0] = [one for one in asked if one[1].type.value.startswith("approval.")]
        return told

    events = with_store(store, found)
    if not events:
        fail(
            f"There is no call {call_id!r} on record.", "`counterseal audit list` shows the newest."
        )
    if as_json:
        print_json({"call_id": call_id, "events": [event.record(one) for one, event in events]})
        return
    from counterseal.cli.events import call_story

    print_styled(*call_story(call_id, events))


async def _asked_by(
    there: Store, tenant: str, call_id: str, told: Sequence[tuple[str, Event]]
) -> set[str]:
    """The calls that people were asked about, where that is not this one: it came again later."""
    named = {event.body.get("approval_id") for _, event in told}
    found = [await there.find_held(tenant, one) for one in named if isinstance(one, str)]
    return {held.call_id for held in found if held is not None} - {call_id}


# Taking it elsewhere -----------------------------------------------------------------------------


@app.command("export")
def export(
    form: Annotated[Format, typer.Option("--format", help="Which form.")] = Format.JSONL,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Where to.  [default: stdout]")
    ] = None,
    tenant: AnyTenant = None,
    call: Call = None,
    run: Run = None,
    tool: Tool = None,
    types: Types = None,
    since: Since = None,
    until: Until = None,
    store: StoreUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format jsonl.")] = False,
) -> None:
    """Write events as JSON Lines or CSV, oldest first, for other programs.

    In CSV a cell that a spreadsheet would calculate (it begins with = + - or @) gets an apostrophe
    in front.
    """
    from counterseal.audit.export import csv_head, csv_line, json_line

    is_csv = form is Format.CSV and not as_json
    search, write = _search(call, run, tool, types, since, until), csv_line if is_csv else json_line
    progress = Counting()

    async def written(there: Store) -> int:
        count = 0
        with _opened(output) as out:
            out.write(csv_head() if is_csv else "")
            for whose in [tenant] if tenant is not None else await there.tenants():
                async for page in _pages(there, whose, search):
                    out.writelines(write(*one) for one in page)
                    count += len(page)
                    progress.say(f"{count:,} events")
        return count

    count = with_store(store, written)
    progress.done()
    if output is not None:
        note(f"{count:,} event{'' if count == 1 else 's'} written to {output}.")


@contextmanager
def _opened(output: Path | None) -> Iterator[IO[str]]:
    """A file gets its name when all of it is there: half an export is not taken for a whole one."""
    if output is None:
        yield sys.stdout
        return
    part = output.with_name(f"{output.name}.part")
    with part.open("w", encoding="utf-8", newline="") as out:
        yield out
    part.replace(output)


async def _pages(
    store: Store, tenant: str, search: Search, limit: int | None = None
) -> AsyncIterator[Sequence[tuple[str, Event]]]:
    """What a search finds, as many at a time as fit into memory anywhere."""
    left = limit
    while left is None or left > 0:
        size = PAGE if left is None else min(PAGE, left)
        page = await store.search(tenant, search._replace(limit=size))
        if page:
            yield page
        if len(page) < size:
            return
        search = search._replace(after=page[-1][0])
        left = None if left is None else left - len(page)


def _search(
    call: str | None = None,
    run: str | None = None,
    tool: str | None = None,
    types: Sequence[str] | None = None,
    since: str | None = None,
    until: str | None = None,
) -> Search:
    import time

    from counterseal.cli.events import moment
    from counterseal.storage.base import Search

    now = time.time()
    return Search(
        call_id=call,
        run_id=run,
        tool=tool,
        types=_known_types(types) if types else None,
        since=None if since is None else moment("--since", since, now),
        until=None if until is None else moment("--until", until, now),
    )


def _known_types(given: Sequence[str]) -> Sequence[str]:
    from difflib import get_close_matches

    from counterseal.audit import EventType

    known = [kind.value for kind in EventType]
    for one in given:
        if one not in known:
            near = get_close_matches(one, known) or known
            fail(f"No event is of type {one!r}.", f"Did you mean {', '.join(near)}?")
    return given
