"""`counterseal mcp`: the project's tools for one MCP client, over standard input and output."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, NoReturn, TextIO

import typer

from counterseal.cli.output import fail, note
from counterseal.cli.serving import (
    StoreToServe,
    declared_agent,
    need_gateway,
    run_until_stopped,
    tell,
    usable,
)
from counterseal.cli.trying import project_settings

if TYPE_CHECKING:
    from counterseal.config import Settings

__all__ = ["mcp"]


def mcp(
    agent: Annotated[
        str | None, typer.Option("--as", metavar="AGENT", help="The agent that the client is.")
    ] = None,
    store: StoreToServe = None,
) -> None:
    """Serve the tools to one MCP client, over stdin and stdout.

    For clients that start their servers themselves. [agents.AGENT] in counterseal.toml says who the
    client is: tenant, user, roles and scopes. Standard output carries the protocol and nothing
    else. Ends when the client closes its end.
    """
    need_gateway("mcp")
    with _wire() as (stdin, stdout):
        settings = project_settings()
        if agent is None:
            _fail_without_agent(settings)
        principal = declared_agent(settings, agent, "--as")
        if sys.stderr.isatty() and stdin.isatty():
            note("Waiting for an MCP client on standard input; Ctrl-C ends it.")
        with usable():
            from counterseal.gateway.running import serve_stdio

            work = serve_stdio(
                settings, principal, store=store, tell=tell, stdin=stdin, stdout=stdout
            )
            run_until_stopped(work)


def _fail_without_agent(settings: Settings) -> NoReturn:
    known = ", ".join(sorted(settings.agents)) or "none yet"
    fail("Say which agent the client is, with --as AGENT.", f"Declared are: {known}.")


@contextmanager
def _wire() -> Iterator[tuple[TextIO, TextIO]]:
    """Standard input and output for the protocol alone: whoever else prints, prints to stderr.

    By their numbers, so that this holds for libraries and child processes, too. They stay like this
    until the process ends: what somebody printed may be flushed as late as that.
    """
    sys.stdout.flush()
    stdin = os.fdopen(os.dup(0), encoding="utf-8", errors="replace")
    stdout = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    try:
        yield stdin, stdout
    finally:
        with suppress(OSError):  # the client may be gone
            stdout.flush()
