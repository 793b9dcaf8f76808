"""`counterseal reconcile`: look after what calls have left behind, and the operator's list."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from counterseal.cli.output import fail, note, one_line, print_json, print_styled, safe
from counterseal.cli.stores import StoreUrl
from counterseal.cli.trying import AsTenant, opened, project_settings, user_name

if TYPE_CHECKING:
    from counterseal.config import Settings
    from counterseal.operations.attention import NeedsAttention
    from counterseal.reconcile import Tally
    from counterseal.runtime import Runtime
    from counterseal.storage.base import Concern

__all__ = ["app"]

app = typer.Typer(
    help="Find out what became of calls, verify, reverse, forget.",
    invoke_without_command=True,
    rich_markup_mode=None,
)

T = TypeVar("T")
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key, as `list` shows it.")]
Kind = Annotated[str, typer.Argument(metavar="KIND", help="verify or compensate.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the record.")]
By = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Who.  [default: your user name]")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_TOLD = {
    "found": "found at the destination",
    "retried": "run again under the same key",
    "not_done": "had not happened; their keys are free again",
    "escalated": "put on the operator's list",
    "resting": "not known yet; somebody looks again later",
    "verified": "verified",
    "unverified": "not as expected; put on the operator's list",
    "overtaken": "changed by somebody else before they could be verified",
    "compensated": "reversed",
    "compensation_failed": "could not be reversed; put on the operator's list",
    "waiting": "wait for an approval",
    "executed": "carried out after their approval",
    "refused": "approved, but no longer allowed",
    "notified": "told of",
    "not_notified": "could not be told of; put on the operator's list",
    "expired approvals": "requests for approval expired",
    "dropped": "needed nothing any more",
    "failed": "failed; they are tried again",
    "abandoned": "of tools that nobody holds; put on the operator's list",
    "sealed": "tenants sealed with a checkpoint",
    "expired keys": "stored answers forgotten",
    "expired vault": "raw outputs forgotten",
    "expired events": "events erased",
    "expired counters": "old counters removed",
}


@app.callback()
def reconcile(
    context: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", help="Pass after pass, until Ctrl-C.")] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", help="Between passes.", min=0.1)
    ] = 5.0,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Do all that is due: one pass, or one after another.

    Finds calls whose worker is gone and does what their contracts say; verifies; reverses what was
    asked to be reversed; forgets what is over; seals the record where there is a key. Several may
    run at once.
    """
    if context.invoked_subcommand is not None:
        return
    settings = project_settings()
    runtime = _runtime(settings, store)

    async def work() -> None:
        from counterseal.errors import StoreError
        from counterseal.reconcile import Reconciler, Retention

        async with runtime:
            retention = Retention(**dict(settings.retention))
            reconciler = Reconciler(runtime, retention=retention)
            while True:
                try:
                    done = await reconciler.once(tell=_progress())
                    _tell(done, as_json=as_json, quiet=watch)
                except StoreError as error:
                    if not watch:
                        raise
                    note(f"{one_line(str(error))} The next pass tries again.")
                if not watch:
                    return
                await _sleep(every)

    _run(work)


async def _sleep(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)


@app.command("list")
def list_concerns(tenant: AsTenant = None, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show what no machine will settle: the operator's list, oldest first."""
    found = _people(store, "-", lambda people: people.list(tenant, 1000))
    if as_json:
        print_json([one._asdict() for one in found])
    elif not found:
        print("Nothing waits for a person.")
    else:
        for one in found:
            _show(one)


@app.command("settle")
def settle(
    key: Key,
    reason: Reason,
    happened: Annotated[
        bool, typer.Option("--happened/--did-not-happen", help="Whether it took effect.")
    ],
    tenant: AsTenant = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="JSON", help="What the call returned.")
    ] = None,
    by: By = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Say what became of a call that nobody could find out about."""
    given = None if data is None else _object(data)

    async def say(people: NeedsAttention) -> None:
        of = await _tenant_of(people, tenant, key)
        if happened:
            await people.happened(of, key, reason=reason, data=given)
        else:
            await people.did_not_happen(of, key, reason=reason)

    _people(store, by, say)
    said = "It is on record as done." if happened else "It is on record as not done."
    _say(said, key, "happened" if happened else "did_not_happen", as_json=as_json)


@app.command("undo")
def undo(
    call: Annotated[
        str, typer.Argument(metavar="CALL", help="The call's id, or its key as `list` shows it.")
    ],
    reason: Reason,
    tenant: AsTenant = None,
    by: By = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Have what a call did reversed, by the tool that its contract names."""
    if tenant is None:
        fail("Say whose call it is, with --tenant T.")
    _people(store, by, lambda people: people.compensate(tenant, call, reason=reason))
    said = "It will be reversed by the next pass of `counterseal reconcile`."
    _say(said, call, "compensate", as_json=as_json)


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
    """Have a verification or a reversal that failed tried once more."""

    async def say(people: NeedsAttention) -> None:
        of = await _tenant_of(people, tenant, key)
        await people.again(of, _kind(kind), key, reason=reason)

    _people(store, by, say)
    said = "It is tried again by the next pass of `counterseal reconcile`."
    _say(said, key, "again", as_json=as_json)


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
    """Take a verification or a reversal that failed off the list."""

    async def say(people: NeedsAttention) -> None:
        of = await _tenant_of(people, tenant, key)
        await people.dismiss(of, _kind(kind), key, reason=reason)

    _people(store, by, say)
    _say("It is off the list.", key, "dismissed", as_json=as_json)


