"""`counterseal audit`: list, show and export events; seal and verify the audit log."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from typer import Argument, Option

from counterseal.cli.options import (
    AllTenants,
    AsJson,
    AsJsonLines,
    By,
    KeysFolder,
    StoreUrl,
    command_group,
    moment,
    with_groups,
)
from counterseal.cli.project import load_keys, one_tenant, user_name, with_store
from counterseal.cli.render import (
    Parts,
    ProgressBar,
    counted,
    fail,
    heading,
    line,
    note,
    one_line,
    print_json_line,
    print_page,
    render,
    safe,
    table,
    title_line,
)

if TYPE_CHECKING:
    from rich.text import Text

    from counterseal.audit import Event
    from counterseal.audit.chain import Checkpoint
    from counterseal.audit.verify import AuditReport
    from counterseal.ledger.requests import EventFilter
    from counterseal.storage import Store
    from counterseal.vault import Vault

PAGE = 1000
"""Events that are read from the store at a time."""
_EVENT_STYLES: Final = {
    "tool.succeeded": "green",
    "tool.failed": "red",
    "tool.denied": "red",
    "approval.required": "yellow",
    "path.escalate": "yellow",
}

_RECEIPT_FIX: Final = "Give the file that `counterseal audit seal --json` wrote."

app = command_group("Look at the audit log, export it, seal it, and verify it.")

OneTenant = Annotated[
    str | None, Option("--tenant", metavar="T", help="One tenant.  [default: the only one]")
]
CallId = Annotated[
    str, Argument(metavar="CALL_ID", help="The id of a call: Counterseal's, or the caller's own.")
]
Tool = Annotated[str | None, Option("--tool", metavar="NAME", help="Of this tool.")]
Run = Annotated[str | None, Option("--run", metavar="ID", help="Of this run.")]
Since = Annotated[
    str | None,
    Option("--since", metavar="TIME", help="From this time on: 2026-07-31T12:00, 2h, 7d."),
]
Until = Annotated[str | None, Option("--until", metavar="TIME", help="Before this time.")]
Limit = Annotated[int, Option(metavar="N", help="How many, newest first.", min=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSearch:
    """The options that say which events are wanted."""

    call: Annotated[str | None, Option("--call", metavar="ID", help="Of this call.")] = None
    run: Run = None
    tool: Tool = None
    types: Annotated[
        list[str] | None, Option("--type", metavar="TYPE", help="Of this type; can be repeated.")
    ] = None
    since: Since = None
    until: Until = None

    def filter(self) -> EventFilter:
        """Return the search. `call_id` is not in it, because it is looked up in the store."""
        from counterseal.audit import EventType
        from counterseal.ledger.requests import EventFilter

        known = [kind.value for kind in EventType]
        for name in self.types or ():
            if name not in known:
                near = get_close_matches(name, known) or known
                fail(f"Unknown event type {name!r}.", f"Did you mean {', '.join(near)}?")
        since, until = _period(self.since, self.until)
        types = self.types or None
        return EventFilter(run_id=self.run, tool=self.tool, types=types, since=since, until=until)


def _period(since: str | None, until: str | None) -> tuple[float | None, float | None]:
    """Return the times of --since and --until in seconds since 1970."""
    now = time.time()
    return (
        None if since is None else moment("--since", since, now),
        None if until is None else moment("--until", until, now),
    )


async def _call_id(store: Store, tenant: str, given: str) -> str:
    """Return Counterseal's id of a call, where the caller's own may be given."""
    from counterseal.operations.auditor import find_call

    return await find_call(store, tenant, given) or given


# Looking -----------------------------------------------------------------------------------------


@app.command("list")
@with_groups
def list_events(
    search: EventSearch,
    tenant: OneTenant = None,
    limit: Limit = 50,
    store: StoreUrl = None,
    as_json: AsJsonLines = False,
) -> None:
    """List events, newest first. Erased events are left out."""
    wanted = search.filter()._replace(newest_first=True)

    async def newest(opened: Store) -> Sequence[tuple[str, Event]]:
        name = await one_tenant(opened, tenant)
        pages = _pages(opened, name, wanted, search.call, limit)
        return [event async for page in pages for event in page]

    events = with_store(store, newest)
    if as_json:
        from counterseal.audit.events import json_line

        sys.stdout.writelines(json_line(*event) for event in events)
    elif not events:
        note("No matching events.")
    else:
        print_page(*_event_pages(events))


@app.command("calls")
def list_calls(
    tenant: OneTenant = None,
    tool: Tool = None,
    version: Annotated[str | None, Option(metavar="V", help="Of this contract version.")] = None,
    agent: Annotated[str | None, Option(metavar="NAME", help="Of this agent.")] = None,
    user: Annotated[str | None, Option(metavar="NAME", help="For this user.")] = None,
    run: Run = None,
    code: Annotated[str | None, Option(metavar="CODE", help="Answered with this code.")] = None,
    external_ref: Annotated[
        str | None, Option(metavar="REF", help="With the destination's own reference.")
    ] = None,
    caller_call_id: Annotated[
        str | None, Option("--caller-call", metavar="ID", help="With this id of the caller's.")
    ] = None,
    workflow: Annotated[str | None, Option(metavar="ID", help="Of this workflow.")] = None,
    conversation: Annotated[str | None, Option(metavar="ID", help="Of this conversation.")] = None,
    session: Annotated[str | None, Option(metavar="ID", help="Of this session.")] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    store: StoreUrl = None,
    as_json: AsJsonLines = False,
) -> None:
    """List calls that were answered, newest first, each with how it ended."""
    from counterseal.ledger.requests import CallFilter
    from counterseal.views.call_page import call_row

    first, last = _period(since, until)
    search = CallFilter(
        *(tool, version, agent, user, run, code),
        *(external_ref, caller_call_id, workflow, conversation, session),
        since=first,
        until=last,
        limit=limit,
    )

    async def newest(opened: Store) -> Sequence[tuple[str, Event]]:
        return await opened.calls(await one_tenant(opened, tenant), search)

    rows = [call_row(event) for _, event in with_store(store, newest)]
    if as_json:
        for row in rows:
            print_json_line(row.model_dump(mode="json"))
    elif not rows:
        note("No matching calls.")
    else:
        # Two lines a call: with more columns, its id would break at 80 columns.
        cells = [
            (
                f"{one_line(row.call_id)}\n{row.at:%Y-%m-%d %H:%M:%S}",
                f"{one_line(row.tool)}\n{one_line(row.agent)}",
                one_line(row.code or ""),
            )
            for row in rows
        ]
        print_page(table(cells, titles=("Call and time", "Tool and agent", "Code"), whole=1))


@app.command("show")
def show(
    call_id: CallId,
    tenant: OneTenant = None,
    arguments: Annotated[
        bool, Option("--arguments", help="Show what was proposed, too; goes on record.")
    ] = False,
    by: By = None,
    store: StoreUrl = None,
    keys: KeysFolder = None,
    as_json: AsJson = False,
) -> None:
    """Show every event of one call, in order, with its approval."""
    from counterseal.ledger.requests import EventFilter
    from counterseal.operations.auditor import read_arguments

    captured: dict[str, Any] = {}

    async def of_call(opened: Store) -> Sequence[tuple[str, Event]]:
        nonlocal call_id
        name = await one_tenant(opened, tenant)
        call_id = await _call_id(opened, name, call_id)
        if arguments:
            who, vault = by or user_name("--by"), load_keys(keys).vault()
            now = time.time()
            capture = await read_arguments(opened, vault, name, call_id, by=who, now=now)
            captured.update(capture.record())
        events = list(await opened.search(name, EventFilter(call_id=call_id)))
        approvals = {event.body.get("approval_id") for _, event in events}
        held = [await opened.find_held(name, one) for one in approvals if isinstance(one, str)]
        # The approval may have been requested by an earlier call with another id.
        for other in {one.call_id for one in held if one is not None} - {call_id}:
            earlier = await opened.search(name, EventFilter(call_id=other))
            events[:0] = [item for item in earlier if item[1].type.value.startswith("approval.")]
        return events

    events = with_store(store, of_call)
    if not events:
        fail(
            f"There is no call {call_id!r} in the audit log.",
            "`counterseal audit calls` lists calls.",
        )
    records = [event.record(item) for item, event in events]
    record: dict[str, Any] = {"call_id": call_id, "events": records}
    if captured:
        record["arguments"] = captured
    render(record, lambda: _call_page(call_id, events, captured), as_json=as_json)


@app.command("forget")
def forget(
    call_id: CallId,
    reason: Annotated[str, Option("--reason", metavar="TEXT", help="Why, for the record.")],
    tenant: OneTenant = None,
    by: By = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Erase the arguments that were kept of a call. Its events stay, and say who erased them."""
    from counterseal.operations.auditor import erase_arguments

    async def erase(opened: Store) -> str:
        name, now = await one_tenant(opened, tenant), time.time()
        found = await _call_id(opened, name, call_id)
        who = by or user_name("--by")
        await erase_arguments(opened, name, found, by=who, reason=reason, now=now)
        return found

    record = {"call_id": with_store(store, erase), "erased": True}
    render(record, lambda: ["The arguments are erased."], as_json=as_json)


