"""`counterseal serve`: the gateway, over HTTP, until somebody stops it."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterseal.cli.output import fail, note, print_json, safe
from counterseal.cli.serving import (
    StoreToServe,
    declared_agent,
    need_gateway,
    run_until_stopped,
    tell,
    tidy_memory,
    usable,
)
from counterseal.cli.trying import project_settings

if TYPE_CHECKING:
    from counterseal.web.server import Running

__all__ = ["serve"]


def serve(
    host: Annotated[
        str | None,
        typer.Option(
            "--host", metavar="H", help="Where to listen.  [default: as in counterseal.toml]"
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="P",
            min=0,
            max=65_535,
            help="On which port; 0 takes a free one.",
        ),
    ] = None,
    anonymous_as: Annotated[
        str | None,
        typer.Option(
            "--anonymous-as",
            metavar="AGENT",
            help="Let everybody on this machine in, as this agent.",
        ),
    ] = None,
    store: StoreToServe = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print its addresses as JSON, once it is ready.")
    ] = False,
) -> None:
    """Serve the tools, and those of upstreams, over HTTP.

    Prints where it listens and what to write into an MCP client's configuration; progress goes to
    stderr. Ctrl-C stops it: no call is begun any more, and those under way are waited for; a second
    one ends it at once.
    """
    need_gateway("mcp", "starlette", "uvicorn")
    settings = project_settings()
    host = host or settings.gateway.host
    port = settings.gateway.port if port is None else port
    anonymous = None
    if anonymous_as is not None:
        anonymous = declared_agent(settings, anonymous_as, "--anonymous-as")
        _refuse_open_door(host)

    results = sys.stdout

    def ready(running: Running) -> None:
        tidy_memory()
        open_door = anonymous is not None
        with redirect_stdout(results):
            _print(running, open_door=open_door, as_json=as_json)
        if not open_door and settings.gateway.oauth is None and not running.credentials:
            _note_locked()

    # Tools may print; what they do is no result of this command.
    with usable(), redirect_stdout(sys.stderr):
        from counterseal.web import server

        work = server.serve(
            settings,
            host=host,
            port=port,
            anonymous=anonymous,
            store=store,
            tell=tell,
            ready=ready,
        )
        run_until_stopped(work)


def _refuse_open_door(host: str) -> None:
    from counterseal.config.upstreams import is_loopback

    if not is_loopback(f"http://[{host}]" if ":" in host else f"http://{host}"):
        fail(
            f"--anonymous-as is for this machine alone, and {host} can be reached from others.",
            "Listen on 127.0.0.1, or leave it out and issue keys: "
            "`counterseal keys issue --tenant T --agent A`.",
        )


def _note_locked() -> None:
    note("Nobody can sign in yet: there is neither an API key nor [gateway.oauth].")
    note("Issue a key: counterseal keys issue --tenant T --agent A")
    note("Or let everybody on this machine in: counterseal serve --anonymous-as AGENT")


# What is printed ----------------------------------------------------------------------------------


def _print(running: Running, *, open_door: bool, as_json: bool) -> None:
    client = _client(running.mcp_url, open_door=open_door)
    if as_json:
        print_json(
            {
                "url": running.url,
                "mcp_url": running.mcp_url,
                "health_url": running.health_url,
                "upstreams": list(running.upstreams),
                "client": client,
            }
        )
    else:
        print(safe(f"Console  {running.url}/"))
        print(safe(f"MCP      {running.mcp_url}"))
        print(safe(f"API      {running.url}/v1/openapi.json"))
        print(safe(f"Health   {running.health_url}\n"))
        print("For an MCP client's configuration:\n")
        print(safe(json.dumps(client, indent=2)))
    sys.stdout.flush()  # whoever waits for it may read it through a pipe


def _client(url: str, *, open_door: bool) -> dict[str, Any]:
    """The entry that most clients take, as it is or nearly so."""
    entry: dict[str, Any] = {"type": "http", "url": url}
    if not open_door:
        entry["headers"] = {"Authorization": "Bearer ${COUNTERSEAL_KEY}"}
    return {"mcpServers": {"counterseal": entry}}
