"""`counterseal call`: try a call from the shell, and see what every gate decided.

Runs on the project's store. A project without one uses memory: budgets, keys and held calls are
forgotten when the command ends. The tool itself really runs in both cases.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterseal.cli.options import AsAgent, AsJson, AsTenant, AsUser
from counterseal.cli.project import (
    HELD,
    REFUSED,
    fail_without_agent,
    log_tool_failures,
    open_project,
    principal_for,
    project_settings,
)
from counterseal.cli.render import fail, note, one_line, render

if TYPE_CHECKING:
    from counterseal.call.call import Preview
    from counterseal.execution.attempt import Progress as ToolProgress
    from counterseal.observation import Observation
    from counterseal.proposal import Principal, Proposal
    from counterseal.runtime import Runtime


def call(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="A tool's name.")],
    arguments: Annotated[
        str,
        typer.Argument(metavar="ARGUMENTS", help="JSON; @FILE reads a file, - reads stdin."),
    ] = "{}",
    agent: AsAgent = None,
    tenant: AsTenant = None,
    user: AsUser = None,
    scopes: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="S",
            help="Scope to act with, instead of the agent's own; can be repeated.",
        ),
    ] = None,
    roles: Annotated[
        list[str] | None,
        typer.Option(
            "--role",
            metavar="R",
            help="Role to act with, instead of the agent's own; can be repeated.",
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="The run of the call.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="K", help="The idempotency key.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", metavar="SECONDS", help="How long to wait for the result.", min=0
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Ask the gates only; execute nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Try a call, and show what each gate decides.

    Tools, grants, policy and the agent's tenant, user, scopes and roles come from counterseal.toml.
    A tool's secrets are read from COUNTERSEAL_SECRET_<NAME>. The tool really runs; the call is kept
    in the [store], or forgotten if there is none. Exits with 1 if the call is refused or fails, and
    with 3 if a person has to approve it.
    """
    settings = project_settings()
    if agent is None:
        fail_without_agent(settings)
    overrides = {"tenant": tenant, "user": user, "roles": roles, "scopes": scopes}
    principal = principal_for(settings, agent, overrides)
    proposal = _proposal(tool, _read(arguments), run, key)
    runtime = open_project(settings)
    if plan:
        _preview(runtime, proposal, principal, as_json=as_json)
    else:
        _call(runtime, proposal, principal, timeout, as_json=as_json)


def _proposal(tool: str, arguments: str | bytes, run: str | None, key: str | None) -> Proposal:
    from counterseal.proposal import Proposal

    return Proposal(tool=tool, arguments=arguments, run_id=run, key=key)


def _read(arguments: str) -> str | bytes:
    """Return the arguments as they are: the first gate checks that they are JSON."""
    if arguments == "-":
        return sys.stdin.buffer.read()
    if not arguments.startswith("@"):
        return arguments
    file = Path(arguments[1:])
    try:
        return file.read_bytes()
    except OSError as error:
        fail(f"Can't read {file}: {error.strerror}.")


def _call(
    runtime: Runtime,
    proposal: Proposal,
    principal: Principal,
    timeout: float | None,
    *,
    as_json: bool,
) -> None:
    import asyncio

    from counterseal.codes import Code

    async def submit() -> Observation:
        async with runtime:
            return await runtime.submit(
                proposal, principal, timeout=timeout, progress=_note_progress
            )

    with log_tool_failures():
        observation = asyncio.run(submit())
    from counterseal.cli.timeline import call_page

    render(observation.record(), lambda: call_page(observation, principal), as_json=as_json)
    if not observation.ok:
        raise typer.Exit(HELD if observation.code is Code.CONFIRMATION_MISSING else REFUSED)


def _note_progress(report: ToolProgress) -> None:
    """Print on stderr how far the tool is."""
    total = "" if report.total is None else f" of {report.total:g}"
    note(one_line(f"{report.done:g}{total} {report.message}"))


def _preview(runtime: Runtime, proposal: Proposal, principal: Principal, *, as_json: bool) -> None:
    import asyncio

    from counterseal.gates.base import Verdict

    async def ask_gates() -> Preview:
        async with runtime:
            return await runtime.preview(proposal, principal)

    with log_tool_failures():
        preview = asyncio.run(ask_gates())
    from counterseal.cli.timeline import preview_page, preview_record

    tool = proposal.tool
    render(
        preview_record(preview, tool),
        lambda: preview_page(preview, tool, principal),
        as_json=as_json,
    )
    if preview.verdict != Verdict.ALLOW:
        raise typer.Exit(HELD if preview.verdict == Verdict.REQUIRE_APPROVAL else REFUSED)
