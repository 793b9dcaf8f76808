"""`counterseal reconcile`: do the due work, and decide what needs an operator's attention."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer import Argument, Option

from counterseal.cli.options import AsJson, AsTenant, By, StoreUrl
from counterseal.cli.project import open_project, project_settings, user_name
from counterseal.cli.render import (
    fail,
    fields,
    heading,
    note,
    one_line,
    print_json_line,
    render,
    safe,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from counterseal.config import Settings
    from counterseal.ledger.records import DueKind
    from counterseal.operations.attention import NeedsAttention
    from counterseal.reconcile import Tally
    from counterseal.runtime import Runtime
    from counterseal.views.attention import AttentionRow

app = typer.Typer(
    help="Do the due work of calls: find outcomes, verify, reverse, forget, seal.",
    invoke_without_command=True,
    rich_markup_mode=None,
)

T = TypeVar("T")
Key = Annotated[
    str, Argument(metavar="KEY", help="The key, as `list` shows it, or an id of the call.")
]
Kind = Annotated[str, Argument(metavar="KIND", help="verify or compensate.")]
Reason = Annotated[str, Option("--reason", metavar="TEXT", help="Why, for the record.")]

_RESULTS: Mapping[str, str] = {
    "found": "found at the destination",
    "retried": "run again with the same key",
    "not_done": "not executed; the keys are free again",
    "escalated": "listed under Needs attention",
    "resting": "not settled yet; tried again later",
    "verified": "verified",
    "unverified": "not as expected; listed under Needs attention",
    "overtaken": "changed by others before they could be verified",
    "compensated": "reversed",
    "compensation_failed": "could not be reversed; listed under Needs attention",
    "waiting": "waiting for an approval",
    "executed": "executed after approval",
    "refused": "approved, but no longer allowed",
    "notified": "notified",
    "not_notified": "could not be notified; listed under Needs attention",
    "expired approvals": "requests for approval expired",
    "dropped": "needed nothing any more",
    "failed": "failed; tried again later",
    "abandoned": "of tools that are not registered; listed under Needs attention",
    "sealed": "tenants sealed with a checkpoint",
    "expired keys": "stored answers forgotten",
    "expired vault": "raw outputs forgotten",
    "expired events": "events erased",
    "expired counters": "old counters removed",
}
"""What each count of a pass means."""

_NEXT_STEPS: Mapping[str, str] = {
    "unknown": "`counterseal reconcile settle KEY --happened` or `--did-not-happen`",
    "verify": "`counterseal reconcile again verify KEY`, `undo KEY` or `dismiss verify KEY`",
    "compensate": "`counterseal reconcile again compensate KEY` or `dismiss compensate KEY`",
}


# Passes ------------------------------------------------------------------------------------------


@app.callback()
def reconcile(
    context: typer.Context,
    watch: Annotated[bool, Option("--watch", help="Pass after pass, until Ctrl-C.")] = False,
    every: Annotated[float, Option(metavar="SECONDS", help="Time between passes.", min=0.1)] = 5.0,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Do all due work: one pass, or one after another.

    Finds calls whose worker is gone and does what their contracts say; verifies; reverses what
    should be reversed; forgets what has expired; seals the audit log if there is a key. Several
    reconcilers may run at once.
    """
    if context.invoked_subcommand is not None:
        return
    settings = project_settings()

    async def passes(runtime: Runtime) -> None:
        import asyncio

        from counterseal.errors import StoreError
        from counterseal.reconcile import Reconciler, Retention

        reconciler = Reconciler(runtime, retention=Retention(**dict(settings.retention)))
        while True:
            try:
                tell = _note_count if sys.stderr.isatty() else None
                tally = await reconciler.once(tell=tell, last=not watch)
                _print_tally(tally, as_json=as_json, watch=watch)
            except StoreError as error:
                if not watch:
                    raise
                note(f"{one_line(str(error))} The next pass tries again.")
            if not watch:
                return
            await asyncio.sleep(every)

    _with_runtime(settings, store, passes)


def _note_count(tally: Tally) -> None:
    note(f"{sum(tally.values())} so far")


def _print_tally(tally: Tally, *, as_json: bool, watch: bool) -> None:
    if as_json:
        print_json_line(dict(tally))
        return
    if not tally and not watch:
        print("Nothing was due.")
    stamp = time.strftime("%H:%M:%S ") if watch else ""
    for name, count in sorted(tally.items()):
        print(f"{stamp}{count} {_RESULTS.get(name, name)}", flush=True)


# What needs attention ----------------------------------------------------------------------------


