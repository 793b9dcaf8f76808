"""Whoever tries something out from the shell: the project, the agent they act as, its runtime."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from counterseal.cli.output import Progress, fail, note, one_line
from counterseal.cli.stores import STORE_VARIABLE

if TYPE_CHECKING:
    import logging

    from counterseal.config import Settings
    from counterseal.errors import Problem
    from counterseal.proposal import Principal
    from counterseal.runtime import Runtime

__all__ = [
    "HELD",
    "REFUSED",
    "AsAgent",
    "AsTenant",
    "AsUser",
    "fail_without_agent",
    "failures_noted",
    "opened",
    "principal_of",
    "project_settings",
    "user_name",
]

AsAgent = Annotated[str | None, typer.Option("--as", metavar="AGENT", help="The agent to act as.")]
AsTenant = Annotated[
    str | None, typer.Option("--tenant", metavar="T", help="Instead of the agent's own.")
]
AsUser = Annotated[
    str | None, typer.Option("--user", metavar="U", help="Instead of the agent's own.")
]

REFUSED = 1
HELD = 3
"""Exit codes."""


def project_settings() -> Settings:
    """What the nearest configuration file says; the command ends where there is none."""
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


def fail_without_agent(settings: Settings) -> NoReturn:
    """Nobody was named: say who could be."""
    agents = sorted({grant.agent for grant in settings.grants})
    known = f"These have grants: {', '.join(agents)}." if agents else "No agent has a grant yet."
    fail("Say which agent calls, with --as AGENT.", known)


def principal_of(
    settings: Settings, agent: str, given: dict[str, str | list[str] | None]
) -> Principal:
    """The agent as the file declares it, with what was given instead."""
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


def opened(settings: Settings, store: str | None = None) -> Runtime:
    """The project's runtime; the command ends with every problem that is in its way."""
    from counterseal.config import ConfigError, open_runtime
    from counterseal.errors import ContractError, CountersealError
    from counterseal.policy import PolicyError

    progress = Progress()
    try:
        url = store or os.environ.get(STORE_VARIABLE)
        runtime = open_runtime(settings, url, progress=progress)
        if settings.upstreams:
            # Their tools are called through the gateway, and decided on and looked into anywhere.
            from counterseal.gateway.upstream_contracts import register_pinned

            register_pinned(runtime, settings)
    except ConfigError as error:
        progress.done()
        fail(str(error))
    except (ContractError, PolicyError) as error:
        progress.done()
        _fail_unusable(error.problems)
    except CountersealError as error:
        progress.done()
        fail(str(error))
    progress.done()
    return runtime


def _fail_unusable(problems: tuple[Problem, ...]) -> NoReturn:
    for problem in problems:
        note(one_line(str(problem)))
    count = len(problems)
    fail(f"{count} problem{'' if count == 1 else 's'}; nothing was called.")


def user_name(option: str) -> str:
    """Who is at the keyboard, where they do not say so."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no user database, or nobody's process
        fail("It can't be told who you are.", f"Say it with {option} NAME.")


@contextmanager
def failures_noted() -> Iterator[None]:
    """What a tool raises is kept from the agent; whoever tries it out has to know."""
    import logging

    log = logging.getLogger("counterseal")
    log.addFilter(_note_failure)
    try:
        yield
    finally:
        log.removeFilter(_note_failure)


def _note_failure(record: logging.LogRecord) -> bool:
    trace = getattr(record, "counterseal_trace", None)
    if trace is None:
        return True
    lines = trace.strip().splitlines() or [""]
    # The last of a chain of exceptions is the one that came out; its words may have several lines.
    began = max((n for n, line in enumerate(lines) if line.startswith("Traceback ")), default=-1)
    rest = (n for n, line in enumerate(lines) if n > began and not line.startswith(" "))
    told = one_line("\n".join(lines[next(rest, 0) :]))
    note(f"Not shown to the agent: {told.removeprefix('counterseal.errors.')}{_place(lines)}")
    return False


def _place(trace: list[str]) -> str:
    """The last line of somebody's own code that was running."""
    import re

    ours = Path(__file__).parents[1]
    found = [re.match(r'\s+File "(.+)", line (\d+)', line) for line in trace]
    frames = [(Path(one[1]), one[2]) for one in found if one]
    theirs = [f" ({file.name}:{line})" for file, line in frames if not file.is_relative_to(ours)]
    return theirs[-1] if theirs else ""
