"""The servers of `http_api.py`, each a process of its own, on uvicorn with uvloop and h11.

`bare` is the least that a JSON endpoint can be: Starlette reads an object and writes one. `memory`
and `sqlite` are the whole site of a gateway before a runtime on such a store, with the parser
of `counterseal serve`, and one tool that changes nothing and one that does. Its rates hold: so
there are keys for as many agents as it takes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import Annotated, Any

import uvicorn
import uvloop
from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from counterseal.cli.serve import tune_garbage_collection

HOST = "127.0.0.1"
PLAIN = bool(os.environ.get("BENCH_PLAIN"))
"""Python's own event loop, instead of uvloop."""
PLENTY = 10**9
AGENTS = 64
"""Each may make so many calls a second, and no more."""
RATES = {"rate_limits": {"window_sec": 1, "max_requests": 1_000_000}}


Text = Annotated[str, Field(max_length=200, description="What is given back.")]


class Echo(BaseModel):
    text: str


async def bare(port: int) -> None:
    async def echo(request: Request) -> JSONResponse:
        given = await request.json()
        return JSONResponse({"data": {"text": given["arguments"]["text"]}})

    async def notices(request: Request) -> JSONResponse:
        return JSONResponse({"case_id": request.query_params["case_id"]})

    routes = [Route("/v1/calls", echo, methods=["POST"]), Route("/notices", notices)]
    await _serve(Starlette(routes=routes), port)


async def api(port: int, store: str, folder: Path) -> None:
    from mcp.server.transport_security import TransportSecuritySettings  # noqa: PLC0415 - bare has no need of it

    from counterseal import Grant, Principal, Runtime, tool  # noqa: PLC0415 - as above
    from counterseal.gateway.running import Gateway  # noqa: PLC0415 - as above
    from counterseal.gateway.server import McpServer  # noqa: PLC0415 - as above
    from counterseal.web.app import site  # noqa: PLC0415 - as above
    from counterseal.web.identity import Access, principal_of  # noqa: PLC0415 - as above

    @tool(effect="read_only", version="1.0.0", owner="bench", budget=PLENTY, runtime=RATES)
    async def echo(text: Text) -> Echo:
        """Gives back."""
        return Echo(text=text)

    @tool(effect="draft", version="1.0.0", owner="bench", budget=PLENTY, runtime=RATES)
    async def note(text: Text) -> Echo:
        """Writes it down."""
        return Echo(text=text)

    url = f"http://{HOST}:{port}"
    where = "memory:" if store == "memory" else f"sqlite:///{folder}/bench.db"
    async with Runtime.open(where) as runtime:
        grants = [Grant(agent="bench", tool=name) for name in ("echo", "note")]
        runtime.register(echo, note, grants=grants)
        keys = []
        for number in range(AGENTS):
            who = Principal(tenant="acme", agent="bench", user=f"u_{number}")
            key, _ = await runtime.operator("bench").issue_key(who, reason="a benchmark")
            keys.append(key)
        (folder / store).write_text("\n".join(keys), encoding="ascii")
        server = McpServer(runtime, caller=principal_of, console=url, wait=0.0)
        running = Gateway(runtime=runtime, server=server, upstreams=None)  # type: ignore[arg-type]
        security = TransportSecuritySettings(allowed_hosts=[f"{HOST}:*"])
        served = site(running, Access(resource=f"{url}/mcp"), security, urls=[url])
        await _serve(served.app, port)


async def _serve(app: Any, port: int) -> None:
    config = uvicorn.Config(
        app,
        host=HOST,
        port=port,
        http="h11",
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        proxy_headers=False,
        limit_concurrency=1000,
    )
    tune_garbage_collection()
    await uvicorn.Server(config).serve()


def main() -> None:
    parser = argparse.ArgumentParser(description="One of the servers of benchmarks/http_api.py.")
    parser.add_argument("which", choices=["bare", "memory", "sqlite"])
    parser.add_argument("port", type=int)
    parser.add_argument("folder", nargs="?", type=Path, default=Path())
    options = parser.parse_args()
    if options.which == "bare":
        work = bare(options.port)
    else:
        work = api(options.port, options.which, options.folder)
    with asyncio.Runner(loop_factory=None if PLAIN else uvloop.new_event_loop) as runner:
        runner.run(work)


if __name__ == "__main__":
    main()
