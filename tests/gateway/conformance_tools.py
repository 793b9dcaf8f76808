"""The tools of the fixture server: see `conformance_fixture`, which is started and imports this.

A tool that wants something of its client says `await ask(call, key=request)`. Up to 2025-11-25 that
sends the request; since 2026-07-28 the call ends unfinished with it, and runs anew with the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import InMemorySubscriptionBus, PromptsListChanged, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
STRING = {"type": "string"}

Context = ServerRequestContext[Any, Any]


class World:
    """What can change while the server runs, and who hears of it."""

    asks_by_request = False
    """Whether it asks by requests of its own in every revision, as the SDK's own server does."""

    def __init__(self) -> None:
        self.bus = InMemorySubscriptionBus()
        self.more_tools = False
        self.more_prompts = False


class Call(NamedTuple):
    ctx: Context
    params: types.CallToolRequestParams | types.GetPromptRequestParams
    world: World

    @property
    def arguments(self) -> dict[str, Any]:
        return self.params.arguments or {}

    @property
    def modern(self) -> bool:
        return self.ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


# --- asking the client ----------------------------------------------------------------------------


class Wanted(NamedTuple):
    """What a kind of request takes of the client, and what comes back."""

    capability: types.ClientCapabilities
    result: type[Any]


_WANTED: dict[type, Wanted] = {
    types.ElicitRequest: Wanted(
        types.ClientCapabilities(elicitation=types.ElicitationCapability()), types.ElicitResult
    ),
    types.CreateMessageRequest: Wanted(
        types.ClientCapabilities(sampling=types.SamplingCapability()), types.CreateMessageResult
    ),
    types.ListRootsRequest: Wanted(
        types.ClientCapabilities(roots=types.RootsCapability()), types.ListRootsResult
    ),
}


class UnfinishedError(Exception):
    """The client has to answer first."""

    def __init__(self, result: types.InputRequiredResult) -> None:
        super().__init__("the client has to answer first")
        self.result = result


def can(call: Call, request: types.InputRequest) -> bool:
    return call.ctx.session.check_client_capability(_WANTED[type(request)].capability)


async def ask(call: Call, state: str | None = None, **requests: types.InputRequest) -> Any:
    """The client's answers, each under its request's key."""
    for one in requests.values():
        if not can(call, one):
            wanted = _WANTED[type(one)].capability.model_dump(exclude_none=True, by_alias=True)
            raise MCPError(
                types.MISSING_REQUIRED_CLIENT_CAPABILITY,
                f"The client does not declare what {one.method} takes",
                {"requiredCapabilities": wanted},
            )
    if not call.modern or call.world.asks_by_request:
        return {key: await _send(call.ctx, one) for key, one in requests.items()}
    given = call.params.input_responses or {}
    fits = (isinstance(given.get(k), _WANTED[type(one)].result) for k, one in requests.items())
    if call.params.request_state == state and all(fits):
        return given
    raise UnfinishedError(types.InputRequiredResult(input_requests=requests, request_state=state))


async def _send(ctx: Context, request: types.InputRequest) -> Any:
    related = ServerMessageMetadata(related_request_id=ctx.request_id)
    return await ctx.session.send_request(request, _WANTED[type(request)].result, metadata=related)


def form(message: str, **properties: Any) -> types.ElicitRequest:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    params = types.ElicitRequestFormParams(message=message, requested_schema=schema)
    return types.ElicitRequest(params=params)


def sampling(prompt: str, max_tokens: int = 100) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=types.TextContent(text=prompt))
    params = types.CreateMessageRequestParams(messages=[message], max_tokens=max_tokens)
    return types.CreateMessageRequest(params=params)


# --- answering ------------------------------------------------------------------------------------

Run = Callable[[Call], Awaitable[types.CallToolResult]]
TOOLS: dict[str, tuple[types.Tool, Run]] = {}


def tool(name: str, description: str, **schema: Any) -> Callable[[Run], Run]:
    def add(run: Run) -> Run:
        takes = {"type": "object", "properties": {}, **schema}
        TOOLS[name] = types.Tool(name=name, description=description, input_schema=takes), run
        return run

    return add


