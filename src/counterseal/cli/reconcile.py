"""`counterseal reconcile`: do the due work, and decide what needs an operator's attention."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from typer import Argument, Option

from counterseal.cli.options import AsJson, AsTenant, By, StoreUrl, with_groups
from counterseal.cli.project import in_runtime, open_project, project_settings, user_name
from counterseal.cli.render import (
    Parts,
    ProgressBar,
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
                with ProgressBar("item") as progress:
                    tally = await reconciler.once(
                        tell=lambda so_far: progress.show(so_far.total()), last=not watch
                    )
                _print_tally(tally, as_json=as_json, watch=watch)
            except StoreError as error:
                if not watch:
                    raise
                note(f"{one_line(str(error))} The next pass tries again.")
            if not watch:
                return
            await asyncio.sleep(every)

    _with_runtime(settings, store, passes)


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

    def page() -> Parts:
        if not rows:
            yield "Nothing needs attention."
        for name, row in rows:
            yield heading(safe(f"{row.kind}: {row.tool} {row.version}"))
            yield fields(
                [
                    ("What it does", row.consequence or ""),
                    ("Resource", row.resource or ""),
                    ("Reason", row.reason),
                    ("Since", f"{row.since:%Y-%m-%d %H:%M:%S} UTC" if row.since else ""),
                    ("Tenant", name),
                    ("Key", row.key),
                    ("Call", row.call_id),
                    ("Run", row.run_id),
                    ("What to do", _NEXT_STEPS.get(row.kind, "")),
                ]
            )

    records = [{"tenant": name, **row.model_dump(mode="json")} for name, row in rows]
    render(records, page, as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorDecision:
    """The options of commands with which an operator decides what needs attention."""

    reason: Annotated[str, Option("--reason", metavar="TEXT", help="Why, for the record.")]
    tenant: AsTenant = None
    by: By = None
    store: StoreUrl = None
    as_json: AsJson = False

    def make(self, key: str, act: Callable[[NeedsAttention, str], Awaitable[object]]) -> None:
        """Decide on a key of the given tenant, else of the only tenant where it needs attention."""
        from counterseal.errors import CountersealError
        from counterseal.operations.attention import NeedsAttention

        async def decide(runtime: Runtime) -> None:
            attention = NeedsAttention(runtime, by=self.by or user_name("--by"))
            items = [] if self.tenant else await attention.list(None, 1000)
            named = [item.tenant for item in items if key in (item.key, item.call_id)]
            owners = {self.tenant} if self.tenant else set(named)
            if not owners:
                raise CountersealError(
                    f"nothing with the key {key} needs attention; for a caller's own id of a call, "
                    "give the tenant with --tenant T"
                )
            if len(owners) > 1:
                raise CountersealError("several tenants have this key; choose one with --tenant T")
            await act(attention, owners.pop())

        _with_runtime(project_settings(), self.store, decide)

    def print(self, key: str, decision: str, text: str) -> None:
        """Print what was decided: a record as JSON, or the text."""
        render({"key": key, "decision": decision}, lambda: [text], as_json=self.as_json)


@app.command("settle")
@with_groups
def settle(
    key: Key,
    happened: Annotated[
        bool, Option("--happened/--did-not-happen", help="Whether the call took effect.")
    ],
    data: Annotated[str | None, Option(metavar="JSON", help="What the call returned.")] = None,
    *,
    decision: OperatorDecision,
) -> None:
    """Record the outcome of a call that could not be found out."""
    from pydantic_core import from_json

    returned, why = None, decision.reason
    if data is not None:
        try:
            returned = from_json(data, allow_inf_nan=False)
        except ValueError as error:
            fail(f"--data is not valid JSON: {error}.")
        if not isinstance(returned, dict):
            fail("--data must be a JSON object.")
    if happened:
        decision.make(key, lambda items, of: items.happened(of, key, reason=why, data=returned))
        decision.print(key, "happened", "Recorded: the call took effect.")
    else:
        decision.make(key, lambda items, of: items.did_not_happen(of, key, reason=why))
        decision.print(key, "did_not_happen", "Recorded: the call had no effect.")


@app.command("undo")
@with_groups
def undo(call: Key, decision: OperatorDecision) -> None:
    """Reverse a call with the compensation tool of its contract."""
    if decision.tenant is None:
        fail("The call's tenant is missing. Give it with --tenant T.")
    why = decision.reason
    decision.make(call, lambda items, of: items.compensate(of, call, reason=why))
    decision.print(call, "compensate", "The next pass of `counterseal reconcile` reverses it.")


@app.command("again")
@with_groups
def again(kind: Kind, key: Key, decision: OperatorDecision) -> None:
    """Try a failed verification or reversal once more."""
    due, why = _due_kind(kind), decision.reason
    decision.make(key, lambda items, of: items.again(of, due, key, reason=why))
    decision.print(key, "again", "The next pass of `counterseal reconcile` tries it again.")


@app.command("dismiss")
@with_groups
def dismiss(kind: Kind, key: Key, decision: OperatorDecision) -> None:
    """Dismiss a failed verification or reversal: it needs no attention any more."""
    due, why = _due_kind(kind), decision.reason
    decision.make(key, lambda items, of: items.dismiss(of, due, key, reason=why))
    decision.print(key, "dismissed", "Dismissed.")


# Working on the store ----------------------------------------------------------------------------


def _with_runtime(
    settings: Settings, store: str | None, work: Callable[[Runtime], Awaitable[T]]
) -> T:
    from counterseal.errors import CountersealError

    if store is None and settings.store_url() is None:
        fail(
            "No store is configured, so no work can be due.",
            f'Write [store] url = "sqlite:///counterseal.db" into {settings.file.name}.',
        )
    try:
        return in_runtime(open_project(settings, store), work)
    except (CountersealError, ValueError) as error:
        fail(one_line(str(error)), code=1)


def _due_kind(text: str) -> DueKind:
    from counterseal.ledger.records import DueKind

    if text not in (DueKind.VERIFY, DueKind.COMPENSATE):
        fail(f"KIND must be verify or compensate, got {text!r}.")
    return DueKind(text)
