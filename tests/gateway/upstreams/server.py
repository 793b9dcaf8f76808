"""A server to be an upstream, on the SDK alone, with tools that behave and tools that don't.

    python server.py --stdio            over its input and output
    python server.py --port N           streamable HTTP on 127.0.0.1; says its URL on stdout

With `--legacy` it knows no revision after 2025-11-25. `--tools N` adds so many to its list, 100 on
a page; `--token` is what a request over HTTP has to bear. A call of the tool `status_N` is answered
with that HTTP status. Files tell tests how far a call is: `wait` makes FLAG.started, waits for FLAG
and, when it is cancelled, makes FLAG.cancelled.
"""

import argparse
import json
import os
import socket
import sys
from hashlib import sha256
from pathlib import Path

import anyio
import mcp_types as types
import uvicorn
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.responses import Response

STRING = {"type": "string"}
NAMES = [
    "add",
    "ask",
    "big",
    "change",
    "die",
    "echo",
    "env",
    "fail",
    "headers",
    "log",
    "nothing",
    "refuse",
    "sample",
    "wait",
]
BUS = InMemorySubscriptionBus()
REGION = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
}
PAGE = 100
WIRE = os.dup(1)
BY_REQUEST: list[bool] = []
"""Not empty if it asks by requests of its own in every revision, as most servers do."""


def said(*texts, **structured):
    content = [types.TextContent(text=text) for text in texts]
    return types.CallToolResult(content=content, structured_content=structured or None)


def form(message):
    schema = {"type": "object", "properties": {"name": STRING}, "required": ["name"]}
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(message=message, requested_schema=schema)
    )


def sampling(prompt):
    message = types.SamplingMessage(role="user", content=types.TextContent(text=prompt))
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[message], max_tokens=10)
    )


WANTED = {
    "ask": (form("Who?"), types.ElicitResult, {"elicitation": types.ElicitationCapability()}),
    "sample": (
        sampling("Hm?"),
        types.CreateMessageResult,
        {"sampling": types.SamplingCapability()},
    ),
    "roots": (types.ListRootsRequest(), types.ListRootsResult, {"roots": types.RootsCapability()}),
}


async def asked(ctx, params, name):
    """The client's answer; None when the call has to end without it."""
    request, kind, capability = WANTED[name]
    if not ctx.session.check_client_capability(types.ClientCapabilities(**capability)):
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            "The client can't",
            {"requiredCapabilities": {key: {} for key in capability}},
        )
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and not BY_REQUEST:
        return (params.input_responses or {}).get("the-key")
    related = ServerMessageMetadata(related_request_id=ctx.request_id)
    return await ctx.session.send_request(request, kind, metadata=related)


async def ask_client(ctx, params, name):
    answer = await asked(ctx, params, name)
    if answer is None:
        return types.InputRequiredResult(
            input_requests={"the-key": WANTED[name][0]}, request_state="as it was"
        )
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and params.request_state != "as it was":
        return said("the state is another")
    return said(answer.model_dump_json(by_alias=True, exclude_none=True))


async def wait(flag):
    await anyio.Path(f"{flag}.started").touch()
    try:
        while not await anyio.Path(flag).exists():  # noqa: ASYNC110 - a file has no event
            await anyio.sleep(0.01)
    except anyio.get_cancelled_exc_class():
        Path(f"{flag}.cancelled").touch()  # noqa: ASYNC240 - it can't wait any more
        raise


def raw(line):
    """Past the library, which keeps its own output clean."""
    os.write(WIRE, line)


async def call_tool(ctx, params):  # noqa: C901, PLR0912 - one arm a tool
    given = params.arguments or {}
    match params.name:
        case "echo":
            meta = json.dumps(dict(ctx.meta or {}), default=str)
            return said(
                given.get("text", ""), text=given.get("text", ""), meta=meta, pid=os.getpid()
            )
        case "add":
            return said("sum", sum=given["a"] + given["b"])
        case "nothing":
            return said("no structure")
        case "wait":
            await wait(given["flag"])
            return said("waited")
        case "big":
            return said("x" * given["bytes"])
        case "env":
            value = os.environ.get(given["name"], "<unset>")
            return said(value, pid=os.getpid(), hash=sha256(value.encode()).hexdigest())
        case "headers":
            return said(json.dumps(dict(ctx.request.headers)))
        case "fail":
            result = said("it broke")
            result.is_error = True
            return result
        case "refuse":
            raise MCPError(types.INVALID_PARAMS, "not like this")
        case "die":
            os._exit(3)
        case "garbage":
            raw(b"this is not JSON\n")
            await anyio.sleep_forever()
        case "endless":
            while True:
                raw(b"x" * 65536)
        case "wrong":
            answer = {"jsonrpc": "2.0", "id": ctx.request_id, "result": {"content": "text"}}
            raw(json.dumps(answer).encode() + b"\n")
            await anyio.sleep_forever()
        case "progress":
            await ctx.session.report_progress(1, 2, "half")
            return said("done")
        case "log":
            note = types.LoggingMessageNotification(
                params=types.LoggingMessageNotificationParams(level="warning", data="be careful")
            )
            await ctx.session.send_notification(note, related_request_id=ctx.request_id)
            return said("logged")
        case "change":
            NAMES.append("new")
            await BUS.publish(ToolsListChanged())
            if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                await ctx.session.send_tool_list_changed()
            return said("changed")
        case "touch":
            await BUS.publish(ResourceUpdated(uri="test://one"))
            if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                await ctx.session.send_resource_updated("test://one")
            return said("touched")
        case "nag":
            return types.InputRequiredResult(input_requests={"again": form("And now?")})
        case "ask" | "sample" | "roots":
            return await ask_client(ctx, params, params.name)
    raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name}")