# Events as pages ---------------------------------------------------------------------------------


def _event_pages(events: Sequence[tuple[str, Event]]) -> Parts:
    """Yield events in a table for each call."""
    for caller, group in groupby((event for _, event in events), lambda event: event.caller):
        if caller.call_id:
            about = f"  {one_line(caller.tool)}", (f"  {one_line(caller.agent)}", "dim")
            yield line((one_line(caller.call_id), "bold"), *about)
        else:
            yield line(("(no call)", "bold"))
        rows = [
            (
                f"{_time(event):%Y-%m-%d %H:%M:%S}",
                _event_type(event, width=22),
                "  ".join(filter(None, (one_line(event.decision), _code(event)))),
            )
            for event in group
        ]
        yield table(rows, whole=2)


def _call_page(
    call_id: str, events: Sequence[tuple[str, Event]], captured: Mapping[str, Any]
) -> Parts:
    """Yield every event of a call, in the order in which they were recorded."""
    caller = next(event.caller for _, event in events if event.caller.call_id == call_id)
    days = {_time(event).date() for _, event in events}
    yield title_line(caller.tool, caller.version, caller)
    yield line(f"{one_line(caller.call_id)} in run {one_line(caller.run_id)}")
    yield line((f"{min(days)} (UTC), trace {one_line(caller.trace_id)}\n", "dim"))
    shape = "%H:%M:%S.%f" if len(days) == 1 else "%m-%d %H:%M:%S.%f"
    rows = [
        (
            _time(event).strftime(shape)[:-3],
            _event_type(event),
            one_line(event.decision),
            _details(event),
        )
        for _, event in events
    ]
    yield table(rows, titles=("Time", "Event", "Decision", "Code and details"))
    for title, name in (("Arguments", "arguments"), ("As executed", "effective")):
        if captured.get(name) is not None:
            yield heading(title)
            yield line(safe(json.dumps(captured[name], indent=2, ensure_ascii=False)))


