"""`counterseal diff`: two sets of contracts, or upstreams beside their accepted definitions.

`compare` compares contracts; the rest of this file compares upstreams. The definitions that were
shown are the ones that are pinned, even if an upstream changes them a moment later. A page shows
everything that is pinned, with invisible characters spelt out by name, so that an upstream can't
hide text from the person who accepts it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from counterseal.cli.compare import DiffFormat, NewExceptions, compare
from counterseal.cli.lint import ShortJson, chosen_format
from counterseal.cli.options import Yes, with_groups
from counterseal.cli.project import (
    Listing,
    errors_end_the_command,
    list_upstreams,
    project_settings,
    project_settings_if_any,
    require_packages,
    user_name,
)
from counterseal.cli.render import (
    Parts,
    console,
    counted,
    fail,
    heading,
    note,
    one_line,
    paragraph,
    print_json,
    print_page,
    safe,
    table,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from counterseal.config import Settings
    from counterseal.config.upstream_contracts import UpstreamContracts
    from counterseal.contract.diff import ContractChange
    from counterseal.contract.sources.mcp.definition import Definition
    from counterseal.contract.sources.mcp.lock import Lock, LockFinding

_WAITING = ("new", "changed")
"""States that a person has to look at."""
_STYLES = {"changed": "yellow", "new": "cyan", "gone": "dim"}
"""States that get a page each, in this order."""


@with_groups
def diff(
    old: Annotated[
        str | None,
        Argument(
            metavar="[OLD|SERVER]",
            help="The older contracts: a file, a folder, a git revision (main, main:contracts; "
            "main..HEAD names both sides), package:NAME, or TOOL@VERSION. Or an upstream.  "
            "[default: all upstreams]",
        ),
    ] = None,
    new: Annotated[
        str | None,
        Argument(
            metavar="[NEW|TOOL]",
            help="The newer contracts. Or one tool of the upstream, by the upstream's own name.",
        ),
    ] = None,
    accept: Annotated[
        bool, Option("--accept", help="Pin what is shown as new or changed.")
    ] = False,
    forget: Annotated[
        bool, Option("--forget", help="Drop the pins of tools that are gone.")
    ] = False,
    yes: Yes = False,
    output: Annotated[
        DiffFormat | None, Option("--format", help="How to print contracts.  [default: text]")
    ] = None,
    as_json: ShortJson = False,
    *,
    exceptions: NewExceptions,
) -> None:
    """Show what changed between contracts, or in upstreams, and who has to look at it.

    With OLD and NEW: each change with its id, and what it means to callers, models and guardians.
    Python files of a path are imported, that is executed; those of a revision are not read. Exits
    with 1 if a change needs a decision: more authority or less protection, a tool that is gone, or
    a version that rose too little. --allow records an exception in counterseal.lock.

    Otherwise: lists the tools of the upstreams, and compares them with the accepted definitions in
    counterseal.lock. Invisible characters are written by name. No agent can call a tool before it
    is accepted. Exits with 1 if a tool is not accepted or an upstream is unreachable.
    """
    known = project_settings_if_any()
    of_upstreams = old is None or (known is not None and old in known.upstreams)
    chosen = chosen_format(output, as_json=as_json)
    if not of_upstreams and old is not None and (new is not None or ".." in old):
        compare(old, new, chosen, exceptions)
        return
    if exceptions.allow or chosen not in ("text", "json"):
        fail(
            f"--allow and --format {chosen} are for two sets of contracts.",
            "Name both: `counterseal diff OLD NEW`.",
        )
    as_json = chosen == "json"
    _diff_upstreams(
        old, new, accept=accept, forget=forget, yes=yes, by=exceptions.by, as_json=as_json
    )


def _diff_upstreams(
    server: str | None,
    tool: str | None,
    *,
    accept: bool,
    forget: bool,
    yes: bool,
    by: str | None,
    as_json: bool,
) -> None:
    require_packages("mcp")
    settings = project_settings()
    listings, findings = _compare(settings, server, tool)
    if not listings and not findings:
        note("The project has no upstreams. Add one with `counterseal import URL|COMMAND`.")
    planned = _planned_contracts(settings)
    hidden, faults = _hidden_tools(planned, listings, findings)
    hidden = [] if tool else hidden
    shown = [finding for finding in findings if finding not in hidden]
    waiting = [finding for finding in shown if finding.state.value in _WAITING]
    if not as_json:
        _print_findings(listings, shown, hidden, planned)
    accepted = waiting if accept else []
    forgotten = [finding for finding in findings if forget and finding.state.value == "gone"]
    if accepted or forgotten:
        _write(settings, accepted, forgotten, by, yes=yes)
    if as_json:
        lists = {"hidden": hidden, "accepted": accepted, "forgotten": forgotten}
        print_json(_record(listings, shown, planned, **lists))
    elif accepted or forgotten:
        counts = ((len(accepted), "accepted"), (len(forgotten), "forgotten"))
        done = ", ".join(f"{count} {word}" for count, word in counts if count)
        print(safe(f"{done} in {settings.lock_path().name}."))
    left = bool(waiting) and not accept
    if left and not as_json:
        note("Accept what you have read: counterseal diff SERVER [TOOL] --accept")
    _note_trouble(listings, faults)
    if left or any(listing.error for listing in listings):
        raise typer.Exit(1)


def _note_trouble(listings: Sequence[Listing], faults: Sequence[str]) -> None:
    for fault in faults:
        note(one_line(fault))
    for listing in listings:
        for one in listing.unusable:
            note(f"{listing.server}: {one['tool']} is never offered: {one['why']}")
        if listing.error:
            note(f"{listing.server}: unreachable: {listing.error}")


def _compare(
    settings: Settings, server: str | None, tool: str | None
) -> tuple[list[Listing], list[LockFinding]]:
    """Return what the upstreams list, and a finding for each tool of those that answered."""
    from counterseal.contract.sources.mcp.lock import Lock

    if server is not None and server not in settings.upstreams:
        known = ", ".join(settings.upstreams) or "none yet"
        fail(
            f"There is no upstream {server!r} in {settings.file.name}.",
            f"Its upstreams: {known}. `counterseal import` prints the entry for a new one.\n"
            "To compare contracts, name both sides: `counterseal diff OLD NEW`.",
        )

    with errors_end_the_command("nothing was compared"):
        lock = Lock.load(settings.lock_path())
    listings = list_upstreams(settings, settings.upstreams if server is None else [server])
    findings: list[LockFinding] = []
    for listing in listings:
        if not listing.error:
            findings += lock.compare(listing.server, listing.definitions)
    if server is None:
        for name in sorted(set(lock.servers) - set(settings.upstreams)):
            findings += lock.compare(name, ())
    if tool is None:
        return listings, findings
    named = [finding for finding in findings if finding.tool == tool]
    if not named and not any(listing.error for listing in listings):
        fail(f"{server} has no tool {tool!r}, and none is pinned under that name.")
    return listings, named


def _planned_contracts(settings: Settings) -> dict[str, UpstreamContracts]:
    from counterseal.config.upstream_contracts import upstream_contracts

    with errors_end_the_command("nothing was compared"):
        return upstream_contracts(settings)


def _contract_changes(
    planned: dict[str, UpstreamContracts], finding: LockFinding
) -> tuple[ContractChange, ...]:
    """Return what a changed definition changes in its contract; nothing if it has none."""
    from counterseal.contract.diff import diff as contract_diff
    from counterseal.errors import ContractError

    pin, definition, contracts = finding.pin, finding.definition, planned.get(finding.server)
    if pin is None or definition is None or contracts is None or pin.definition == definition:
        return ()
    try:
        before = contracts.contract(pin.definition, pin.revision)
        after = contracts.contract(definition, pin.revision + 1)
    except ContractError:
        return ()  # reported as a fault of the overlay
    return () if before is None or after is None else contract_diff(before, after)


def _hidden_tools(
    planned: dict[str, UpstreamContracts],
    listings: Sequence[Listing],
    findings: Sequence[LockFinding],
) -> tuple[list[LockFinding], list[str]]:
    """Return the tools that the overlay hides from agents, and the faults of overlays."""
    from counterseal.errors import ContractError

    hidden: list[LockFinding] = []
    faults: list[str] = []
    for finding in findings:
        if finding.server in planned and finding.definition is not None:
            try:
                if planned[finding.server].contract(finding.definition, revision=1) is None:
                    hidden.append(finding)
            except ContractError as error:
                faults += map(str, error.problems)
    for listing in listings:
        overlay = planned[listing.server].overlay
        if overlay is not None and not listing.error:
            faults += map(str, overlay.strays(tool.name for tool in listing.definitions))
    return hidden, faults


def _write(
    settings: Settings,
    accepted: Sequence[LockFinding],
    forgotten: Sequence[LockFinding],
    by: str | None,
    *,
    yes: bool,
) -> None:
    """Ask, and change the lock."""
    from counterseal.contract.sources.mcp.lock import Lock

    accepts = f"accept {counted(len(accepted), 'definition')}" if accepted else ""
    forgets = f"forget {counted(len(forgotten), 'pin')}" if forgotten else ""
    if not yes:
        question = " and ".join(filter(None, (accepts, forgets)))
        typer.confirm(f"{question[:1].upper()}{question[1:]}?", abort=True, err=True)
    who, now = by or user_name("--by"), datetime.now(UTC).isoformat(timespec="seconds")

    def change(lock: Lock) -> Lock:
        for finding in accepted:
            if finding.definition is not None:
                lock = lock.accept(finding.server, finding.definition, by=who, at=now)
        for finding in forgotten:
            # Another person may have accepted it again since it was compared.
            if lock.pin(finding.server, finding.tool) == finding.pin:
                lock = lock.forget(finding.server, finding.tool)
        return lock

    with errors_end_the_command("nothing was accepted"):
        Lock.update(settings.lock_path(), change)


# Page and record ---------------------------------------------------------------------------------


def _print_findings(
    listings: Sequence[Listing],
    findings: Sequence[LockFinding],
    hidden: Sequence[LockFinding],
    planned: dict[str, UpstreamContracts],
) -> None:
    """Print the number of tools in each state, then every tool that is not accepted."""
    rows = []
    servers = [*(listing.server for listing in listings), *(one.server for one in findings)]
    for server in dict.fromkeys(servers):
        states = Counter(finding.state.value for finding in findings if finding.server == server)
        states["hidden"] = sum(finding.server == server for finding in hidden)
        order = (*_STYLES, "accepted", "hidden")
        rows.append((server, ", ".join(f"{states[name]} {name}" for name in order if states[name])))
    if any(counts for _, counts in rows):
        print_page(table([row for row in rows if row[1]]))
    for state in _STYLES:
        for finding in findings:
            if finding.state.value == state:
                print_page(*_finding_page(finding))
                print_page(*_verdicts(_contract_changes(planned, finding)))
    if any(finding.state.value != "accepted" for finding in findings):
        print()


def _finding_page(finding: LockFinding) -> Parts:
    """Yield a tool's state and all changes; of a new tool everything that would be pinned."""
    state, pin, definition = finding.state.value, finding.pin, finding.definition
    title = heading(f"{finding.server} {finding.tool}")
    title.append(f"  {state}", style=_STYLES[state])
    if definition is not None:
        title.append(f"  {definition.hash[:19]}", style="dim")
    yield title
    if pin is not None:
        accepted = f"accepted by {pin.accepted_by} on {pin.accepted_at[:10]}"
        yield _line(f"revision {pin.revision}, {accepted}", style="dim")
    if state == "changed" and pin is not None and definition is not None:
        yield from _changes(pin.definition, definition)
    elif state == "new" and definition is not None:
        from counterseal.contract.sources.mcp.definition import instructions

        data = definition.record()
        del data["name"]
        for name in sorted(data, key=lambda name: name not in ("title", "description")):
            yield _line(name, style="dim")
            yield paragraph(_spelt_out(data[name]), indent=4)
        for place, part in instructions(definition):
            yield _line(f'{place} reads like an instruction to a model: "{part}"', style="yellow")


