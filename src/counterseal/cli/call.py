"""`counterseal call`: try a call from the shell, and see what every gate said about it.

Runs on a store in memory: budgets, keys and held calls are forgotten when the command ends. What
the tool itself does is real.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from counterseal.cli.output import Progress, fail, note, one_line, print_json, print_styled

if TYPE_CHECKING:
    import logging

    from counterseal.config import Settings
    from counterseal.errors import Problem
    from counterseal.observation import Observation
    from counterseal.proposal import Principal, Proposal
    from counterseal.runtime import Preview, Runtime

__all__ = ["call"]

REFUSED = 1
HELD = 3


def call(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="A tool's name.")],
    arguments: Annotated[
        str,
        typer.Argument(metavar="ARGUMENTS", help="As JSON; @FILE reads a file, - reads stdin."),
    ] = "{}",
    agent: Annotated[
        str | None, typer.Option("--as", metavar="AGENT", help="The agent that calls.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="T", help="Instead of the agent's own.")
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", metavar="U", help="Instead of the agent's own.")
    ] = None,
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
    plan: Annotated[bool, typer.Option("--plan", help="Ask the gates, execute nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Try a call, and show what each gate says.

    Tools, grants, policy and the agent's tenant, user, scopes and roles come from counterseal.toml.
    A tool's secrets are read from COUNTERSEAL_SECRET_<NAME>. Nothing is remembered afterwards, but
    the tool is really called. Exits with 1 when the call is refused or fails, and with 3 when a
    person would have to approve it.
    """
    settings = _settings()
    if agent is None:
        _fail_without_agent(settings)
    given = {"tenant": tenant, "user": user, "roles": roles, "scopes": scopes}
    principal = _principal(settings, agent, given)
    proposal = _proposal(tool, _read(arguments), run, key)
    runtime = _open(settings)
    if plan:
        _show_plan(_preview(runtime, proposal, principal), tool, principal, as_json=as_json)
    else:
        _show_call(_submit(runtime, proposal, principal), principal, as_json=as_json)


# Who asks for what -------------------------------------------------------------------------------


def _settings() -> Settings:
    from counterseal.config import FILE_NAME, ConfigError, find_config, load_settings

    file = find_config(Path.cwd())
    if file is None:
        fail(
            f"There is no {FILE_NAME} in this folder or above it.",
            "It says which tools there are, and who may use them: start with `counterseal init`.",
        )
    try:
        return load_settings(file)
    except ConfigError as error:
        fail(str(error))


def _fail_without_agent(settings: Settings) -> NoReturn:
    agents = sorted({grant.agent for grant in settings.grants})
    known = f"These have grants: {', '.join(agents)}." if agents else "No agent has a grant yet."
    fail("Say which agent calls, with --as AGENT.", known)


def _principal(
    settings: Settings, agent: str, given: dict[str, str | list[str] | None]
) -> Principal:
    from counterseal.proposal import Principal

    declared = settings.agents.get(agent)
    values = dict(declared) if declared else {}
    values |= {name: value for name, value in given.items() if value is not None}
    if values.get("tenant") is None:
        fail(
            f"There is no tenant for {agent!r}.",
            f'Give --tenant T, or write [agents.{agent}] tenant = "T" into {settings.file.name}.',
        )
    try:
        return Principal(agent=agent, **values)
    except ValueError as error:
        fail(str(error))


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


def _open(settings: Settings) -> Runtime:
    from counterseal.config import ConfigError, open_runtime
    from counterseal.errors import ContractError
    from counterseal.policy import PolicyError

    progress = Progress()
    try:
        runtime = open_runtime(settings, progress=progress)
    except ConfigError as error:
        progress.done()
        fail(str(error))
    except (ContractError, PolicyError) as error:
        progress.done()
        _fail_unusable(error.problems)
    progress.done()
    return runtime


def _fail_unusable(problems: tuple[Problem, ...]) -> NoReturn:
    for problem in problems:
        note(one_line(str(problem)))
    count = len(problems)
    fail(f"{count} problem{'' if count == 1 else 's'}; nothing was called.")


def _submit(runtime: Runtime, proposal: Proposal, principal: Principal) -> Observation:
    import asyncio

    async def submit() -> Observation:
        async with runtime:
            return await runtime.submit(proposal, principal)

    with _failures_noted():
        return asyncio.run(submit())


def _preview(runtime: Runtime, proposal: Proposal, principal: Principal) -> Preview:
    import asyncio

    async def preview() -> Preview:
        async with runtime:
            return await runtime.preview(proposal, principal)

    with _failures_noted():
        return asyncio.run(preview())


@contextmanager
def _failures_noted() -> Iterator[None]:
    """What a tool raises is kept from the agent; whoever tries it out has to know."""
    import logging

    log = logging.getLogger("counterseal")
    log.addFilter(_note_failure)
    try:
        yield
    finally:
        log.removeFilter(_note_failure)


def _note_failure(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return True
    told = f"{type(error).__name__}: {one_line(str(error))}{_place(error)}"
    note(f"Not shown to the agent: {told}")
    return False


def _place(error: BaseException) -> str:
    """The last line of somebody's own code that was running."""
    import traceback

    ours = Path(__file__).parents[1]
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not Path(frame.filename).is_relative_to(ours)
    ]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


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
