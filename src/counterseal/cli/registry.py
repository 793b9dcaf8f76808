"""`counterseal registry`: stop, restore, enable and disable tools, and accept their versions.

Changes are written to the project's store; workers apply them with their next call. A project whose
contracts can't all be read can still be stopped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from counterseal.cli.options import AllTenants, AsJson, StoreUrl, Yes, command_group, with_groups
from counterseal.cli.project import (
    OperatorChange,
    declared_tools,
    load_registry,
    project_settings,
    with_store,
)
from counterseal.cli.render import Parts, fail, note, one_line, render, table

if TYPE_CHECKING:
    from counterseal.registry import Kill, RegistryChange

app = command_group(
    "List tools; stop, restore, enable or disable them; accept held versions and risk classes."
)

Tool = Annotated[str, Argument(metavar="TOOL", help="A tool's name.")]
Version = Annotated[
    str | None, Option("--version", metavar="V", help="Which version.  [default: all]")
]


# Looking -----------------------------------------------------------------------------------------


@app.command("list")
def list_tools(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List tools with their status, and where operators changed what the code declares."""
    registry = load_registry(store, declared_tools(project_settings()))

    def page() -> Parts:
        rows = [
            (row["tool"], row["version"], _status(row), "\n".join(map(_drift, row["drift"])))
            for row in registry.export()["records"]
        ]
        yield table(rows, titles=("Tool", "Version", "Status", "Changed by operators"))
        yield from map(_kill_line, registry.kills)

    render(registry.export(), page, as_json=as_json)