@app.command("list")
def list_attention(
    tenant: AsTenant = None, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """List what needs attention: outcomes that an operator has to decide, oldest first."""
    from counterseal.views.attention import attention_row

    async def listed(runtime: Runtime) -> list[tuple[str, AttentionRow]]:
        items = await runtime.store.concerns(tenant, 1000)
        return [(item.tenant, await attention_row(runtime.store, item)) for item in items]

    rows = _with_runtime(project_settings(), store, listed)

    def page() -> Iterator[RenderableType]:
        if not rows:
            yield "Nothing needs attention."
        for name, row in rows:
            yield from _entry(name, row)

    records = [{"tenant": name, **row.model_dump(mode="json")} for name, row in rows]
    render(records, page, as_json=as_json)


@app.command("settle")
def settle(
    key: Key,
    reason: Reason,
    happened: Annotated[
        bool, Option("--happened/--did-not-happen", help="Whether the call took effect.")
    ],
    tenant: AsTenant = None,
    data: Annotated[str | None, Option(metavar="JSON", help="What the call returned.")] = None,
    by: By = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Record the outcome of a call that could not be found out."""
    returned = None if data is None else _object(data)

    async def act(attention: NeedsAttention, owner: str) -> None:
        if happened:
            await attention.happened(owner, key, reason=reason, data=returned)
        else:
            await attention.did_not_happen(owner, key, reason=reason)

    _decide(store, by, tenant, key, act)
    text = "Recorded: the call took effect." if happened else "Recorded: the call had no effect."
    _print_decision(text, key, "happened" if happened else "did_not_happen", as_json=as_json)


@app.command("undo")
def undo(
    call: Key,
    reason: Reason,
    tenant: AsTenant = None,
    by: By = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Reverse a call with the compensation tool of its contract."""
    if tenant is None:
        fail("The call's tenant is missing. Give it with --tenant T.")
    _attend(store, by, lambda attention: attention.compensate(tenant, call, reason=reason))
    text = "The next pass of `counterseal reconcile` reverses it."
    _print_decision(text, call, "compensate", as_json=as_json)


@app.command("again")
def again(
    kind: Kind,
    key: Key,
    reason: Reason,
    tenant: AsTenant = None,
    by: By = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Try a failed verification or reversal once more."""
    due = _due_kind(kind)
    _decide(
        store, by, tenant, key, lambda items, owner: items.again(owner, due, key, reason=reason)
    )
    text = "The next pass of `counterseal reconcile` tries it again."
    _print_decision(text, key, "again", as_json=as_json)


@app.command("dismiss")
def dismiss(
    kind: Kind,
    key: Key,
    reason: Reason,
    tenant: AsTenant = None,
    by: By = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Dismiss a failed verification or reversal: it needs no attention any more."""
    due = _due_kind(kind)
    _decide(
        store, by, tenant, key, lambda items, owner: items.dismiss(owner, due, key, reason=reason)
    )
    _print_decision("Dismissed.", key, "dismissed", as_json=as_json)


def _print_decision(text: str, key: str, decision: str, *, as_json: bool) -> None:
    render({"key": key, "decision": decision}, lambda: [text], as_json=as_json)


def _entry(tenant: str, row: AttentionRow) -> Iterator[RenderableType]:
    yield heading(safe(f"{row.kind}: {row.tool} {row.version}"))
    yield fields(
        [
            ("What it does", row.consequence or ""),
            ("Resource", row.resource or ""),
            ("Reason", row.reason),
            ("Since", f"{row.since:%Y-%m-%d %H:%M:%S} UTC" if row.since else ""),
            ("Tenant", tenant),
            ("Key", row.key),
            ("Call", row.call_id),
            ("Run", row.run_id),
            ("What to do", _NEXT_STEPS.get(row.kind, "")),
        ]
    )


# Working on the store ----------------------------------------------------------------------------


def _with_runtime(
    settings: Settings, store: str | None, work: Callable[[Runtime], Awaitable[T]]
) -> T:
    import asyncio

    from counterseal.errors import CountersealError

    if store is None and settings.store_url() is None:
        fail(
            "No store is configured, so no work can be due.",
            f'Write [store] url = "sqlite:///counterseal.db" into {settings.file.name}.',
        )
    runtime = open_project(settings, store)

    async def run() -> T:
        async with runtime:
            return await work(runtime)

    try:
        return asyncio.run(run())
    except (CountersealError, ValueError) as error:
        fail(one_line(str(error)), code=1)


def _attend(store: str | None, by: str | None, act: Callable[[NeedsAttention], Awaitable[T]]) -> T:
    from counterseal.operations.attention import NeedsAttention

    async def work(runtime: Runtime) -> T:
        return await act(NeedsAttention(runtime, by=by or user_name("--by")))

    return _with_runtime(project_settings(), store, work)


def _decide(
    store: str | None,
    by: str | None,
    tenant: str | None,
    key: str,
    act: Callable[[NeedsAttention, str], Awaitable[None]],
) -> None:
    """Decide on a key of the given tenant, else of the only tenant where it needs attention."""
    from counterseal.errors import CountersealError

    async def decide(attention: NeedsAttention) -> None:
        items = [] if tenant else await attention.list(None, 1000)
        named = [item.tenant for item in items if key in (item.key, item.call_id)]
        owners = {tenant} if tenant else set(named)
        if not owners:
            raise CountersealError(
                f"nothing with the key {key} needs attention; for a caller's own id of a call, "
                "give the tenant with --tenant T"
            )
        if len(owners) > 1:
            raise CountersealError("several tenants have this key; choose one with --tenant T")
        await act(attention, owners.pop())

    _attend(store, by, decide)


def _due_kind(text: str) -> DueKind:
    from counterseal.ledger.records import DueKind

    if text not in (DueKind.VERIFY, DueKind.COMPENSATE):
        fail(f"KIND must be verify or compensate, got {text!r}.")
    return DueKind(text)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        fail(f"--data is not valid JSON: {error}.")
    if not isinstance(value, dict):
        fail("--data must be a JSON object.")
    return value


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number")