def _event_type(event: Event, width: int = 0) -> Text:
    return line((event.type.value.ljust(width), _EVENT_STYLES.get(event.type.value, "")))


def _time(event: Event) -> datetime:
    return datetime.fromtimestamp(event.occurred_at, UTC)


def _code(event: Event) -> str:
    """Return the event's code, unless the decision says the same."""
    code = event.body.get("code")
    return one_line(code) if isinstance(code, str) and code != event.decision else ""


def _details(event: Event) -> str:
    """Return the code, and the values that only this event has."""
    values = {name: value for name, value in event.body.items() if name not in ("code", "gates")}
    gates = event.body.get("gates")
    if isinstance(gates, Mapping):  # a gate that only allowed is recorded as a number
        reasons = {name: entry[1] for name, entry in gates.items() if not isinstance(entry, int)}
        values["gates"] = reasons
    if event.external_ref:
        values["external_ref"] = event.external_ref

    def text(value: Any) -> str:
        if isinstance(value, list | tuple):
            return " ".join(map(text, value))
        if isinstance(value, Mapping):
            return " ".join(f"{name}={text(item)}" for name, item in value.items())
        return str(value)

    parts = [f"{name} {text(value)}" for name, value in values.items() if value]
    return one_line(", ".join(filter(None, (_code(event), *parts))))


# Exporting ---------------------------------------------------------------------------------------


