"""`counterseal call`: try a call from the shell, and see what every gate said about it.

Runs on the project's store; a project that names none has one in memory, and budgets, keys and held
calls are forgotten when the command ends. What the tool itself does is real either way.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterseal.cli.output import fail, note, one_line, print_json, print_styled
from counterseal.cli.trying import (
    HELD,
    REFUSED,
    AsAgent,
    AsTenant,
    AsUser,
    fail_without_agent,
    failures_noted,
    opened,
    principal_of,
    project_settings,
)

if TYPE_CHECKING:
    from counterseal.execution.attempt import Progress as Report
    from counterseal.observation import Observation
    from counterseal.proposal import Principal, Proposal
    from counterseal.runtime import Preview, Runtime

__all__ = ["call"]


def call(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="A tool's name.")],
    arguments: Annotated[
        str,
        typer.Argument(metavar="ARGUMENTS", help="As JSON; @FILE reads a file, - reads stdin."),
    ] = "{}",
    agent: AsAgent = None,
    tenant: AsTenant = None,
    user: AsUser = None,
    scopes: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="S", help="Instead of the agent's own; may be repeated."),
    ] = None,
    roles: Annotated[
        list[str] | None,
        typer.Option("--role", metavar="R", help="Instead of the agent's own; may be repeated."),
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="The run that the call is part of.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="K", help="The key of the operation.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="How long to wait.", min=0)
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Ask the gates, execute nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Try a call, and show what each gate says.

    Tools, grants, policy and the agent's tenant, user, scopes and roles come from counterseal.toml.
    A tool's secrets are read from COUNTERSEAL_SECRET_<NAME>. The tool is really called; what is
    remembered of it goes into the [store], and is forgotten where there is none. Exits with 1 when
    the call is refused or fails, and with 3 when a person would have to approve it.
    """
    settings = project_settings()
    if agent is None:
        fail_without_agent(settings)
    given = {"tenant": tenant, "user": user, "roles": roles, "scopes": scopes}
    principal = principal_of(settings, agent, given)
    proposal = _proposal(tool, _read(arguments), run, key)
    runtime = opened(settings)
    if plan:
        _show_plan(_preview(runtime, proposal, principal), tool, principal, as_json=as_json)
    else:
        seen = _submit(runtime, proposal, principal, timeout)
        _show_call(seen, principal, as_json=as_json)


# Who asks for what -------------------------------------------------------------------------------


def _proposal(tool: str, arguments: str | bytes, run: str | None, key: str | None) -> Proposal:
    from counterseal.proposal import Proposal

    return Proposal(tool=tool, arguments=arguments, run_id=run, key=key)


def _read(arguments: str) -> str | bytes:
    """As they came: whether they are JSON is the first gate's question."""
    if arguments == "-":
        return sys.stdin.buffer.read()
    if not arguments.startswith("@"):
        return arguments
    file = Path(arguments[1:])
    try:
        return file.read_bytes()
    except OSError as error:
        fail(f"{file}: {error.strerror}.")


# Asking ------------------------------------------------------------------------------------------


def _submit(
    runtime: Runtime, proposal: Proposal, principal: Principal, timeout: float | None
) -> Observation:
    import asyncio

    async def submit() -> Observation:
        async with runtime:
            return await runtime.submit(proposal, principal, timeout=timeout, progress=_reported)

    with failures_noted():
        return asyncio.run(submit())


def _reported(report: Report) -> None:
    """What the tool says of its progress, on standard error."""
    total = "" if report.total is None else f" of {report.total:g}"
    note(one_line(f"{report.done:g}{total} {report.message}"))


def _preview(runtime: Runtime, proposal: Proposal, principal: Principal) -> Preview:
    import asyncio

    async def preview() -> Preview:
        async with runtime:
            return await runtime.preview(proposal, principal)

    with failures_noted():
        return asyncio.run(preview())


# Showing -----------------------------------------------------------------------------------------


def _show_call(seen: Observation, principal: Principal, *, as_json: bool) -> None:
    from counterseal.codes import Code

    if as_json:
        print_json(seen.record())
    else:
        from counterseal.cli.timeline import call_page

        print_styled(*call_page(seen, principal))
    if not seen.ok:
        raise typer.Exit(HELD if seen.code is Code.CONFIRMATION_MISSING else REFUSED)


def _show_plan(seen: Preview, tool: str, principal: Principal, *, as_json: bool) -> None:
    from counterseal.cli.timeline import plan_page, plan_record
    from counterseal.gates.base import Verdict

    if as_json:
        print_json(plan_record(seen, tool))
    else:
        print_styled(*plan_page(seen, tool, principal))
    if seen.verdict != Verdict.ALLOW:
        raise typer.Exit(HELD if seen.verdict == Verdict.REQUIRE_APPROVAL else REFUSED)
