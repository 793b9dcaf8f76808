"""`counterseal grants`: which agents may use which tools, given and revoked on record.

Like all changes of operators they are written to the project's store; workers apply them with their
next call, and they have priority over the grants that code and counterseal.toml declare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from counterseal.cli.options import (
    AllTenants,
    AsJson,
    Expires,
    StoreUrl,
    command_group,
    expiry,
    with_groups,
)
from counterseal.cli.project import (
    OperatorChange,
    declared_tools,
    errors_end_the_command,
    load_registry,
    project_settings,
)
from counterseal.cli.render import fail, note, render, table

if TYPE_CHECKING:
    from counterseal.views.tools import GrantRow

app = command_group("List grants, give and revoke them.")


@app.command("list")
def list_grants(
    agent: Annotated[str | None, Option(metavar="A", help="Of one agent.")] = None,
    tool: Annotated[str | None, Option(metavar="T", help="For one tool.")] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List the grants in force, with the ids by which they are revoked."""
    from counterseal.views.tools import grant_row

    registry = load_registry(store, declared_tools(project_settings()))
    rows = [
        grant_row(one)
        for one in registry.grants
        if agent in (None, one.agent) and tool in (None, one.tool)
    ]
    if not rows and not as_json:
        note("No grants.")
        return
    cells = [(row.id, row.agent, row.tool, row.version, _limits(row)) for row in rows]
    titles = ("Id", "Agent", "Tool", "Versions", "Limits")
    render({"grants": rows}, lambda: [table(cells, titles=titles, whole=1)], as_json=as_json)


def _limits(row: GrantRow) -> str:
    """Return what a grant restricts, in a few words."""
    parts = {
        "tenant": row.tenant,
        "up to": row.max_effect,
        "mode": None if row.mode == "execute" else row.mode,
        "calls a run": row.max_calls_per_run,
        "scopes": ", ".join(row.scopes) or None,
        "risk": row.risk_limit,
        "until": None if row.expires_at is None else f"{row.expires_at:%Y-%m-%d %H:%M}",
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items() if value is not None)


@app.command("add")
@with_groups
def add(
    agent: Annotated[str, Argument(metavar="AGENT", help="The agent.")],
    tool: Annotated[str, Argument(metavar="TOOL", help="A tool's name.")],
    version: Annotated[
        str, Option(metavar="RANGE", help="Versions, such as '>=1.0,<2'.  [default: all]")
    ] = "*",
    mode: Annotated[
        str, Option(metavar="MODE", help="read, draft or execute.  [default: execute]")
    ] = "execute",
    max_effect: Annotated[
        str | None,
        Option(metavar="E", help="The highest effect.  [default: what the tool does now]"),
    ] = None,
    max_calls: Annotated[
        int | None, Option("--max-calls", metavar="N", help="Calls in a run.")
    ] = None,
    scopes: Annotated[
        list[str] | None, Option("--scope", metavar="S", help="Needed in addition; repeatable.")
    ] = None,
    risk_limit: Annotated[
        str | None, Option(metavar="R", help="The highest risk class, or low to critical.")
    ] = None,
    tenant: AllTenants = None,
    expires: Expires = None,
    *,
    change: OperatorChange,
) -> None:
    """Grant a tool to an agent.

    A later version that does more than the grant was given for is refused until it is given anew.
    """
    from counterseal.registry import Grant
    from counterseal.views.tools import grant_row

    with errors_end_the_command("nothing was granted"):
        grant = Grant(
            agent=agent,
            tool=tool,
            version=version,
            mode=mode,
            max_calls_per_run=max_calls,
            scopes=scopes or (),
            risk_limit=risk_limit,
            expires_at=expiry(expires),
            tenant=tenant,
            max_effect=max_effect,
        )
    why, known = change.why(), declared_tools(project_settings())
    made = change.make(lambda operator: operator.grant(grant, reason=why), known)
    row = grant_row(made.grant or grant)
    limit = f", up to {row.max_effect}" if row.max_effect else ""
    change.print(row.model_dump(mode="json"), f"{row.id}: {agent} may use {tool}{limit}.")


@app.command("revoke")
@with_groups
def revoke(
    grant_id: Annotated[str, Argument(metavar="GRANT", help="Its id, as `grants list` shows it.")],
    *,
    change: OperatorChange,
) -> None:
    """Revoke a grant, also one that code or counterseal.toml declares."""
    from counterseal.views.tools import grant_row

    known = load_registry(change.store, declared_tools(project_settings()))
    grant = next((one for one in known.grants if grant_row(one).id == grant_id), None)
    if grant is None:
        fail(f"There is no grant {grant_id!r}.", "`counterseal grants list` shows those in force.")
    why = change.why()
    made = change.make(lambda operator: operator.revoke(grant, reason=why), known)
    change.print(made.export(), f"{grant.agent} may no longer use {grant.tool} by {grant_id}.")