def _verdicts(changes: Sequence[ContractChange]) -> Parts:
    """Yield what needs a person's attention in the contract that follows from a definition."""
    from counterseal.contract.diff import Compatibility

    for change in changes:
        if change.kinds != (Compatibility.COMPATIBLE,) and change.id != "definition-changed":
            kinds = ", ".join(change.kinds).replace("_", " ")
            yield _line(f"{change.id}: {change.message} ({kinds})", "yellow")


def _changes(before: Definition, after: Definition) -> Parts:
    from counterseal.contract.schema_diff import ChangeKind
    from counterseal.contract.sources.foreign_text import instructions_in
    from counterseal.contract.sources.mcp.definition import describe

    for change in describe(before, after):
        # For prose, both texts follow in full, so that the place is enough here.
        prose = change.kind is ChangeKind.WORDS and isinstance(change.after, str)
        yield _line(f"{change.pointer if prose else change.text} ({change.kind.value})", "bold")
        for part in instructions_in(change.after) if prose else ():
            yield _line(f'reads like an instruction to a model: "{part}"', "yellow")
        for mark, value, style in (("-", change.before, "red"), ("+", change.after, "green")):
            if value is not None:
                yield _marked(mark, _spelt_out(value), style)


def _marked(mark: str, text: str, style: str) -> RenderableType:
    """Return each line with its mark; wrapped parts are indented below the text."""
    from rich.padding import Padding
    from rich.table import Column, Table
    from rich.text import Text

    grid = Table.grid("", Column(overflow="fold"), padding=(0, 1, 0, 0))
    for part in safe(text).split("\n"):
        grid.add_row(Text(mark, style=style), Text(part, style=style))
    return Padding(grid, (0, 0, 0, 4))


