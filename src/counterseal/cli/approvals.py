"""`counterseal approvals`: list, show, approve and reject requests for approval.

Works on the project's store and needs its contracts, because a request is approved only after its
packet was shown. A rejection needs no packet.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from typer import Argument, Option

from counterseal.cli.options import STORE_VARIABLE, AllTenants, AsJson, StoreUrl, Yes, command_group
from counterseal.cli.project import existing_store, open_project, project_settings, user_name
from counterseal.cli.render import (
    Parts,
    can_show,
    console,
    fail,
    note,
    one_line,
    paragraph,
    print_json,
    print_json_line,
    print_page,
    render,
)

if TYPE_CHECKING:
    import asyncio

    from counterseal.approvals.packet import Packet
    from counterseal.approvals.terms import Voter
    from counterseal.config import Settings
    from counterseal.config.tables import ApproverTable
    from counterseal.ledger.records import Held
    from counterseal.runtime import Runtime
    from counterseal.views.approvals import ApprovalRow

T = TypeVar("T")

EXIT_CODES = """\
\b
Exit codes:
  0  the vote is on record
  1  the vote was refused, or not confirmed
  2  wrong use: no such request, not an approver, no store
  4  too late: the request is decided already, or has expired
"""
REFUSED, UNKNOWN, TOO_LATE = 1, 2, 4
_CODES = {"unknown": UNKNOWN, "tenant": UNKNOWN, "expired": TOO_LATE, "decided": TOO_LATE}
_FIXES = {
    "unknown": "`counterseal approvals list` shows the waiting requests.",
    "justification": "Give --justification TEXT.",
    "keys": "Create a key with `counterseal keys new approval`. A public key is not enough.",
    "contract": "Approve it from a project that has this version. You can reject it without.",
    "unreadable": "You can still reject it.",
}
_REJECTED = "Rejected. The agent gets your reason."
_UNSIGNED = (
    "This approval will not be signed, and workers that have an approval key will refuse it.\n"
    "Create a key with `counterseal keys new approval`."
)

app = command_group("List requests for approval, and decide on them.")

ApprovalId = Annotated[str, Argument(metavar="ID", help="The request, as `list` shows it.")]
OfTenant = Annotated[str | None, Option("--tenant", metavar="T", help="The request's tenant.")]
As = Annotated[
    str | None,
    Option(
        "--as",
        metavar="NAME",
        help="The approver: a name in [approvers] of counterseal.toml.  [default: your user name]",
    ),
]


# Looking -----------------------------------------------------------------------------------------


@app.command("list")
def list_requests(
    status: Annotated[
        str, Option(metavar="S", help="waiting, approved, rejected, expired, executed or void.")
    ] = "waiting",
    tenant: AllTenants = None,
    limit: Annotated[int, Option(metavar="N", help="How many.", min=1)] = 50,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List requests for approval.

    Waiting requests are ordered by expiry, decided ones newest first.
    """
    from counterseal.approvals.display import shown_status, stored_status
    from counterseal.ledger.records import HeldStatus

    stored = stored_status(status)
    if stored not in set(HeldStatus):
        known = map(shown_status, HeldStatus)
        fail(f"Unknown status {status!r}.", f"Allowed: {', '.join(known)}.")
    with opened_project(project_settings(), store) as project:
        requests = project.run(_requests(project, tenant, stored, limit))
        now = project.runtime.clock()

    def page() -> Parts:
        if not requests:
            waiting = status == "waiting"
            yield "No request is waiting for approval." if waiting else f"No request is {status}."
        for request in requests:
            yield from _entry(*request, now)

    render([_request_record(*request) for request in requests], page, as_json=as_json)


