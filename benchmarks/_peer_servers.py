"""The MCP servers that ours is measured beside, each run as a process of its own.

`upstream` is a small server of the MCP SDK, `json` the same with JSON answers instead of streams.
`fresh` and `shared` are FastMCP's proxies in front of it: `fresh` is what its documentation gives
for a URL, a new connection for every request; `shared` uses one client that stays connected, and
uvloop. Everything else has its defaults, except for the log.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server

HOST = "127.0.0.1"
SLOW_SECONDS = 0.020
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "maxLength": 200, "description": "What is given back."},
    },
    "required": ["text"],
    "additionalProperties": False,
}
READS = types.ToolAnnotations(read_only_hint=True)
ADDS = types.ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
TOOLS = [
    types.Tool(name=name, description=description, input_schema=SCHEMA, annotations=annotations)
    for name, description, annotations in (
        ("echo", "Return the text.", READS),
        ("slow", "Return the text late.", READS),
        ("note", "Write the text down.", ADDS),
    )
]


async def list_tools(
    _: ServerRequestContext[Any], __: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    return types.ListToolsResult(tools=TOOLS)


async def call_tool(
    _: ServerRequestContext[Any], request: types.CallToolRequestParams
) -> types.CallToolResult:
    await asyncio.sleep(SLOW_SECONDS if request.name == "slow" else 0)
    text = (request.arguments or {})["text"]
    return types.CallToolResult(content=[types.TextContent(text=text)])


def upstream(port: int, **settings: Any) -> None:
    server: Server[Any] = Server(
        "upstream",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=lambda _: SCHEMA,  # otherwise it lists its tools at every call
    )
    app = server.streamable_http_app(**settings)
    config = uvicorn.Config(app, host=HOST, port=port, log_level="warning", access_log=False)
    uvicorn.Server(config).run()  # with uvloop and httptools if installed


async def fresh(port: int, url: str) -> None:
    from fastmcp.server import create_proxy  # noqa: PLC0415 - the upstream has no need of it

    await create_proxy(url).run_http_async(
        show_banner=False, host=HOST, port=port, log_level="warning"
    )


async def shared(port: int, url: str) -> None:
    from fastmcp import Client  # noqa: PLC0415 - as above
    from fastmcp.server import create_proxy  # noqa: PLC0415 - as above

    async with Client(url) as client:
        await create_proxy(client).run_http_async(
            show_banner=False, host=HOST, port=port, log_level="warning"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=["upstream", "json", "fresh", "shared"])
    parser.add_argument("port", type=int)
    parser.add_argument("url", nargs="?", default="", help="of the upstream")
    options = parser.parse_args()
    if options.which == "upstream":
        upstream(options.port)
    elif options.which == "json":
        upstream(options.port, json_response=True)
    elif options.which == "fresh":
        asyncio.run(fresh(options.port, options.url))
    else:
        import uvloop  # noqa: PLC0415 - not where the server is as it comes

        uvloop.run(shared(options.port, options.url))


if __name__ == "__main__":
    main()
