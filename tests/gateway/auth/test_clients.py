"""The SDK's own client, with tokens that it fetches and with keys, before a guarded server.

Both revisions: sessions up to 2025-11-25, requests that stand alone since 2026-07-28.
"""

import asyncio
import contextlib
import socket
from urllib.parse import parse_qs, urlsplit

import httpx2
import mcp_types as types
import pytest
import uvicorn
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import (
    StreamableHTTPASGIApp,
    StreamableHTTPSessionManager,
)
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata
from mcp.shared.exceptions import MCPError
from starlette.applications import Starlette
from starlette.routing import Route

from counterseal.config.tables import OAuthTable
from counterseal.proposal import Principal
from counterseal.web.identity import Access, principal_of, protect

from .authorization_server import CLIENT

MODES = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
BOT = Principal(tenant="acme", agent="notice-agent", user="u_7")


async def list_tools(ctx, params):
    return types.ListToolsResult(
        tools=[types.Tool(name="who", description="Who am I?", input_schema={"type": "object"})]
    )


async def call_tool(ctx, params):
    who = principal_of()
    told = f"{who.tenant} {who.agent} {who.user} {' '.join(sorted(who.scopes))}".strip()
    return types.CallToolResult(content=[types.TextContent(type="text", text=told)])


@pytest.fixture
async def endpoint(runtime, issuer, steady):
    """The URL of a server that tells callers who they are."""
    server = Server("who", on_list_tools=list_tools, on_call_tool=call_tool)
    manager = StreamableHTTPSessionManager(app=server)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/mcp"
        access = Access(resource=url, oauth=OAuthTable(issuer=issuer.issuer))
        door = protect(StreamableHTTPASGIApp(manager), access, runtime, steady=steady)
        app = Starlette(routes=[Route("/mcp", endpoint=door.endpoint), *door.routes])
        config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none")
        running = uvicorn.Server(config)
        async with manager.run():
            task = asyncio.ensure_future(running.serve(sockets=[bound]))
            yield url
            running.should_exit = True
            await task


class Memory:
    """Where the client keeps its tokens."""

    def __init__(self):
        self.tokens = self.client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client_info):
        self.client = client_info


@contextlib.asynccontextmanager
async def connected(url, mode, **http):
    async with httpx2.AsyncClient(trust_env=False, verify=False, **http) as client:
        transport = streamable_http_client(url, http_client=client)
        async with Client(transport, mode=mode) as made:
            yield made


async def told(client):
    return (await client.call_tool("who", {})).content[0].text


@MODES
async def test_client_with_credentials_of_its_own_fetches_a_token_and_is_known(
    endpoint, issuer, mode
):
    auth = ClientCredentialsOAuthProvider(
        server_url=endpoint, storage=Memory(), issuer=issuer.issuer, **CLIENT
    )
    async with connected(endpoint, mode, auth=auth) as client:
        assert await told(client) == "acme notice-agent u_7 case:read notice:send"


@MODES
async def test_client_whose_user_logs_in_is_known(endpoint, mode):
    came_back = {}

    async def open_page(url):
        async with httpx2.AsyncClient(trust_env=False, verify=False) as browser:
            answer = await browser.get(url)
        query = parse_qs(urlsplit(answer.headers["location"]).query)
        came_back.update({name: values[0] for name, values in query.items()})

    async def wait_for_code():
        return AuthorizationCodeResult(**came_back)

    auth = OAuthClientProvider(
        server_url=endpoint,
        client_metadata=OAuthClientMetadata(
            client_name="test", redirect_uris=["http://127.0.0.1:1/callback"]
        ),
        storage=Memory(),
        redirect_handler=open_page,
        callback_handler=wait_for_code,
    )
    async with connected(endpoint, mode, auth=auth) as client:
        assert await told(client) == "acme notice-agent u_7 case:read notice:send"


@MODES
async def test_client_with_an_api_key_is_known_until_the_key_is_revoked(
    endpoint, runtime, steady, mode
):
    operator = runtime.operator("u_1")
    text, made = await operator.issue_key(BOT, reason="one")
    statuses = []

    async def note(answer):
        statuses.append(answer.status_code)

    how = {"headers": {"Authorization": f"Bearer {text}"}, "event_hooks": {"response": [note]}}
    async with connected(endpoint, mode, **how) as client:
        assert await told(client) == "acme notice-agent u_7"
        assert 401 not in statuses
        await operator.revoke_key(made.key_id, reason="it leaked")
        with pytest.raises(MCPError, match="error response"):
            await told(client)
        assert statuses[-1] == 401


async def test_session_of_one_key_is_closed_to_another(endpoint, runtime):
    operator = runtime.operator("u_1")
    keys = [(await operator.issue_key(BOT, reason="one"))[0] for _ in range(2)]
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
    accept = {"Accept": "application/json, text/event-stream"}
    async with httpx2.AsyncClient(trust_env=False, verify=False) as http:

        async def post(key, message, **headers):
            bearing = {**accept, "Authorization": f"Bearer {key}", **headers}
            return await http.post(endpoint, json=message, headers=bearing)

        opened = await post(keys[0], hello)
        assert opened.status_code == 200
        session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        assert (await post(keys[0], ping, **session)).status_code == 200
        assert (await post(keys[1], ping, **session)).status_code == 404