@app.command("log")
def log(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List the changes that operators made, oldest first."""
    changes = load_registry(store).changes
    if not changes and not as_json:
        note("No changes yet.")
        return
    rows = [
        (str(one.number), f"{one.at:%Y-%m-%d %H:%M}", one.by, _change_text(one), one.reason)
        for one in changes
    ]
    titles = ("No.", "When (UTC)", "Who", "What", "Why")
    record = {"changes": [change.export() for change in changes]}
    render(record, lambda: [table(rows, titles=titles)], as_json=as_json)


# Changing ----------------------------------------------------------------------------------------


@app.command("kill")
@with_groups
def kill(
    tool: Annotated[
        str | None, Argument(metavar="[TOOL]", help="A tool's name.", show_default=False)
    ] = None,
    effect: Annotated[str | None, Option(metavar="E", help="Every tool of an effect.")] = None,
    everything: Annotated[bool, Option("--all", help="Every tool.")] = False,
    tenant: AllTenants = None,
    yes: Yes = False,
    *,
    change: OperatorChange,
) -> None:
    """Stop a tool, every tool of an effect, or all tools.

    Shows what would be stopped, and asks. Afterwards no worker starts such a call; calls in
    progress go on. A kill survives restarts until it is undone with `restore`.
    """
    if [tool is not None, effect is not None, everything].count(True) != 1:
        fail("Name exactly one thing to stop: a TOOL, --effect E, or --all.")
    registry = declared_tools(project_settings())
    aim = {"tool": tool, "effect": effect, "tenant": tenant}
    stops = change.make(lambda operator: operator.preview_kill(**aim), registry)
    note("It stops:" if stops else "Everything it covers is stopped already.")
    for record in stops:
        note(f"  {record.name} {record.version}")
    if tenant is not None and tenant not in with_store(change.store, lambda one: one.tenants()):
        note(one_line(f"No call of the tenant {tenant!r} is on record. Is the name right?"))
    why = change.why()
    if not yes:
        typer.confirm("Stop it?", abort=True, err=True)
    done = change.make(lambda operator: operator.kill(**aim, reason=why), registry)
    stopped = [{"tool": record.name, "version": record.version} for record in stops]
    text = f"{done.id} stops {_kill_scope(done)}."
    change.print({"kill": done.export(), "stops": stopped}, text)
    if not change.as_json:
        note(f"Undo it with `counterseal registry restore {done.id}`.")


@app.command("restore")
@with_groups
def restore(
    kill_id: Annotated[
        str | None, Argument(metavar="[KILL]", help="A kill's id, if several are in force.")
    ] = None,
    *,
    change: OperatorChange,
) -> None:
    """Undo a kill."""
    registry = load_registry(change.store)
    if kill_id is None:
        if not registry.kills:
            fail("No kill is in force.", code=1)
        if len(registry.kills) > 1:
            _note_kills(registry.kills)
            fail("Several kills are in force.", "Name the one to undo.")
        kill_id = registry.kills[0].id
    why = change.why()
    made = change.make(lambda operator: operator.restore(kill_id, reason=why), registry)
    change.print(made.export(), f"{kill_id} is undone.")
    _note_kills(registry.kills)


@app.command("enable")
@with_groups
def enable(tool: Tool, version: Version = None, *, change: OperatorChange) -> None:
    """Enable a tool, or one version of it, again."""
    why, known = change.why(), declared_tools(project_settings())
    made = change.make(lambda operator: operator.enable(tool, version, reason=why), known)
    change.print(made.export(), f"{_named(tool, version)} is enabled.")


@app.command("disable")
@with_groups
def disable(tool: Tool, version: Version = None, *, change: OperatorChange) -> None:
    """Disable a tool, or one version of it.

    Without --version, later versions are disabled too. If other versions are left, new runs get
    those; use `kill` to stop calls altogether.
    """
    why, known = change.why(), declared_tools(project_settings())
    made = change.make(lambda operator: operator.disable(tool, version, reason=why), known)
    change.print(made.export(), f"{_named(tool, version)} is disabled.")


@app.command("accept-risk")
@with_groups
def accept_risk(
    tool: Tool,
    version: Annotated[str, Option("--version", metavar="V", help="Which version.")],
    withdraw: Annotated[bool, Option("--withdraw", help="Take an acceptance back.")] = False,
    yes: Yes = False,
    *,
    change: OperatorChange,
) -> None:
    """Accept that a contract lowers the risk class of its effect.

    Until then calls are approved and audited as the effect demands, whatever reason the contract
    gives. Shows the reason, and asks. Holds for the contract as it is: a changed one is judged by
    its effect again.
    """
    known, named = (
        load_registry(change.store, declared_tools(project_settings())),
        f"{tool} {version}",
    )
    for record in known.versions(tool):
        if record.version == version and not withdraw:
            contract = record.contract
            note(f"{named} has the effect {contract.effect}.")
            note(f"  judged as  {record.risk}")
            note(f"  declares   {contract.risk}: {one_line(contract.risk_justification or '')}")
    why = change.why()
    if not yes and not withdraw:
        typer.confirm("Accept it?", abort=True, err=True)
    made = change.make(
        lambda operator: operator.accept_risk(tool, version, accepted=not withdraw, reason=why),
        known,
    )
    text = f"Calls of {named} are judged as {known.get(tool, version).risk}."
    change.print(made.export(), text)


@app.command("accept")
@with_groups
def accept(
    tool: Tool,
    version: Annotated[str, Option("--version", metavar="V", help="Which version.")],
    yes: Yes = False,
    *,
    change: OperatorChange,
) -> None:
    """Accept a version that is held for review.

    A new version that gives a tool more authority or less protection is registered, and no run gets
    it. Shows what it changes, and asks. Holds for the contract as it is: a changed one is compared
    again.
    """
    known = load_registry(change.store, declared_tools(project_settings()))
    held = [
        one for record in known.versions(tool) if record.version == version for one in record.held
    ]
    if held:
        note(f"{tool} {version} changes what the tool may do:")
    for one in held:
        note(f"  {one_line(one)}")
    why = change.why()
    if held and not yes:
        typer.confirm("Accept it?", abort=True, err=True)
    made = change.make(lambda operator: operator.accept_version(tool, version, reason=why), known)
    change.print(made.export(), f"{tool} {version} is accepted; new runs can get it.")


def _note_kills(kills: Sequence[Kill]) -> None:
    for one in kills:
        note(_kill_line(one))


# Texts -------------------------------------------------------------------------------------------


def _named(tool: str, version: str | None) -> str:
    return tool if version is None else f"{tool} {version}"


def _kill_scope(kill: Kill) -> str:
    what = "everything" if kill.effect is None else f"every {kill.effect.value} tool"
    where = "" if kill.tenant is None else f" in the tenant {one_line(kill.tenant)}"
    return f"{kill.tool or what}{where}"


def _kill_line(kill: Kill) -> str:
    return one_line(f"{kill.id} stops {_kill_scope(kill)} ({kill.by}: {kill.reason})")


def _change_text(change: RegistryChange) -> str:
    """Return what a change did, in a few words."""
    if change.kill is not None:
        return f"kill {_kill_scope(change.kill)} ({change.kill.id})"
    if change.restored_kill is not None:
        return f"restore {change.restored_kill}"
    if change.credential is not None:
        holder = change.credential.principal.agent
        return f"issue key {change.credential.key_id} to {one_line(holder)}"
    if change.revoked_key is not None:
        return f"revoke key {change.revoked_key}"
    if change.user is not None:
        return f"user {change.user.name}: {change.user_change.replace('_', ' ')}"
    if change.removed_user is not None:
        return f"remove user {change.removed_user}"
    if change.grant is not None:
        side = "to" if change.op == "grant" else "from"
        named = _named(change.grant.tool, change.grant.version)
        return f"{change.op} {named} {side} {one_line(change.grant.agent)}"
    named = _named(change.tool or "", change.version)
    if "risk_accepted" in change.fields:
        accepted = change.fields["risk_accepted"]
        risk = change.what["risk_class"] if accepted else ""
        return f"accept {risk} for {named}" if accepted else f"judge {named} by its effect again"
    share = change.fields.get("rollout_percentage")
    return f"{change.op} {named}" + ("" if share is None else f" to {share}%")


def _status(row: dict[str, Any]) -> str:
    from counterseal.registry.records import held_ids

    ids = ", ".join(held_ids(row["held"]))
    return f"held for review: {ids}" if row["status"] == "held_for_review" else row["status"]


def _drift(row: dict[str, Any]) -> str:
    """Return a line about one field that differs from the code: the value, by whom, and why."""
    who = f"({one_line(row['by'])}: {one_line(row['reason'])})"
    declared, stored = row["declared"], row["stored"]
    if row["field"] == "grants" and stored is None:
        return f"revoked from {one_line(declared['agent'])} {who}"
    if row["field"] == "grants":
        return f"granted to {one_line(stored['agent'])} {who}"
    if row["field"] == "held":
        return f"held version accepted {who}"
    if row["field"] == "risk_accepted":
        return f"lower risk class accepted {who}"
    if row["field"] == "deprecation":
        return f"{'not deprecated' if stored is None else 'deprecated'} {who}"
    return f"{row['field']}: {json.dumps(stored)}, not {json.dumps(declared)} {who}"