# --- helpers --------------------------------------------------------------------------------------


def _say(text: str, key: str, decision: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"key": key, "decision": decision})
    else:
        print(text)


def _runtime(settings: Settings, store: str | None) -> Runtime:
    if store is None and settings.store_url() is None:
        fail(
            "No store is configured, so there is nothing to look after.",
            f'Write [store] url = "sqlite:///counterseal.db" into {settings.file.name}.',
        )
    return opened(settings, store)


def _people(store: str | None, by: str | None, work: Callable[[NeedsAttention], Awaitable[T]]) -> T:
    runtime = _runtime(project_settings(), store)

    async def act() -> T:
        from counterseal.operations.attention import NeedsAttention

        async with runtime:
            return await work(NeedsAttention(runtime, by=by or user_name("--by")))

    return _run(act)


def _run(work: Callable[[], Awaitable[T]]) -> T:
    import asyncio

    from counterseal.errors import CountersealError

    async def wrapped() -> T:
        return await work()

    try:
        return asyncio.run(wrapped())
    except (CountersealError, ValueError) as error:
        fail(one_line(str(error)), code=1)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


async def _tenant_of(people: NeedsAttention, tenant: str | None, key: str) -> str:
    """The tenant whose key it is, where only one has such a key on the list."""
    if tenant is not None:
        return tenant
    from counterseal.errors import CountersealError

    found = {one.tenant for one in await people.list(None, 1000) if one.key == key}
    if len(found) == 1:
        return found.pop()
    raise CountersealError(
        "there is no such key on the list" if not found else "say whose call it is, with --tenant T"
    )


def _kind(text: str) -> Any:
    from counterseal.storage.base import DueKind

    if text not in (DueKind.VERIFY, DueKind.COMPENSATE):
        fail(f"{text!r} is neither verify nor compensate.")
    return DueKind(text)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_no_number)
    except ValueError as error:
        fail(f"--data is not JSON: {error}.")
    if not isinstance(value, dict):
        fail("--data takes a JSON object.")
    return value


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not a number")


def _progress() -> Callable[[Tally], None] | None:
    if not sys.stderr.isatty():
        return None
    return lambda done: note(f"{sum(done.values())} so far")


def _tell(done: Tally, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print(json.dumps(dict(done)), flush=True)
        return
    if quiet and not done:
        return
    if not done:
        print("Nothing was due.")
    stamp = time.strftime("%H:%M:%S ") if quiet else ""
    for what, count in sorted(done.items()):
        print(f"{stamp}{count} {_TOLD.get(what, what)}", flush=True)


def _show(one: Concern) -> None:
    from datetime import UTC, datetime

    from counterseal.cli.layout import fields, heading

    since = datetime.fromtimestamp(one.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    print_styled(
        heading(safe(f"{one.kind}: {one.tool} {one.version}")),
        fields(
            [
                ("Reason", one.reason),
                ("Since", since if one.since else ""),
                ("Tenant", one.tenant),
                ("Key", one.key),
                ("Call", one.call_id),
                ("Run", one.run_id),
                ("What to do", _WAYS.get(one.kind, "")),
            ]
        ),
    )


_WAYS = {
    "unknown": "`counterseal reconcile settle KEY --happened` or `--did-not-happen`",
    "verify": "`counterseal reconcile again verify KEY`, `undo KEY` or `dismiss verify KEY`",
    "compensate": "`counterseal reconcile again compensate KEY` or `dismiss compensate KEY`",
}