@app.command("export")
@with_groups
def export(
    search: EventSearch,
    form: Annotated[Literal["jsonl", "csv"], Option("--format", help="Which format.")] = "jsonl",
    output: Annotated[Path | None, Option(metavar="FILE", help="File.  [default: stdout]")] = None,
    tenant: AllTenants = None,
    arguments: Annotated[
        bool, Option("--arguments", help="Add what was proposed (JSON Lines); goes on record.")
    ] = False,
    by: By = None,
    store: StoreUrl = None,
    keys: KeysFolder = None,
    as_json: Annotated[bool, Option("--json", help="Short for --format jsonl.")] = False,
) -> None:
    """Write events as JSON Lines or CSV, oldest first.

    In CSV, a cell that a spreadsheet would treat as a formula (it begins with = + - or @) gets an
    apostrophe in front.
    """
    from counterseal.audit.events import csv_head, csv_line, json_line
    from counterseal.operations.auditor import note_export

    wanted, is_csv = search.filter(), form == "csv"
    if as_json and is_csv:
        fail("--json and --format csv contradict each other.", "Give one of them.")
    if arguments and is_csv:
        fail("--arguments works with --format jsonl only.", "Leave out --format csv.")
    progress = ProgressBar("event")

    async def write_all(opened: Store) -> int:
        count = 0
        vault = load_keys(keys).vault() if arguments else None
        with _output(output) as out:
            out.write(csv_head() if is_csv else "")
            for name in [tenant] if tenant is not None else await opened.tenants():
                if vault is not None:
                    which = {"by": by or user_name("--by"), "calls": search.call or "*"}
                    await note_export(opened, name, **which, now=time.time())
                async for page in _pages(opened, name, wanted, search.call):
                    for event in page:
                        if vault is not None:
                            out.write(await _line_with_arguments(opened, vault, name, *event))
                        else:
                            out.write(csv_line(*event) if is_csv else json_line(*event))
                    count += len(page)
                    progress.show(count)
        return count

    with progress:
        count = with_store(store, write_all)
    if output is not None:
        note(f"{counted(count, 'event')} written to {output}.")


async def _line_with_arguments(
    store: Store, vault: Vault, tenant: str, event_id: str, event: Event
) -> str:
    from counterseal.operations.auditor import NotKeptError, open_capture

    record = event.record(event_id)
    if "captured" in event.body:
        try:
            capture = await open_capture(store, vault, tenant, event)
            record["arguments"] = capture.record()
        except NotKeptError as error:
            record["arguments"] = {"not_kept": str(error)}
    return json.dumps(record, ensure_ascii=False) + "\n"


@contextmanager
def _output(file: Path | None) -> Iterator[IO[str]]:
    """Open the output. A file gets its name at the end, so that half an export has another one."""
    if file is None:
        yield sys.stdout
        return
    part = file.with_name(f"{file.name}.part")
    part.unlink(missing_ok=True)

    def opener(path: str, flags: int) -> int:
        return os.open(path, flags, 0o600)  # only its owner may read what tenants did

    with open(part, "x", encoding="utf-8", newline="", opener=opener) as out:
        yield out
    part.replace(file)


async def _pages(
    store: Store, tenant: str, search: EventFilter, call: str | None, limit: int | None = None
) -> AsyncIterator[Sequence[tuple[str, Event]]]:
    """Yield the events of a search, at most PAGE at a time."""
    if call is not None:
        search = search._replace(call_id=await _call_id(store, tenant, call))
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


# Sealing -----------------------------------------------------------------------------------------


@app.command("seal")
def seal(
    tenant: AllTenants = None,
    store: StoreUrl = None,
    keys: KeysFolder = None,
    as_json: AsJsonLines = False,
) -> None:
    """Sign a checkpoint, so that earlier events can't be changed or cut off unnoticed.

    With --json it prints the receipt of each tenant's latest checkpoint. Keep the receipts outside
    of the store, and give them to `counterseal audit verify --receipts`.
    """
    from counterseal.audit.chain import receipt
    from counterseal.operations.auditor import seal_store

    signer = load_keys(keys).signer("audit")
    if signer is None:
        fail("There is no audit key to sign with.", "Create one: `counterseal keys new audit`.")

    async def seal_all(opened: Store) -> list[tuple[str, Checkpoint | None, Checkpoint | None]]:
        names = [tenant] if tenant is not None else await opened.tenants()
        results = []
        for name in names:
            new = await seal_store(opened, name, signer, time.time())
            known = await opened.checkpoints(name)
            results.append((name, new, max(known, key=lambda one: one.number, default=None)))
        return results

    for name, new, latest in with_store(store, seal_all):
        if as_json and latest is not None:
            print_json_line(receipt(latest))
        elif new is None:
            note(f"{name}: no events since the last checkpoint.")
        else:
            segments = counted(len(new.heads), "segment")
            print(f"{name}: checkpoint {new.number} seals {segments}, {new.hash.hex()[:16]}")


