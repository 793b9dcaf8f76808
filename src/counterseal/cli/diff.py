"""`counterseal diff`: what upstreams say of their tools now, beside what a person accepted.

What is accepted is what was shown: the definitions that were fetched are the ones that are pinned,
whatever an upstream says a moment later.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from counterseal.cli.output import fail, note, one_line, print_json, safe
from counterseal.cli.serving import need_gateway, usable
from counterseal.cli.trying import project_settings, user_name

if TYPE_CHECKING:
    from counterseal.cli.upstreams import Listing
    from counterseal.config import Settings
    from counterseal.contract.sources.mcp import Finding, Lock

__all__ = ["diff"]

_WAITING = ("new", "changed")
"""States that a person has to look at."""


def diff(
    server: Annotated[
        str | None,
        typer.Argument(metavar="[SERVER]", help="One upstream.  [default: all]"),
    ] = None,
    tool: Annotated[
        str | None,
        typer.Argument(metavar="[TOOL]", help="One of its tools, by the upstream's own name."),
    ] = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Pin what is shown as new or changed.")
    ] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Drop the pins of tools that are gone.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask whether it is meant.")] = False,
    by: Annotated[
        str | None, typer.Option("--by", metavar="NAME", help="Who.  [default: your user name]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what is new or changed at upstreams, and accept it.

    Asks the upstreams which tools they have, and compares that with what was accepted, which is in
    counterseal.lock.
    Characters that can't be seen are written by name. A tool that is not accepted is refused to
    every agent. Exits with 1 when something is not accepted, or an upstream could not be asked.
    """
    need_gateway("mcp")
    settings = project_settings()
    names = _wanted(settings, server)
    lock = _lock(settings)
    from counterseal.cli import diff_view
    from counterseal.cli.upstreams import listings

    asked = listings(settings, names)
    found = _found(lock, asked, settings, server, tool)
    if not asked and not found:
        note("There are no upstreams; `counterseal import URL|COMMAND` begins with one.")
    hidden, faults = _judged(settings, asked, found)
    hidden = [] if tool else hidden
    shown = [one for one in found if one not in hidden]
    if not as_json:
        diff_view.show(asked, shown, hidden)
    taken = [one for one in shown if accept and one.state.value in _WAITING]
    dropped = [one for one in found if forget and one.state.value == "gone"]
    if taken or dropped:
        _ask(len(taken), len(dropped), yes=yes)
        _write(settings, taken, dropped, by or user_name("--by"))
    left = [one for one in shown if one.state.value in _WAITING and one not in taken]
    if as_json:
        print_json(diff_view.record(asked, shown, hidden, taken, dropped))
    else:
        _sum_up(settings, taken, dropped, left)
    _note_troubles(asked, faults)
    if left or any(listing.trouble for listing in asked):
        raise typer.Exit(1)


# Looking ------------------------------------------------------------------------------------------


def _wanted(settings: Settings, server: str | None) -> list[str]:
    if server is None:
        return list(settings.upstreams)
    if server not in settings.upstreams:
        known = ", ".join(settings.upstreams) or "none yet"
        fail(
            f"There is no upstream {server!r} in {settings.file.name}.",
            f"Its upstreams: {known}. `counterseal import` writes what is needed for one.",
        )
    return [server]


def _lock(settings: Settings) -> Lock:
    from counterseal.contract.sources.mcp import Lock

    with usable():
        return Lock.load(settings.lock_path())


def _found(
    lock: Lock,
    asked: Sequence[Listing],
    settings: Settings,
    server: str | None,
    tool: str | None,
) -> list[Finding]:
    """Of each upstream that answered. Of one that did not, nobody knows what is gone."""
    found: list[Finding] = []
    for listing in asked:
        if not listing.trouble:
            found += lock.compare(listing.server, listing.definitions)
    if server is None:
        for name in sorted(set(lock.servers) - set(settings.upstreams)):
            found += lock.compare(name, ())
    if tool is None:
        return found
    named = [one for one in found if one.tool == tool]
    if not named and not any(listing.trouble for listing in asked):
        fail(f"{server} has no tool {tool!r}, and none is pinned under that name.")
    return named


def _judged(
    settings: Settings, asked: Sequence[Listing], found: Sequence[Finding]
) -> tuple[list[Finding], list[str]]:
    """Those that no agent is offered, because the overlay leaves them out: they can wait.

    And what is wrong with overlays, as far as it shows only now.
    """
    from counterseal.errors import ContractError
    from counterseal.gateway.upstream_contracts import upstream_plans

    hidden: list[Finding] = []
    faults: list[str] = []
    with usable():
        planned = upstream_plans(settings)
    for one in found:
        if one.server in planned and one.seen is not None:
            try:
                if planned[one.server].contract(one.seen, revision=1) is None:
                    hidden.append(one)
            except ContractError as error:
                faults += map(str, error.problems)
    for listing in asked:
        overlay = planned[listing.server].overlay
        if overlay is not None and not listing.trouble:
            faults += map(str, overlay.strays(seen.name for seen in listing.definitions))
    return hidden, faults


# Accepting ----------------------------------------------------------------------------------------


def _ask(taken: int, dropped: int, *, yes: bool) -> None:
    parts = [
        f"accept {taken} definition{'' if taken == 1 else 's'}" if taken else "",
        f"forget {dropped} pin{'' if dropped == 1 else 's'}" if dropped else "",
    ]
    asked = " and ".join(filter(None, parts))
    if not yes:
        typer.confirm(f"{asked[:1].upper()}{asked[1:]}?", abort=True, err=True)


def _write(
    settings: Settings, taken: Sequence[Finding], dropped: Sequence[Finding], by: str
) -> None:
    from counterseal.contract.sources.mcp import Lock

    now = datetime.now(UTC).isoformat(timespec="seconds")

    def change(lock: Lock) -> Lock:
        for one in taken:
            if one.seen is not None:
                lock = lock.accept(one.server, one.seen, by=by, at=now)
        for one in dropped:
            # Somebody may have accepted it anew while this was looked at.
            if lock.pin(one.server, one.tool) == one.pin:
                lock = lock.forget(one.server, one.tool)
        return lock

    with usable():
        Lock.update(settings.lock_path(), change)


def _sum_up(
    settings: Settings,
    taken: Sequence[Finding],
    dropped: Sequence[Finding],
    left: Sequence[Finding],
) -> None:
    counts = ((len(taken), "accepted"), (len(dropped), "forgotten"))
    done = ", ".join(f"{count} {word}" for count, word in counts if count)
    if done:
        print(safe(f"{done} in {settings.lock_path().name}."))
    if left:
        note("Accept what you have read: counterseal diff SERVER [TOOL] --accept")


def _note_troubles(asked: Sequence[Listing], faults: Sequence[str]) -> None:
    for fault in faults:
        note(one_line(fault))
    for listing in asked:
        for refused in listing.refused:
            note(f"{listing.server}: {refused.tool} is never offered: {refused.why}")
        if listing.trouble:
            note(f"{listing.server}: could not be asked: {listing.trouble}")
