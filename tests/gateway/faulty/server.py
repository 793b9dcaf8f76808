"""A server that does what a test wants of it, on the SDK alone.

    python server.py FOLDER             over its input and output
    python server.py FOLDER --port N    streamable HTTP on 127.0.0.1; says its URL on stdout

What it is to do stands in its folder, and what it did: `tools.json` are its tools, looked at anew
for every list; `down`: it ends at once; `pid`; `calls` has a line for each call that reached it,
`headers` one for each request over HTTP. Its tools do what their argument `do` says.
"""

import argparse
import json
import os
import socket
from pathlib import Path

import anyio
import mcp_types as types
import uvicorn
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata

WIRE = os.dup(1)
NONSENSE = b'{"jsonrpc":"2.0","id":%d,"result":{"content":7}}\n'
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def said(text):
    return types.CallToolResult(content=[types.TextContent(text=text)])


class Faulty:
    def __init__(self, folder):
        self.folder = folder

    async def list_tools(self, ctx, params):
        if (self.folder / "list-hangs").exists():
            await anyio.sleep_forever()
        tools = json.loads((self.folder / "tools.json").read_text())
        return types.ListToolsResult(tools=[types.Tool.model_validate(one) for one in tools])

    async def call_tool(self, ctx, params):
        given = params.arguments or {}
        with (self.folder / "calls").open("a") as calls:
            calls.write(f"{params.name} {given.get('text', '')}\n")
        return await self.done(ctx, given) or said(f"did {given.get('text', '')}")

    async def done(self, ctx, given):  # noqa: C901 - one arm a fault
        match given.get("do"):
            case "wait":
                await self.flag("go")
            case "hang":
                await anyio.sleep_forever()
            case "die":
                os._exit(3)
            case "garbage":
                os.write(WIRE, b"{this is no message}\n")
                await anyio.sleep_forever()
            case "nonsense":
                os.write(
                    WIRE, b'{"jsonrpc":"2.0","id":%d,"result":{"content":7}}\n' % ctx.request_id
                )
                await anyio.sleep_forever()
            case "big":
                return said("x" * 10_000_000)
            case "announce":
                await ctx.session.send_tool_list_changed()
            case "ask":
                return await self.asked(ctx)
            case "fail":
                return said(given.get("text", "")).model_copy(update={"is_error": True})
            case "error":
                code, _, message = given["text"].partition(" ")
                raise MCPError(int(code), message)
        return None

    async def flag(self, name):
        (self.folder / "waiting").touch()
        try:
            while not (self.folder / name).exists():  # noqa: ASYNC110 - a file has no event
                await anyio.sleep(0.01)
        except anyio.get_cancelled_exc_class():
            (self.folder / "cancelled").touch()
            raise

    async def asked(self, ctx):
        request = types.ElicitRequest(
            params=types.ElicitRequestFormParams(message="Who?", requested_schema=SCHEMA)
        )
        related = ServerMessageMetadata(related_request_id=ctx.request_id)
        answer = await ctx.session.send_request(request, types.ElicitResult, metadata=related)
        return said(answer.model_dump_json())

    def server(self):
        return Server(
            "faulty", version="1", on_list_tools=self.list_tools, on_call_tool=self.call_tool
        )


async def serve_stdio(faulty):
    """With a handshake only: the revision in which a server speaks first."""
    server = faulty.server()
    options = server.create_initialization_options(NotificationOptions(tools_changed=True))
    async with stdio_server() as (reading, writing), server.lifespan(server) as state:
        await serve_loop(server, reading, writing, lifespan_state=state, init_options=options)


def serve_http(faulty, port):
    app = faulty.server().streamable_http_app()

    async def door(scope, receive, send):
        if scope["type"] == "http":
            heads = {key.decode(): value.decode() for key, value in scope["headers"]}
            with (faulty.folder / "headers").open("a") as file:
                file.write(json.dumps(heads) + "\n")
        await app(scope, receive, send)

    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)  # noqa: T201 - asked for
        config = uvicorn.Config(door, log_level="warning", timeout_graceful_shutdown=1)
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int)
    chosen = parser.parse_args()
    if (chosen.folder / "down").exists():
        raise SystemExit("down for repair")
    (chosen.folder / "pid").write_text(str(os.getpid()))
    if chosen.port is None:
        anyio.run(serve_stdio, Faulty(chosen.folder))
    else:
        serve_http(Faulty(chosen.folder), chosen.port)