def _line(text: str, style: str = "") -> RenderableType:
    from counterseal.contract.sources.foreign_text import visible

    return paragraph(visible(text), style=style)


def _spelt_out(value: Any) -> str:
    """Return a value as text, with invisible characters written by name."""
    from counterseal.canonical import thaw
    from counterseal.contract.sources.foreign_text import visible

    if isinstance(value, str):
        return visible(value)
    return visible("\n".join(_json_lines(thaw(value), max(20, console().width - 8))))


def _json_lines(value: Any, width: int) -> Iterator[str]:
    """Yield JSON on as few lines as fit the width."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) <= width or not isinstance(value, dict | list) or not value:
        yield flat
        return
    named = isinstance(value, dict)
    yield "{" if named else "["
    items = value.items() if isinstance(value, dict) else [("", item) for item in value]
    for index, (key, item) in enumerate(items, 1):
        start = f"{json.dumps(key, ensure_ascii=False)}: " if named else ""
        lines = list(_json_lines(item, width - 2 - len(start)))
        lines[0] = f"{start}{lines[0]}"
        lines[-1] += "," if index < len(value) else ""
        yield from (f"  {line}" for line in lines)
    yield "}" if named else "]"


def _record(
    listings: Sequence[Listing],
    findings: Sequence[LockFinding],
    planned: dict[str, UpstreamContracts],
    **more: Sequence[LockFinding],
) -> dict[str, Any]:
    """Return what the upstreams list, the tools that are not accepted, and lists of tools."""
    from counterseal.canonical import thaw
    from counterseal.contract.sources.mcp.definition import describe

    def name_of(finding: LockFinding) -> dict[str, Any]:
        digest = finding.definition.hash if finding.definition else None
        return {"server": finding.server, "tool": finding.tool, "hash": digest}

    servers = [
        {
            "server": listing.server,
            "trouble": listing.error or None,
            "refused": list(listing.unusable),
            "tools": len(listing.definitions),
        }
        for listing in listings
    ]
    tools = []
    for finding in findings:
        if finding.state.value == "accepted":
            continue
        before, after = (finding.pin.definition if finding.pin else None), finding.definition
        changes = () if before is None or after is None else describe(before, after)
        tools.append(
            {
                **name_of(finding),
                "state": finding.state.value,
                "revision": finding.pin.revision if finding.pin else None,
                "before": before.record() if before else None,
                "after": after.record() if after else None,
                "changes": [
                    {
                        "pointer": change.pointer,
                        "kind": change.kind.value,
                        "text": change.text,
                        "before": thaw(change.before),
                        "after": thaw(change.after),
                    }
                    for change in changes
                ],
                "contract_changes": [
                    change.record() for change in _contract_changes(planned, finding)
                ],
            }
        )
    named = {title: [name_of(one) for one in items] for title, items in more.items()}
    return {"servers": servers, "tools": tools, **named}