def answer(*content: Any, error: bool = False) -> types.CallToolResult:
    blocks = [types.TextContent(text=one) if isinstance(one, str) else one for one in content]
    return types.CallToolResult(content=blocks, is_error=error)


def embedded(uri: str, mime_type: str, text: str) -> types.EmbeddedResource:
    contents = types.TextResourceContents(uri=uri, mime_type=mime_type, text=text)
    return types.EmbeddedResource(resource=contents)


IMAGE = types.ImageContent(data=PNG, mime_type="image/png")


@tool("test_simple_text", "Answers with a text.")
async def simple_text(call):
    return answer("This is a simple text response for testing.")


@tool("test_image_content", "Answers with an image.")
async def image_content(call):
    return answer(IMAGE)


@tool("test_audio_content", "Answers with a sound.")
async def audio_content(call):
    return answer(types.AudioContent(data=WAV, mime_type="audio/wav"))


@tool("test_embedded_resource", "Answers with a resource.")
async def embedded_resource(call):
    text = "This is an embedded resource content."
    return answer(embedded("test://embedded-resource", "text/plain", text))


@tool("test_multiple_content_types", "Answers with a text, an image and a resource.")
async def multiple_content_types(call):
    uri, data = "test://mixed-content-resource", '{"test":"data","value":123}'
    return answer("Multiple content types test:", IMAGE, embedded(uri, "application/json", data))


@tool("test_error_handling", "Fails.")
async def error_handling(call):
    return answer("This tool intentionally returns an error for testing", error=True)


@tool("test_tool_with_progress", "Tells three times how far it is.")
async def with_progress(call):
    for progress in (0, 50, 100):
        await call.ctx.session.report_progress(progress, 100)
        await anyio.lowlevel.checkpoint()
    return answer("Told three times how far it was.")


@tool("test_tool_with_logging", "Logs three times.")
async def with_logging(call):
    for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await log(call, text)
        await anyio.lowlevel.checkpoint()
    return answer("Logged three times.")


@tool("test_logging_tool", "Logs once.")
async def logging_tool(call):
    await log(call, "Called")
    return answer("Logged to whoever wants it.")


async def log(call: Call, text: str) -> None:
    """Since 2026-07-28 only a request that asks for logs gets any."""
    if not call.modern or types.LOG_LEVEL_META_KEY in (call.ctx.meta or {}):
        params = types.LoggingMessageNotificationParams(level="info", data=text)
        message = types.LoggingMessageNotification(params=params)
        await call.ctx.session.send_notification(message, call.ctx.request_id)


@tool("test_reconnection", "Hangs up before it answers; whoever comes back gets the answer.")
async def reconnection(call):
    if call.ctx.close_sse_stream is not None:
        await call.ctx.close_sse_stream()
        await anyio.lowlevel.checkpoint()
    return answer("Answered after the connection was closed.")


@tool(
    "json_schema_2020_12_tool",
    "Has an input schema of many keywords, which have to arrive.",
    **{"$schema": "https://json-schema.org/draft/2020-12/schema"},
    **{
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": STRING, "city": STRING},
            }
        }
    },
    properties={
        "name": STRING,
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": STRING,
        "email": STRING,
    },
    allOf=[{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    **{
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
    },
    additionalProperties=False,
)
async def json_schema(call):
    return answer(f"Got {sorted(call.arguments)}.")


@tool(
    "test_x_mcp_header",
    "Takes an argument that its request repeats in a header.",
    properties={"region": {**STRING, "x-mcp-header": "Region"}},
    required=["region"],
)
async def x_mcp_header(call):
    return answer(f"The region is {call.arguments['region']}.")


@tool("test_trigger_tool_change", "Adds a tool, or takes it away again.")
async def trigger_tool_change(call):
    call.world.more_tools = not call.world.more_tools
    await call.world.bus.publish(ToolsListChanged())
    if not call.modern:
        await call.ctx.session.send_tool_list_changed()
    return answer("The list of tools is another one now.")


@tool("test_trigger_prompt_change", "Adds a prompt, or takes it away again.")
async def trigger_prompt_change(call):
    call.world.more_prompts = not call.world.more_prompts
    await call.world.bus.publish(PromptsListChanged())
    if not call.modern:
        await call.ctx.session.send_prompt_list_changed()
    return answer("The list of prompts is another one now.")
