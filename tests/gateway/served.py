"""The MCP server over real HTTP, the clients in front of it, and a desk with tools of all kinds.

    async with serving(desk.tools) as served, served.client(mode) as client:
        result = await client.call_tool("add", {"a": 1, "b": 2})

Each principal has an API key of its own: `served.client(mode, ANN)` is another caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Annotated, Any, Literal

import httpx2
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import BaseModel, Field, TypeAdapter

from counterseal import Context, Grant, Principal, Runtime, Voter, tool
from counterseal.gateway.running import Gateway
from counterseal.gateway.server import McpServer
from counterseal.web.app import site
from counterseal.web.identity import Access, principal_of
from tests.gateway.servers import UVICORN, serving_on
from tests.waiting import until

MODERN = "2026-07-28"
LEGACY = "legacy"
MODES = pytest.mark.parametrize("mode", [LEGACY, MODERN])
BOT = Principal(tenant="acme", agent="bot", user="u_1")
ANN = Principal(tenant="acme", agent="bot", user="u_2")
STRANGER = Principal(tenant="other", agent="bot", user="u_9")
BOSS = Voter(user="boss", tenant="acme")
FACTS = "counterseal/observation"
SERVER = UVICORN
"""On which server the gateway runs; `test_second_server` sets another one."""
PATIENCE = 30.0
"""Seconds after which something that should have happened long ago is missed."""

Number = Annotated[int, Field(description="A number.")]
Text = Annotated[str, Field(max_length=200, description="A text.")]


class Sum(BaseModel):
    """What is published as an output schema."""

    total: int


class Desk:
    """Tools of all kinds, and what they did."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.notes: list[str] = []
        self.keys: list[str | None] = []
        self.runs: list[str] = []
        self.begun = asyncio.Event()
        self.door = asyncio.Event()
        self.stopped = asyncio.Event()
        """Set when a tool that was waiting was told to stop."""

        @tool(effect="read_only", version="1.0.0", owner="desk")
        async def add(a: Number, b: Number) -> Sum:
            """Add two numbers."""
            return Sum(total=a + b)

        @tool(
            effect="external_notification",
            version="1.0.0",
            owner="desk",
            budget=100,
            consequence="A letter goes to {to}.",
        )
        async def send(to: Text) -> dict[str, Any]:
            """Send a letter."""
            self.sent.append(to)
            return {"sent": to}

        @tool(effect="draft", version="1.0.0", owner="desk", budget=100)
        async def note(text: Text, ctx: Context) -> dict[str, int]:
            """Write a note."""
            self.notes.append(text)
            self.keys.append(ctx.key)
            self.runs.append(ctx.run_id)
            return {"notes": len(self.notes)}

        @tool(effect="draft", version="1.0.0", owner="desk", budget=100)
        async def linger(text: Text) -> dict[str, str]:
            """Write a note, after a while."""
            self.notes.append(text)
            self.begun.set()
            try:
                await self.door.wait()
            except asyncio.CancelledError:
                self.stopped.set()
                raise
            return {"noted": text}

        self.tools = [add, send, note, linger]


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE):
        await event.wait()


class Served:
    """A running server."""

    elicitation: dict[str, Any] | None = None
    """The elicitation that its clients declare, in the place of their own declaration."""

    def __init__(self, runtime: Runtime, server: McpServer, url: str) -> None:
        self.runtime = runtime
        self.server = server
        self.url = url
        self._keys: dict[Principal, str] = {}

    async def key(self, who: Principal) -> str:
        if who not in self._keys:
            operator = self.runtime.operator("tests")
            self._keys[who], _ = await operator.issue_key(who, reason="for a test")
        return self._keys[who]

    @contextlib.asynccontextmanager
    async def client(self, mode: str, who: Principal = BOT, **options: Any) -> Any:
        """The SDK's own client."""
        async with self.http(who) as http:
            transport = streamable_http_client(self.url, http_client=http)
            async with Client(transport, mode=mode, **options) as client:
                yield client

    @contextlib.asynccontextmanager
    async def http(self, who: Principal = BOT) -> Any:
        """For what no client of MCP would send."""
        headers = {
            "Authorization": f"Bearer {await self.key(who)}",
            "Accept": "application/json, text/event-stream",
        }
        options: dict[str, Any] = {"headers": headers, "timeout": httpx2.Timeout(PATIENCE)}
        if self.elicitation is not None:
            options["transport"] = _Declaring(self.elicitation)
        async with httpx2.AsyncClient(trust_env=False, verify=False, **options) as http:
            yield http

    async def session(self, http: httpx2.AsyncClient, **capabilities: Any) -> dict[str, str]:
        """A session of 2025-11-25, as the headers that belong to it."""
        hello = {
            "jsonrpc": "2.0",
            "id": 0,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": capabilities,
                "clientInfo": {"name": "test", "version": "1"},
            },
        }
        opened = await http.post(self.url, json=hello)
        headers = {
            "Mcp-Session-Id": opened.headers["mcp-session-id"],
            "Content-Type": "application/json",
        }
        done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        await http.post(self.url, json=done, headers=headers)
        return headers

    async def decide(self, choice: str = "approve", voter: Voter = BOSS) -> None:
        """A person decides on the one request that waits, as soon as it does."""
        (held,) = await until(self.runtime.approvals.list)
        await self.runtime.approvals.decide(held.approval_id, voter, choice)


