"""`counterseal registry`: what operators change for every worker, and what was changed.

Works on the project's store, and not on the workers: they notice with their next call. A project
whose tools can't all be read can still be stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from counterseal.cli.changes import drift, in_force, scope, told, which
from counterseal.cli.declared import declared_tools
from counterseal.cli.operators import (
    AsJson,
    By,
    Reason,
    Store,
    address,
    just_look,
    operate,
    why,
)
from counterseal.cli.output import fail, note, print_json, print_styled, safe
from counterseal.cli.trying import project_settings, user_name

if TYPE_CHECKING:
    from counterseal.registry import Kill, RegistryChange, RegistryRecord

__all__ = ["app"]

app = typer.Typer(
    help="Stop, restore and look at tools, on every worker.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Tool = Annotated[str, typer.Argument(metavar="TOOL", help="A tool's name.")]
Version = Annotated[
    str | None, typer.Option("--version", metavar="V", help="Which version.  [default: all]")
]


@app.command("list")
def list_tools(store: Store = None, as_json: AsJson = False) -> None:
    """List tools, what stops them, and where operators have left what code declares."""
    settings = project_settings()
    registry = declared_tools(settings)
    operate(address(settings, store), registry, "-", just_look)
    if as_json:
        print_json(registry.export())
        return
    from counterseal.cli.layout import table

    rows = [
        (row["tool"], row["version"], row["status"], "\n".join(map(drift, row["drift"])))
        for row in registry.export()["records"]
    ]
    print_styled(table(rows, titles=("Tool", "Version", "Status", "Changed by operators")))
    for one in registry.kills:
        print(in_force(one))


@app.command("kill")
def kill(
    tool: Annotated[
        str | None, typer.Argument(metavar="[TOOL]", help="A tool's name.", show_default=False)
    ] = None,
    effect: Annotated[
        str | None, typer.Option("--effect", metavar="E", help="Every tool of an effect.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every tool.")] = False,
    reason: Reason = None,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask whether it is meant.")] = False,
    by: By = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Stop a tool, every tool of an effect, or everything.

    Shows what would be stopped, and asks. From then on no worker begins such a call; one that is
    under way goes on. A kill outlasts restarts until it is undone with `restore`.
    """
    if [tool is not None, effect is not None, everything].count(True) != 1:
        fail("Say what to stop: a TOOL, --effect E, or --all.")
    settings = project_settings()
    url, who = address(settings, store), by or user_name("--by")
    registry = declared_tools(settings)
    stops = operate(url, registry, who, lambda one: one.preview_kill(tool=tool, effect=effect))
    _print_preview(stops)
    said = why(reason)
    if not yes:
        typer.confirm("Stop it?", abort=True, err=True)
    done = operate(url, registry, who, lambda one: one.kill(tool=tool, effect=effect, reason=said))
    if as_json:
        print_json(
            {
                "kill": done.export(),
                "stops": [{"tool": one.name, "version": one.version} for one in stops],
            }
        )
    else:
        print(f"{done.id} stops {safe(scope(done))}.")
        note(f"Undo it with `counterseal registry restore {done.id}`.")


@app.command("restore")
def restore(
    kill_id: Annotated[
        str | None,
        typer.Argument(metavar="[KILL]", help="A kill's id, if several are in force."),
    ] = None,
    reason: Reason = None,
    by: By = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Undo a kill, in one step."""
    from counterseal.registry import Registry

    url, who, registry = address(project_settings(), store), by or user_name("--by"), Registry()
    operate(url, registry, who, just_look)
    if kill_id is None:
        kill_id = _only(registry.kills)
    said = why(reason)
    change = operate(url, registry, who, lambda one: one.restore(kill_id, reason=said))
    _print_change(change, f"{kill_id} is undone.", as_json=as_json)
    _note_kills(registry.kills)


@app.command("enable")
def enable(
    tool: Tool,
    version: Version = None,
    reason: Reason = None,
    by: By = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Let a tool be used again."""
    settings, who, said = project_settings(), by or user_name("--by"), why(reason)
    url, registry = address(settings, store), declared_tools(settings)
    change = operate(url, registry, who, lambda one: one.enable(tool, version, reason=said))
    _print_change(change, f"{which(tool, version)} is enabled.", as_json=as_json)


@app.command("disable")
def disable(
    tool: Tool,
    version: Version = None,
    reason: Reason = None,
    by: By = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Take a tool, or one version of it, out of use.

    Without --version, versions that come later are disabled too. Where others than the disabled
    versions are left, new runs get those; to stop runs altogether, use `kill`.
    """
    settings, who, said = project_settings(), by or user_name("--by"), why(reason)
    url, registry = address(settings, store), declared_tools(settings)
    change = operate(url, registry, who, lambda one: one.disable(tool, version, reason=said))
    _print_change(change, f"{which(tool, version)} is disabled.", as_json=as_json)


@app.command("log")
def log(store: Store = None, as_json: AsJson = False) -> None:
    """List what operators changed, oldest first."""
    from counterseal.registry import Registry

    registry = Registry()
    operate(address(project_settings(), store), registry, "-", just_look)
    if as_json:
        print_json({"changes": [change.export() for change in registry.changes]})
        return
    if not registry.changes:
        note("Nothing was changed yet.")
        return
    from counterseal.cli.layout import table

    rows = [
        (str(one.number), f"{one.at:%Y-%m-%d %H:%M}", one.by, told(one), one.reason)
        for one in registry.changes
    ]
    print_styled(table(rows, titles=("No.", "When (UTC)", "Who", "What", "Why")))


# What it works on --------------------------------------------------------------------------------


def _only(kills: Sequence[Kill]) -> str:
    if not kills:
        fail("No kill is in force.", code=1)
    if len(kills) > 1:
        _note_kills(kills)
        fail("Several kills are in force.", "Name the one to undo.")
    return kills[0].id


# Showing -----------------------------------------------------------------------------------------


def _print_preview(stops: Sequence[RegistryRecord]) -> None:
    if not stops:
        note("Everything that it covers is stopped already.")
        return
    note("It stops:")
    for record in stops:
        note(f"  {record.name} {record.version}")


def _note_kills(kills: Sequence[Kill]) -> None:
    for one in kills:
        note(in_force(one))


def _print_change(change: RegistryChange, text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(change.export())
    else:
        print(safe(text))