def make_server(more=0):
    listed = [*NAMES, *(f"tool_{n}" for n in range(more))]

    async def list_tools(ctx, params):
        start = int((params and params.cursor) or 0)
        known = listed if more else NAMES
        schema = {"type": "object", "properties": {}}
        tools = [
            types.Tool(name=name, input_schema=REGION if name == "headers" else schema)
            for name in known[start : start + PAGE]
        ]
        after = start + PAGE
        return types.ListToolsResult(
            tools=tools, next_cursor=str(after) if after < len(known) else None
        )

    async def list_resources(ctx, params):
        return types.ListResourcesResult(resources=[types.Resource(uri="test://one", name="one")])

    async def read_resource(ctx, params):
        if str(params.uri) != "test://one":
            raise MCPError(types.INVALID_PARAMS, "Resource not found")
        text = types.TextResourceContents(uri="test://one", text="1")
        return types.ReadResourceResult(contents=[text])

    async def list_prompts(ctx, params):
        return types.ListPromptsResult(prompts=[types.Prompt(name="hello")])

    async def get_prompt(ctx, params):
        answer = await asked(ctx, params, "ask")
        if answer is None:
            return types.InputRequiredResult(input_requests={"the-key": form("Who?")})
        text = types.TextContent(text=f"Hello {answer.content['name']}")
        message = types.PromptMessage(role="user", content=text)
        return types.GetPromptResult(description="Greets.", messages=[message])

    async def accept(ctx, params):
        return types.EmptyResult()

    return Server(
        "upstream",
        version="1.0.0",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
        on_subscribe_resource=accept,
        on_unsubscribe_resource=accept,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_subscriptions_listen=ListenHandler(BUS),
    )


async def serve_stdio(more, *, legacy):
    server = make_server(more)
    options = server.create_initialization_options(NotificationOptions(tools_changed=True))
    async with stdio_server() as (reading, writing):
        if not legacy:
            await server.run(reading, writing, options)
            return
        async with server.lifespan(server) as state:
            await serve_loop(server, reading, writing, lifespan_state=state, init_options=options)


class Serving(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        for one in sockets or ():
            print(f"http://127.0.0.1:{one.getsockname()[1]}/mcp", flush=True)  # noqa: T201 - asked for


def gone(headers, forgotten, forget):
    """Whether the session is one that the server was told to forget."""
    session = headers.get(b"mcp-session-id")
    if session is not None and Path(forget).exists():
        forgotten.add(session)
        Path(forget).unlink()
    return session in forgotten


def guarded(app, *, token=None, legacy=False, modern=False, forget=None):
    """The same application behind a door, for requests as they should be."""
    forgotten = set()

    async def door(scope, receive, send):
        headers = dict(scope.get("headers", ()))
        answer = None
        if scope["type"] == "http":
            if token is not None and headers.get(b"authorization") != f"Bearer {token}".encode():
                answer = Response(status_code=401)
            elif modern if headers.get(b"mcp-protocol-version") != b"2026-07-28" else legacy:
                answer = Response(status_code=400)
            elif forget is not None and gone(headers, forgotten, forget):
                answer = Response(status_code=404)
            elif (name := headers.get(b"mcp-name", b"")).startswith(b"status_"):
                answer = Response(status_code=int(name[7:]), headers={"retry-after": "7"})
        await (answer or app)(scope, receive, send)

    return door


def serve_http(chosen):
    app = make_server(chosen.tools).streamable_http_app(json_response=chosen.json)
    app = guarded(
        app,
        token=chosen.token,
        legacy=chosen.legacy,
        modern=chosen.modern,
        forget=chosen.forget,
    )
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", chosen.port))
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        Serving(config).run(sockets=[listening])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--stdio", action="store_true")
    parser.add_argument("--legacy", action="store_true")
    parser.add_argument("--modern", action="store_true")
    parser.add_argument("--by-request", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tools", type=int, default=0)
    parser.add_argument("--token")
    parser.add_argument("--forget", help="while this file is there, the next session is forgotten")
    parser.add_argument("--banner")
    chosen = parser.parse_args()
    BY_REQUEST += [True] if chosen.by_request else []
    if chosen.banner:
        print(chosen.banner, flush=True)  # noqa: T201 - what a server should not do, and many do
    if chosen.stdio:
        print("started", file=sys.stderr, flush=True)  # noqa: T201 - as servers do
        anyio.run(lambda: serve_stdio(chosen.tools, legacy=chosen.legacy))
    else:
        serve_http(chosen)