@contextlib.asynccontextmanager
async def serving(
    tools: Any,
    *,
    runtime: Runtime | None = None,
    store: str = "memory:",
    wait: float = PATIENCE,
    grants: Any = None,
    telling: bool = False,
    connections: dict[str, int] | None = None,
    **options: Any,
) -> Any:
    """A gateway without upstreams, on a free port. `wait` is how long calls wait for a person.

    `connections` are the server's limits.
    """
    async with contextlib.AsyncExitStack() as stack:
        if runtime is None:
            runtime = Runtime.open(store, **options)
            granted = [Grant(agent="bot", tool=one.contract.name) for one in tools]
            runtime.register(*tools, grants=granted if grants is None else grants)
            await stack.enter_async_context(runtime)
        server = McpServer(runtime, caller=principal_of, console="https://console.test", wait=wait)
        if telling:
            task = asyncio.ensure_future(server.notify_changes())
            stack.callback(task.cancel)
        stack.push_async_callback(server.calls.close)
        url = await stack.enter_async_context(listening(server, **(connections or {})))
        yield Served(runtime, server, url)


@contextlib.asynccontextmanager
async def listening(server: McpServer, **settings: int) -> Any:
    """The application under its URL."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/mcp"
        running = Gateway(runtime=server.runtime, server=server, upstreams=None)  # type: ignore[arg-type]
        security = TransportSecuritySettings(allowed_hosts=["127.0.0.1:*"])
        app = site(running, Access(resource=url), security, urls=[url]).app
        async with serving_on(bound, app, SERVER, **settings):
            try:
                yield url
            finally:
                server.notifications.close()


# --- what came back -------------------------------------------------------------------------------


def facts(result: types.CallToolResult) -> dict[str, Any]:
    """What a program is told of its call."""
    return result.meta[FACTS]


def said(result: types.CallToolResult) -> str:
    """What the model reads."""
    return result.content[0].text


class _RawCall(types.Request[dict[str, Any], Literal["tools/call"]]):
    method: Literal["tools/call"] = "tools/call"
    params: dict[str, Any]


async def raw_call(client: Client, **params: Any) -> dict[str, Any]:
    """`tools/call` with params that the client itself would not send, as the wire has them."""
    return await client.session.send_request(_RawCall(params=params), TypeAdapter(dict[str, Any]))


@pytest.fixture
def form_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that can show a form, and no link."""
    monkeypatch.setattr(Served, "elicitation", {"form": {}})


@pytest.fixture
def url_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that can show a link, and no form."""
    monkeypatch.setattr(Served, "elicitation", {"url": {}})


class _Declaring(httpx2.AsyncHTTPTransport):
    """Changes what a client says in its requests about the elicitation that it can do."""

    def __init__(self, elicitation: dict[str, Any]) -> None:
        super().__init__(trust_env=False, verify=False)
        self._elicitation = elicitation

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.content:
            message = json.loads(request.content)
            params = message.get("params", {})
            for declared in (
                params.get("capabilities"),
                params.get("_meta", {}).get(types.CLIENT_CAPABILITIES_META_KEY),
            ):
                if declared and "elicitation" in declared:
                    declared["elicitation"] = self._elicitation
            headers = [(k, v) for k, v in request.headers.items() if k != "content-length"]
            request = httpx2.Request(
                request.method,
                request.url,
                headers=headers,
                content=json.dumps(message),
                extensions=request.extensions,
            )
        return await super().handle_async_request(request)