@app.command("show")
def show(
    approval_id: ApprovalId,
    form: Annotated[
        Literal["text", "markdown", "html", "json"],
        Option("--format", metavar="F", help="text, markdown, html or json."),
    ] = "text",
    tenant: OfTenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show a request, starting with what happens if it is approved."""
    from counterseal.approvals.packet_formats import html, markdown
    from counterseal.views.approvals import approval_page, current, needed

    with opened_project(project_settings(), store, approval_id, as_json=as_json) as project:
        now = project.runtime.clock()
        packet = current(project.packet(project.find(approval_id, tenant)), now)
        if as_json or form == "json":
            voters = project.voters(packet.tenant)
            print_json(approval_page(packet, needed(project.runtime, packet, voters)))
        elif form == "text":
            sys.stdout.write(_card(packet, now))
        else:
            text = markdown(packet) if form == "markdown" else html(packet)
            sys.stdout.write(f"{text.rstrip()}\n")


@app.command("watch")
def watch(
    once: Annotated[bool, Option("--once", help="Stop after the first request.")] = False,
    every: Annotated[float, Option(metavar="SECONDS", help="Polling interval.", min=0.1)] = 2.0,
    tenant: AllTenants = None,
    store: StoreUrl = None,
    as_json: Annotated[bool, Option("--json", help="Print a JSON object a line.")] = False,
) -> None:
    """Print the waiting requests, then each new one, until Ctrl-C."""
    with opened_project(project_settings(), store) as project:
        if sys.stderr.isatty():
            note("Waiting for requests. Stop with Ctrl-C.")
        project.run(_watch(project, tenant, every, once=once, as_json=as_json))


async def _watch(
    project: OpenedProject, tenant: str | None, every: float, *, once: bool, as_json: bool
) -> None:
    import asyncio

    printed: set[str] = set()
    while True:
        requests = await _requests(project, tenant, "waiting", 1000)
        new = [(name, row) for name, row in requests if row.approval_id not in printed]
        for request in new:
            if as_json:
                print_json_line(_request_record(*request))
            else:
                print_page(*_entry(*request, project.runtime.clock()))
                sys.stdout.flush()
        if once and new:
            return
        printed = {row.approval_id for _, row in requests}
        await asyncio.sleep(every)


# Deciding ----------------------------------------------------------------------------------------


@app.command("approve", epilog=EXIT_CODES)
def approve(
    approval_id: ApprovalId,
    comment: Annotated[str, Option(metavar="TEXT", help="For the record.")] = "",
    justification: Annotated[
        str, Option(metavar="TEXT", help="Why it may be done, if the request asks.")
    ] = "",
    who: As = None,
    yes: Yes = False,
    confirm: Annotated[
        str | None,
        Option(
            metavar="TEXT", help="For a CRITICAL_MUTATION: the tool's name, instead of typing it."
        ),
    ] = None,
    tenant: OfTenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Approve a request: exactly this call, once.

    Shows what would happen, and asks. For a CRITICAL_MUTATION you type the tool's name, or the end
    of the request's id.
    """
    settings = project_settings()
    name, table = _approver(settings, who)
    comments = {"comment": comment, "justification": justification}
    with opened_project(settings, store, approval_id, as_json=as_json) as project:
        held = project.find(approval_id, tenant, table.tenants)
        voter = _voter(name, table, held.tenant)
        packet = project.packet(held)
        _show_before_vote(project, packet, quiet=as_json and (yes or confirm is not None))
        _check_vote(project, packet, voter, "approve", comments)
        if not project.has_approval_key:
            note(_UNSIGNED)
        if packet.risk == "CRITICAL_MUTATION":
            _confirm_critical(packet, yes=yes, confirm=confirm)
        elif not yes and confirm is None:
            typer.confirm("Approve?", abort=True, err=True)
        _vote(project, held, voter, "approve", comments, as_json=as_json)


@app.command("reject", epilog=EXIT_CODES)
def reject(
    approval_id: ApprovalId,
    reason: Annotated[str, Option(metavar="TEXT", help="Why not. The agent reads it.")],
    who: As = None,
    yes: Yes = False,
    tenant: OfTenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Reject a request. One rejection ends it, and the agent gets the reason."""
    from counterseal.operations.approver import ApprovalError

    if not reason.strip():
        fail("--reason must not be empty.", "Say why not: the agent plans its next step with it.")
    settings = project_settings()
    name, table = _approver(settings, who)
    comments = {"comment": reason}
    with opened_project(settings, store, approval_id, as_json=as_json) as project:
        held = project.find(approval_id, tenant, table.tenants)
        voter = _voter(name, table, held.tenant)
        try:
            packet = project.packet(held)
        except ApprovalError as error:  # does not prevent a rejection
            note(f"The request can't be shown here: {one_line(str(error))}")
        else:
            _show_before_vote(project, packet, quiet=as_json and yes)
            _check_vote(project, packet, voter, "reject", comments)
        if not yes:
            typer.confirm("Reject?", abort=True, err=True)
        _vote(project, held, voter, "reject", comments, as_json=as_json)


def _confirm_critical(packet: Packet, *, yes: bool, confirm: str | None) -> None:
    words = (packet.tool, packet.approval_id, packet.approval_id.rpartition("_")[2])
    if confirm is None and yes:
        fail(
            "The call is a CRITICAL_MUTATION, and --yes alone does not approve it.",
            f"Read what happens, then give --confirm {packet.tool}.",
        )
    if confirm is not None:
        if confirm not in words:
            fail(f"--confirm must be {packet.tool}.", "Nothing was decided.")
        return
    question = f"Type {packet.tool} to approve it"
    typed: str = typer.prompt(question, default="", show_default=False, err=True)
    if typed.strip() not in words:
        fail(f"You typed {typed!r}; expected {packet.tool}.", "Nothing was decided.", code=REFUSED)


def _check_vote(
    project: OpenedProject, packet: Packet, voter: Voter, choice: str, comments: dict[str, str]
) -> None:
    """Raise ApprovalError if the vote would be refused, before the person confirms it."""
    from counterseal.approvals.terms import Choice, Objection, cast
    from counterseal.operations.approver import ApprovalError

    now = project.runtime.clock()
    vote = cast(packet.demand, packet.pending, voter, Choice(choice), now=now, **comments)
    if isinstance(vote, Objection):
        raise ApprovalError(vote.value, vote.text_for(packet.demand, packet.votes))


def _vote(
    project: OpenedProject,
    held: Held,
    voter: Voter,
    decision: str,
    comments: dict[str, str],
    *,
    as_json: bool,
) -> None:
    """Record the vote, and print the request's new state."""
    approvals = project.runtime.approvals
    after = project.run(approvals.decide(held.approval_id, voter, decision, **comments))
    record: dict[str, Any] = {
        "decision": decision,
        "approver": voter.user,
        "approval_id": held.approval_id,
        "status": "rejected" if after is None else after.status,
    }
    if after is not None:  # else the request can't be shown here
        record |= {"votes": after.so_far, "missing": _missing(after)}
        record |= {"then": after.demand.then.value}
    render(record, lambda: [_REJECTED if after is None else _outcome(after)], as_json=as_json)


# The project, open while a person reads ----------------------------------------------------------


class OpenedProject:
    """The project's runtime on an event loop that rests while a person reads and answers."""

    def __init__(self, runtime: Runtime, runner: asyncio.Runner, settings: Settings) -> None:
        self.runtime = runtime
        self._runner = runner
        self._settings = settings

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    @property
    def has_approval_key(self) -> bool:
        ring = self.runtime.keys
        return ring is not None and any(key.purpose == "approval" for key in ring.keys)

    def find(
        self, approval_id: str, tenant: str | None, visible: Sequence[str] | None = None
    ) -> Held:
        """Return the request with this id, in the tenants that are visible; None means all."""
        from counterseal.operations.approver import ApprovalError

        async def search() -> Held:
            tenants = await self.runtime.store.tenants() if tenant is None else [tenant]
            for name in tenants:
                if visible is None or name in visible:
                    try:
                        return await self.runtime.approvals.find(name, approval_id)
                    except ApprovalError as error:
                        if error.why != "unknown":
                            raise
            raise ApprovalError("unknown", f"There is no request {approval_id}.")

        return self.run(search())

    def voters(self, tenant: str) -> list[Voter]:
        """Return the approvers in the configuration file who may vote in a tenant."""
        people = self._settings.approvers.items()
        return [_voter(name, table, tenant) for name, table in people if table.sees(tenant)]

    def packet(self, held: Held) -> Packet:
        return self.run(self.runtime.approvals.get(held.tenant, held.approval_id))


@contextmanager
def opened_project(
    settings: Settings, store: str | None, approval_id: str = "", *, as_json: bool = False
) -> Iterator[OpenedProject]:
    """Open the project on its existing store, and close it at the end.

    An ApprovalError about the request ends the command with the reason, as JSON if asked for.
    """
    import asyncio

    from counterseal.config import without_notifications
    from counterseal.errors import CountersealError
    from counterseal.operations.approver import ApprovalError

    existing_store(store or os.environ.get(STORE_VARIABLE) or settings.store_url())
    # No notification is sent from here, so the webhook's secret is not needed.
    runtime = open_project(without_notifications(settings), store)
    try:
        with asyncio.Runner() as runner:
            runner.run(runtime.__aenter__())
            try:
                yield OpenedProject(runtime, runner, settings)
            finally:
                runner.run(runtime.__aexit__(None, None, None))
    except ApprovalError as error:
        code = _CODES.get(error.why, REFUSED)
        if as_json:
            print_json({"approval_id": approval_id, "why": error.why, "message": str(error)})
            raise typer.Exit(code) from None
        fail(one_line(str(error)), _FIXES.get(error.why, ""), code=code)
    except CountersealError as error:
        fail(one_line(str(error)), code=1)


def _approver(settings: Settings, given: str | None) -> tuple[str, ApproverTable]:
    """Return the named approver, else the user at the terminal. The file must declare them."""
    from counterseal.proposal import folded

    wanted = given or user_name("--as")
    for name, table in settings.approvers.items():
        if folded(name) == folded(wanted):
            return name, table
    bare = wanted.replace("-", "").replace("_", "").isalnum() and wanted.isascii()
    key = wanted if bare else f'"{wanted}"'
    who = f"{wanted!r}" if given else f"Your user name {wanted!r}"
    otherwise = "" if given else ", or name the approver with --as NAME"
    names = ", ".join(sorted(settings.approvers))
    others = f" Declared approvers: {names}." if names else ""
    return fail(
        one_line(f"{who} is not an approver in {settings.file.name}."),
        one_line(f"Write [approvers.{key}] with roles = [] into it{otherwise}.{others}"),
    )


def _voter(name: str, table: ApproverTable, tenant: str) -> Voter:
    from counterseal.approvals.terms import Voter

    return Voter(user=name, tenant=tenant, roles=frozenset(table.roles))


# Rows and pages ----------------------------------------------------------------------------------


async def _requests(
    project: OpenedProject, tenant: str | None, status: str, limit: int
) -> list[tuple[str, ApprovalRow]]:
    """Return requests with their tenants, because a list may span tenants."""
    from counterseal.views.approvals import approval_row

    runtime = project.runtime
    requests = await runtime.approvals.list(tenant, status=status, limit=limit)
    return [
        (held.tenant, approval_row(runtime, held, others=project.voters(held.tenant)))
        for held in requests
    ]


def _request_record(tenant: str, row: ApprovalRow) -> dict[str, Any]:
    return {"tenant": tenant, **row.model_dump(mode="json")}


def _entry(tenant: str, row: ApprovalRow, now: float) -> Parts:
    """Yield lines: id and state, the consequence, the tool and its caller, a role still needed."""
    from rich.text import Text

    from counterseal.approvals.display import clock, shown_status, span

    expires_at = row.expires_at.timestamp()
    state = shown_status(row.status)
    if row.status == "expired" and now >= expires_at:
        state = f"expired at {clock(expires_at)}"
    elif row.status == "waiting":
        state = f"{span(expires_at - now)} left"
    votes = f"{row.approved} of {row.approvers} approved"
    consequence = row.consequence or f"(can't be shown here: {row.unreadable})"
    caller = row.agent if row.user is None else f"{row.agent} for {row.user}"
    about = f"{row.tool} {row.version}, {row.risk_class}, by {caller}, tenant {tenant}"
    yield Text(f"{one_line(row.approval_id)}  {votes}, {state}", style="bold")
    for text in filter(None, (consequence, about, row.needed)):
        yield paragraph(one_line(text), indent=4)


def _card(packet: Packet, now: float) -> str:
    """Return the packet as text, as wide as the terminal."""
    from counterseal.approvals.packet_formats import text

    waits = packet.status == "waiting"
    plain = not can_show("┌│└─→…")
    return text(packet, console().width, now=now if waits else None, plain=plain)


def _show_before_vote(project: OpenedProject, packet: Packet, *, quiet: bool) -> None:
    """Print the packet on stderr: it is not the command's result."""
    from counterseal.views.approvals import current

    if not quiet:
        now = project.runtime.clock()
        note(_card(current(packet, now), now).rstrip())


def _missing(packet: Packet) -> int:
    """Return how many approvals are still missing; 0 for a decided request."""
    waits = packet.status == "waiting"
    return packet.demand.approvers - packet.approved if waits else 0


def _outcome(packet: Packet) -> str:
    from counterseal.approvals.display import clock, shown_status

    if packet.status == "rejected":
        return _REJECTED
    if packet.status == "waiting":
        more = f"{_missing(packet)} more needed. {packet.needed}".rstrip()
        return f"Your approval is on record: {packet.so_far}. {more}"
    if packet.status != "approved":
        return f"Your vote is on record. The request is {shown_status(packet.status)}."
    if packet.demand.then.value == "execute":
        return "Approved. The next pass of `counterseal reconcile` executes the call."
    return f"Approved. The agent can send the call again until {clock(packet.expires_at)}."
