"""`counterseal approvals`: what waits for a person, what exactly is asked, and their yes or no.

Works on the project's store, and needs its contracts: nobody decides on what can't be shown. How
the project is opened and who decides is in `approvals_desk`, how a request looks in
`approvals_view`, how a vote is taken in `approvals_vote`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from counterseal.cli.approvals_desk import Desk, at_desk, person_of
from counterseal.cli.approvals_view import (
    Format,
    Listed,
    listed,
    print_listed,
    print_packet,
    record_of,
)
from counterseal.cli.approvals_vote import (
    EXIT_CODES,
    Words,
    check,
    decide,
    found,
    located,
    make_sure,
    note_unsigned,
    reject_unshown,
    show_before,
    shown_if_any,
)
from counterseal.cli.output import fail, note, print_json
from counterseal.cli.stores import StoreUrl
from counterseal.cli.trying import project_settings

__all__ = ["app"]

app = typer.Typer(
    help="See what waits for a person's approval, and decide on it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="The request, as `list` shows it.")]
OfTenant = Annotated[str | None, typer.Option("--tenant", metavar="T", help="Whose request.")]
As = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="NAME",
        help="Who decides: a name from [approvers] in counterseal.toml.  [default: your user name]",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask whether it is meant.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


# Looking -----------------------------------------------------------------------------------------


@app.command("list")
def list_requests(
    status: Annotated[
        str,
        typer.Option(
            "--status",
            metavar="S",
            help="waiting, approved, rejected, expired, spent or void.",
        ),
    ] = "waiting",
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="T", help="Of this tenant only.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="How many.", min=1)] = 50,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List requests for approval: what ends first, or of what is decided the latest, at the top."""
    from counterseal.storage.base import HeldStatus

    if status not in set(HeldStatus):
        fail(f"There is no status {status!r}.", f"There are: {', '.join(HeldStatus)}.")
    with at_desk(project_settings(), store) as desk:
        found = desk.do(_list(desk, tenant, status, limit))
        now = desk.runtime.clock()
    if as_json:
        print_json([record_of(one) for one in found])
        return
    if not found:
        print("Nothing waits for an approval." if status == "waiting" else f"None is {status}.")
    for one in found:
        print_listed(one, now)


async def _list(desk: Desk, tenant: str | None, status: str, limit: int) -> Sequence[Listed]:
    there = await desk.runtime.approvals.list(tenant, status=status, limit=limit)
    return [await listed(desk.runtime, held) for held in there]


@app.command("show")
def show(
    approval_id: ApprovalId,
    form: Annotated[
        Format, typer.Option("--format", metavar="F", help="text, markdown, html or json.")
    ] = Format.TEXT,
    tenant: OfTenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show what exactly is asked, beginning with what happens if it is approved."""
    with at_desk(project_settings(), store) as desk:
        packet = found(desk, located(desk, approval_id, tenant, as_json=as_json), as_json=as_json)
        print_packet(packet, Format.JSON if as_json else form, desk.runtime.clock())


@app.command("watch")
def watch(
    once: Annotated[bool, typer.Option("--once", help="End when there is one.")] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", help="Between two looks.", min=0.1)
    ] = 2.0,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="T", help="Of this tenant only.")
    ] = None,
    store: StoreUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
) -> None:
    """Print what waits, then each request as it comes, until Ctrl-C."""
    with at_desk(project_settings(), store) as desk:
        if sys.stderr.isatty():
            note("Waiting for requests; Ctrl-C ends it.")
        desk.do(_watch(desk, tenant, every, once=once, as_json=as_json))


async def _watch(
    desk: Desk, tenant: str | None, every: float, *, once: bool, as_json: bool
) -> None:
    import asyncio

    told: set[str] = set()
    while True:
        there = await desk.runtime.approvals.list(tenant, limit=1000)
        new = [held for held in there if held.approval_id not in told]
        for held in new:
            _tell(await listed(desk.runtime, held), desk.runtime.clock(), as_json=as_json)
        if once and new:
            return
        told = {held.approval_id for held in there}
        await asyncio.sleep(every)


def _tell(one: Listed, now: float, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(record_of(one)), flush=True)
    else:
        print_listed(one, now)


# Deciding ----------------------------------------------------------------------------------------


@app.command("approve", epilog=EXIT_CODES)
def approve(
    approval_id: ApprovalId,
    comment: Annotated[str, typer.Option("--comment", metavar="TEXT", help="For the record.")] = "",
    justification: Annotated[
        str,
        typer.Option(
            "--justification", metavar="TEXT", help="Why it may be done, if that is asked."
        ),
    ] = "",
    who: As = None,
    yes: Yes = False,
    confirm: Annotated[
        str | None,
        typer.Option(
            "--confirm",
            metavar="TEXT",
            help="For a CRITICAL_MUTATION: the tool's name, instead of typing it.",
        ),
    ] = None,
    tenant: OfTenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Approve a request: exactly this call, once.

    Shows what would happen, and asks. For a CRITICAL_MUTATION the tool's name has to be typed, or
    the end of the request's id.
    """
    settings = project_settings()
    person = person_of(settings, who)
    with at_desk(settings, store) as desk:
        held = located(desk, approval_id, tenant, person, as_json=as_json)
        packet = found(desk, held, as_json=as_json)
        show_before(desk, packet, quiet=as_json and (yes or confirm is not None))
        said = Words(comment=comment, justification=justification)
        check(desk, packet, person, "approve", said, as_json=as_json)
        note_unsigned(desk)
        make_sure(packet, "approve", yes=yes, confirm=confirm)
        decide(desk, packet, person, "approve", said, as_json=as_json)


@app.command("reject", epilog=EXIT_CODES)
def reject(
    approval_id: ApprovalId,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why not; the agent reads it.")
    ],
    who: As = None,
    yes: Yes = False,
    tenant: OfTenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Reject a request. One rejection ends it, and the agent is told why."""
    if not reason.strip():
        fail("--reason is empty.", "Say why not: the agent plans anew with it.")
    settings = project_settings()
    person = person_of(settings, who)
    with at_desk(settings, store) as desk:
        held = located(desk, approval_id, tenant, person, as_json=as_json)
        said = Words(comment=reason, justification="")
        packet = shown_if_any(desk, held)
        if packet is None:
            reject_unshown(desk, held, person, said, yes=yes, as_json=as_json)
            return
        show_before(desk, packet, quiet=as_json and yes)
        check(desk, packet, person, "reject", said, as_json=as_json)
        make_sure(packet, "reject", yes=yes)
        decide(desk, packet, person, "reject", said, as_json=as_json)
