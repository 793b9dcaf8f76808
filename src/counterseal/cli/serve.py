"""`counterseal serve` and `counterseal mcp`: the gateway over HTTP, or over stdin and stdout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from typer import Option

from counterseal.cli.options import StoreUrl
from counterseal.cli.project import (
    errors_end_the_command,
    principal_for,
    project_settings,
    require_packages,
)
from counterseal.cli.render import fail, note, one_line, render, warn

if TYPE_CHECKING:
    from counterseal.config import Settings
    from counterseal.proposal import Principal
    from counterseal.web.server import Running

# HTTP --------------------------------------------------------------------------------------------


def serve(
    host: Annotated[
        str | None, Option(metavar="H", help="Where to listen.  [default: as in counterseal.toml]")
    ] = None,
    port: Annotated[
        int | None,
        Option(metavar="P", min=0, max=65_535, help="On which port; 0 takes a free one."),
    ] = None,
    tls_cert: Annotated[
        Path | None, Option(metavar="FILE", help="Serve https, with this certificate chain (PEM).")
    ] = None,
    tls_key: Annotated[
        Path | None, Option(metavar="FILE", help="The certificate's private key (PEM).")
    ] = None,
    anonymous_as: Annotated[
        str | None,
        Option(metavar="AGENT", help="Let every client on this machine in, as this agent."),
    ] = None,
    store: StoreUrl = None,
    as_json: Annotated[
        bool, Option("--json", help="Print the addresses as JSON when it is ready.")
    ] = False,
) -> None:
    """Serve the project's tools, and those of upstreams, over HTTP.

    Prints the addresses and the entry for an MCP client's configuration; progress goes to stderr.
    Ctrl-C stops it: no new call starts, and running calls are waited for. A second Ctrl-C ends it
    at once.
    """
    require_packages("mcp", "starlette", "uvicorn")
    settings = project_settings()
    host = host or settings.gateway.host
    port = settings.gateway.port if port is None else port
    tls = _tls_files(settings, tls_cert, tls_key)
    anonymous = _anonymous(settings, anonymous_as, host)
    results = sys.stdout

    def ready(running: Running) -> None:
        tune_garbage_collection()
        with redirect_stdout(results):
            _print_addresses(running, anonymous=anonymous is not None, as_json=as_json)
        if anonymous is None and settings.gateway.oauth is None and not running.credentials:
            note("No client can sign in yet: there is neither an API key nor [gateway.oauth].")
            note("Issue a key: counterseal keys issue --tenant T --agent A")
            note("Or let every client on this machine in: counterseal serve --anonymous-as AGENT")
        if tls is None:
            _warn_unencrypted(settings, host)

    # Tools may print, and that is no result of this command.
    with (
        errors_end_the_command("nothing is served"),
        redirect_stdout(sys.stderr),
        _garbage_collection_off(),
    ):
        from counterseal.web import server

        work = server.serve(
            settings,
            host=host,
            port=port,
            tls=tls,
            anonymous=anonymous,
            store=store,
            tell=_note_progress,
            ready=ready,
        )
        run_until_stopped(work)


@contextmanager
def _garbage_collection_off() -> Iterator[None]:
    """Start without searching for garbage: modules and routes are kept, so there is little.

    `tune_garbage_collection` ends this when the server answers.
    """
    import gc

    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _tls_files(settings: Settings, cert: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    """Return the files that the options name, else those of the settings."""
    from counterseal.config import ConfigError

    if cert is not None and key is not None:
        return cert, key
    if cert is not None or key is not None:
        fail("--tls-cert and --tls-key belong together.", "Give both.")
    try:
        return settings.tls_paths()
    except ConfigError as error:
        fail(str(error))


def _is_local(host: str) -> bool:
    from counterseal.config import is_loopback

    return is_loopback(f"http://[{host}]" if ":" in host else f"http://{host}")


def _anonymous(settings: Settings, agent: str | None, host: str) -> Principal | None:
    """Return the agent that clients without a key act as; only for clients on this machine."""
    if agent is None:
        return None
    principal = principal_for(settings, agent)
    if not _is_local(host):
        fail(
            f"--anonymous-as is for this machine only, and {host} is reachable from others.",
            "Listen on 127.0.0.1, or leave it out and issue keys: "
            "`counterseal keys issue --tenant T --agent A`.",
        )
    return principal


def _warn_unencrypted(settings: Settings, host: str) -> None:
    """Warn of plain http that other machines can reach, unless the settings say who encrypts."""
    gateway = settings.gateway
    https = (gateway.public_url or "").lower().startswith("https:")
    if https or gateway.behind_proxy or _is_local(host):
        return
    warn(
        f"WARNING: no encryption on {host}, and other machines can reach it.",
        "Machines on the way can read API keys, passwords and the data of calls.",
        "Serve https with --tls-cert FILE --tls-key FILE, or listen on 127.0.0.1.",
        "If a proxy in front of it encrypts, say so in [gateway] of counterseal.toml:",
        'public_url = "https://…", or behind_proxy = true.',
    )


def _print_addresses(running: Running, *, anonymous: bool, as_json: bool) -> None:
    entry: dict[str, Any] = {"type": "http", "url": running.mcp_url}
    if not anonymous:
        entry["headers"] = {"Authorization": "Bearer ${COUNTERSEAL_KEY}"}
    client = {"mcpServers": {"counterseal": entry}}
    record = {
        "url": running.url,
        "mcp_url": running.mcp_url,
        "health_url": running.health_url,
        "upstreams": list(running.upstreams),
        "client": client,
    }
    page = [
        f"Console  {running.url}/",
        f"MCP      {running.mcp_url}",
        f"API      {running.url}/v1/openapi.json",
        f"Health   {running.health_url}",
        "",
        "For an MCP client's configuration:",
        "",
        json.dumps(client, indent=2),
    ]
    render(record, lambda: page, as_json=as_json)
    sys.stdout.flush()  # a program may read it through a pipe


# Standard input and output -----------------------------------------------------------------------


def mcp(
    agent: Annotated[
        str | None, Option("--as", metavar="AGENT", help="The agent that the client is.")
    ] = None,
    store: StoreUrl = None,
) -> None:
    """Serve the tools to one MCP client, over stdin and stdout.

    For clients that start their servers themselves. [agents.AGENT] in counterseal.toml says who the
    client is: tenant, user, roles and scopes. Standard output carries only the protocol. Ends when
    the client closes its end.
    """
    require_packages("mcp")
    with _protocol_streams() as (stdin, stdout):
        settings = project_settings()
        if agent is None:
            known = ", ".join(sorted(settings.agents)) or "none yet"
            missing = "The client's agent is missing. Give it with --as AGENT."
            fail(missing, f"Declared agents: {known}.")
        principal = principal_for(settings, agent)
        if sys.stderr.isatty() and stdin.isatty():
            note("Waiting for an MCP client on standard input. Stop with Ctrl-C.")
        with errors_end_the_command("nothing is served"):
            from counterseal.gateway.running import serve_stdio

            work = serve_stdio(
                settings, principal, store=store, tell=_note_progress, stdin=stdin, stdout=stdout
            )
            run_until_stopped(work)


@contextmanager
def _protocol_streams() -> Iterator[tuple[TextIO, TextIO]]:
    """Reserve standard input and output for the protocol; every other print goes to stderr.

    The file descriptors are changed, so that it also holds for libraries and child processes. They
    stay changed until the process ends, because buffered output may be flushed that late.
    """
    sys.stdout.flush()
    stdin = os.fdopen(os.dup(0), encoding="utf-8", errors="replace")
    stdout = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.close(devnull)
    os.dup2(2, 1)
    try:
        yield stdin, stdout
    finally:
        with suppress(OSError):  # the client may be gone
            stdout.flush()


# Running -----------------------------------------------------------------------------------------


def run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run until the work ends or a signal stops it.

    The first SIGINT or SIGTERM cancels the work, so that it can clean up; the second ends the
    process at once. A server that installs its own signal handlers stops in its own way.
    """
    import asyncio
    import signal

    async def watched() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(work)
        stopping = False

        def stop() -> None:
            nonlocal stopping
            if stopping:
                os._exit(1)
            stopping = True
            _note_progress("stopping")
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            # Event loops on Windows can't do this; Ctrl-C is a KeyboardInterrupt there.
            with suppress(NotImplementedError):
                loop.add_signal_handler(number, stop)
        try:
            await task
        except asyncio.CancelledError:
            if not stopping:
                raise

    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=factory) as runner:
        runner.run(watched())


def tune_garbage_collection() -> None:
    """Exclude what exists by now from garbage collection, and collect less often."""
    import gc

    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


def _note_progress(text: str) -> None:
    note(one_line(text))
