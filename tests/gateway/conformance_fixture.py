"""The server that the conformance suite wants to meet, on the SDK alone.

    python conformance_fixture.py --port N      streamable HTTP on 127.0.0.1; says its URL on stdout
    python conformance_fixture.py --stdio

It has every tool, prompt and resource that the suite's scenarios name, for both revisions of the
protocol, and knows nothing of Counterseal: what it passes, the SDK passes. The tools stand in
`conformance_tools` and `conformance_asking`. Port 0 is any free one; with `--token` it serves only
requests that bear it.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
from collections.abc import Collection
from typing import Any

import anyio
import conformance_asking  # noqa: F401 - adds its tools to the others
import mcp_types as types
import uvicorn
from conformance_tools import (
    IMAGE,
    PNG,
    STRING,
    TOOLS,
    Call,
    Context,
    UnfinishedError,
    World,
    answer,
    ask,
    embedded,
    form,
)
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

NAME = "conformance-fixture"
MORE = types.Tool(name="test_more", description="Comes and goes.", input_schema={"type": "object"})

# --- prompts --------------------------------------------------------------------------------------


def prompt(name: str, description: str, *arguments: str) -> types.Prompt:
    takes = [types.PromptArgument(name=one, description=one, required=True) for one in arguments]
    return types.Prompt(name=name, description=description, arguments=takes or None)


PROMPTS = [
    prompt("test_simple_prompt", "One message."),
    prompt("test_prompt_with_arguments", "One message with two arguments in it.", "arg1", "arg2"),
    prompt("test_prompt_with_embedded_resource", "A resource and a message.", "resourceUri"),
    prompt("test_prompt_with_image", "An image and a message."),
    prompt("test_input_required_result_prompt", "Asks for its context."),
]
MORE_PROMPT = prompt("test_more_prompt", "Comes and goes.")


async def messages(call: Call) -> list[Any]:
    given = call.arguments
    match call.params.name:
        case "test_simple_prompt":
            return ["This is a simple prompt for testing."]
        case "test_prompt_with_arguments":
            return [f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'"]
        case "test_prompt_with_embedded_resource":
            text = "Embedded resource content for testing."
            resource = embedded(given["resourceUri"], "text/plain", text)
            return [resource, "Please process the embedded resource above."]
        case "test_prompt_with_image":
            return [IMAGE, "Please analyze the image above."]
        case "test_input_required_result_prompt":
            wanted = form("What context should the prompt use?", context=STRING)
            said = (await ask(call, user_context=wanted))["user_context"]
            return [f"Use this context: {said.content}"]
        case "test_more_prompt" if call.world.more_prompts:
            return ["More."]
    raise MCPError(types.INVALID_PARAMS, f"There is no prompt {call.params.name}")


# --- resources ------------------------------------------------------------------------------------

RESOURCES = [
    types.Resource(uri=f"test://{name}", name=name, description=description, mime_type=mime_type)
    for name, description, mime_type in (
        ("static-text", "A text.", "text/plain"),
        ("static-binary", "An image.", "image/png"),
        ("watched-resource", "A text to subscribe to.", "text/plain"),
    )
]
TEMPLATE = types.ResourceTemplate(
    uri_template="test://template/{id}/data",
    name="template",
    description="Data of an id.",
    mime_type="application/json",
)


def contents(uri: str) -> types.TextResourceContents | types.BlobResourceContents:
    if found := re.fullmatch(r"test://template/([^/]+)/data", uri):
        data = {"id": found[1], "templateTest": True, "data": f"Data for ID: {found[1]}"}
        text = json.dumps(data)
        return types.TextResourceContents(uri=uri, mime_type="application/json", text=text)
    if uri == "test://static-binary":
        return types.BlobResourceContents(uri=uri, mime_type="image/png", blob=PNG)
    texts = {
        "test://static-text": "This is the content of the static text resource.",
        "test://watched-resource": "Watch me.",
    }
    if uri not in texts:
        raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": uri})
    return types.TextResourceContents(uri=uri, mime_type="text/plain", text=texts[uri])


# --- the server -----------------------------------------------------------------------------------


def make_server(tools: Collection[str] = TOOLS) -> Server[Any]:
    """The server, with these of the tools."""
    world = World()

    async def list_tools(ctx: Context, params: Any) -> types.ListToolsResult:
        known = [TOOLS[name][0] for name in tools]
        return types.ListToolsResult(tools=[*known, MORE] if world.more_tools else known)

    async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> Any:
        if params.name == MORE.name and world.more_tools:
            return answer("More.")
        if params.name not in tools:
            raise MCPError(types.INVALID_PARAMS, f"There is no tool {params.name}")
        try:
            return await TOOLS[params.name][1](Call(ctx, params, world))
        except UnfinishedError as unfinished:
            return unfinished.result

    async def list_prompts(ctx: Context, params: Any) -> types.ListPromptsResult:
        more = [MORE_PROMPT] if world.more_prompts else []
        return types.ListPromptsResult(prompts=PROMPTS + more)

    async def get_prompt(ctx: Context, params: types.GetPromptRequestParams) -> Any:
        try:
            said = answer(*await messages(Call(ctx, params, world))).content
        except UnfinishedError as unfinished:
            return unfinished.result
        told = [types.PromptMessage(role="user", content=one) for one in said]
        return types.GetPromptResult(messages=told)

    server = Server(
        NAME,
        version="1.0.0",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=accept,
        on_unsubscribe_resource=accept,
        on_subscriptions_listen=ListenHandler(world.bus),
        on_completion=complete,
    )
    # Not by the constructor, where it is deprecated: earlier revisions still have it.
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, accept)
    state = RequestStateSecurity.ephemeral()
    server.middleware.append(RequestStateBoundary(state, default_audience=NAME))
    return server


async def list_resources(ctx: Context, params: Any) -> types.ListResourcesResult:
    return types.ListResourcesResult(resources=RESOURCES)


async def list_templates(ctx: Context, params: Any) -> types.ListResourceTemplatesResult:
    return types.ListResourceTemplatesResult(resource_templates=[TEMPLATE])


async def read_resource(ctx: Context, params: types.ReadResourceRequestParams) -> Any:
    return types.ReadResourceResult(contents=[contents(str(params.uri))])


async def accept(ctx: Context, params: Any) -> types.EmptyResult:
    return types.EmptyResult()


async def complete(ctx: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    words = ("paris", "park", "party", "test", "testing")
    fit = [one for one in words if one.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=fit, total=len(fit)))


# --- the transports -------------------------------------------------------------------------------


class Events(EventStore):
    """Every event that was sent, for clients that come back."""

    def __init__(self) -> None:
        self._events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: str, send: EventCallback) -> str | None:
        seen = int(last_event_id)
        stream = self._events[seen - 1][0]
        for number, (whose, message) in enumerate(self._events[seen:], seen + 1):
            if whose == stream and message is not None:
                await send(EventMessage(message, str(number)))
        return stream


class Serving(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for one in sockets or ():
            print(f"http://127.0.0.1:{one.getsockname()[1]}/mcp", flush=True)  # noqa: T201 - asked for


def bearing(token: str, app: ASGIApp) -> ASGIApp:
    """The application, behind a bearer token."""
    wanted = (b"authorization", f"Bearer {token}".encode())

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        refused = scope["type"] == "http" and wanted not in scope["headers"]
        await (Response(status_code=401) if refused else app)(scope, receive, send)

    return guarded


def serve_http(port: int, token: str | None) -> None:
    app: ASGIApp = make_server().streamable_http_app(event_store=Events(), retry_interval=100)
    if token is not None:
        app = bearing(token, app)
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        # The fast parser leaves spaces at the end of headers' values, which the suite counts.
        config = uvicorn.Config(app, http="h11", log_level="warning", timeout_graceful_shutdown=1)
        Serving(config).run(sockets=[listening])


async def serve_stdio() -> None:
    server = make_server()
    changes = NotificationOptions(prompts_changed=True, tools_changed=True)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options(changes))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The conformance suite's fixture server.")
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--port", type=int, help="serve streamable HTTP there; 0 is any free port")
    way.add_argument("--stdio", action="store_true")
    parser.add_argument("--token", help="what a request over HTTP has to bear")
    parser.add_argument("--by-request", action="store_true", help="ask by requests, always")
    chosen = parser.parse_args()
    World.asks_by_request = chosen.by_request
    if chosen.stdio:
        anyio.run(serve_stdio)
    else:
        serve_http(chosen.port, chosen.token)