# Verifying ---------------------------------------------------------------------------------------


@app.command("verify")
def verify(
    tenant: AllTenants = None,
    receipts: Annotated[
        Path | None, Option(metavar="FILE", help="Receipts that `seal --json` printed.")
    ] = None,
    store: StoreUrl = None,
    keys: KeysFolder = None,
    as_json: AsJson = False,
) -> None:
    """Verify the audit log: nothing changed, missing, inserted or reordered.

    Exits with 1 if something is wrong, and says what and where. Events after the last checkpoint
    are reported as unsealed: they could have been rewritten with write access to the store.
    """
    from counterseal.operations.auditor import count_events, verify_store

    ring, progress = load_keys(keys), ProgressBar("event")
    known: Mapping[str, Mapping[int, bytes]] = {} if receipts is None else _receipts(receipts)

    async def verify_all(opened: Store) -> list[AuditReport]:
        names = [tenant] if tenant else sorted({*await opened.tenants(), *known})
        total = sum([await count_events(opened, name) for name in names])
        reports: list[AuditReport] = []

        def show_count(count: int) -> None:
            progress.show(sum(report.events for report in reports) + count, total)

        for name in names:
            own = known.get(name)
            reports.append(
                await verify_store(opened, name, ring, receipts=own, progress=show_count)
            )
        return reports

    with progress:
        reports = with_store(store, verify_all)
    ok = all(report.ok for report in reports)
    record = {"ok": ok, "tenants": reports}
    render(record, lambda: (text for one in reports for text in _report(one)), as_json=as_json)
    for report in [] if as_json else reports:
        if report.events and not report.checkpoints:
            note(
                f"{report.tenant}: nothing is sealed, so everything could have been rewritten with"
                " write access to the store. Seal it with `counterseal audit seal`."
            )
    if not reports and not as_json:
        note("The store has no events yet.")
    if not ok:
        raise typer.Exit(1)


def _receipts(file: Path) -> dict[str, dict[int, bytes]]:
    """Return the hash of each checkpoint in a file of receipts, by tenant and number."""
    receipts: dict[str, dict[int, bytes]] = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        fail(f"Can't read {file}: {why}.", _RECEIPT_FIX)
    for number, text in enumerate(lines, 1):
        try:
            receipt = json.loads(text)
            digest = bytes.fromhex(receipt["hash"])
            receipts.setdefault(str(receipt["tenant"]), {})[int(receipt["number"])] = digest
        except (ValueError, KeyError, TypeError):
            fail(f"{file}:{number}: not a receipt.", _RECEIPT_FIX)
    return receipts


def _report(report: AuditReport) -> Iterator[str]:
    """Yield a line about a tenant, and a line for each finding."""
    segments = counted(report.segments, "segment")
    verdict = "intact" if report.ok else counted(report.found, "finding")
    parts = [f"{report.unsealed:,} unsealed"]
    if report.sealed:
        parts.insert(0, f"{report.sealed:,} sealed by {counted(report.checkpoints, 'checkpoint')}")
    if report.erased:
        unsealed = f" ({report.erased_unsealed:,} of them unsealed)"
        parts.append(f"{report.erased:,} erased{unsealed if report.erased_unsealed else ''}")
    start = f"{one_line(report.tenant)}: {counted(report.events, 'event')} in {segments}: {verdict}"
    yield f"{start}; {', '.join(parts)}"
    for finding in report.findings:
        where = finding.event_id or ""
        if finding.segment is not None:
            place = "" if finding.place is None else f", place {finding.place}"
            where += f" (segment {finding.segment}{place})"
        subject = f"{one_line(where)}: " if where else ""
        yield f"  {finding.kind}: {subject}{one_line(finding.message)}"
    if report.found > len(report.findings):
        yield f"  … and {report.found - len(report.findings):,} more"
