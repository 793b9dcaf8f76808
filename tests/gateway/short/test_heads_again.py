"""A call of MCP whose head came before is not parsed again, and checked as if it were."""

import contextlib
import json

from mcp.server.transport_security import TransportSecuritySettings

from counterseal import Context, Grant, Principal, Runtime, tool
from counterseal.gateway.running import Gateway
from counterseal.gateway.server import Front
from counterseal.web.access import Access
from counterseal.web.auth import principal_of
from counterseal.web.connection import Connection
from counterseal.web.site import site
from tests.gateway.wires import answer_in, connected, served

from .both import modern

URL = "http://127.0.0.1:8787"


@tool(effect="read_only", version="1.0.0", owner="desk")
async def whoami(ctx: Context) -> dict[str, str]:
    """Tell who calls."""
    return {"user": ctx.principal.user or ""}


@contextlib.asynccontextmanager
async def wired():
    """A connection to a gateway, the keys of two who may call, and which requests came again."""
    came = []
    async with Runtime.open("memory:") as runtime:
        runtime.register(whoami, grants=[Grant(agent="bot", tool="whoami")])
        keys = {}
        for name in ("ann", "bob"):
            who = Principal(tenant="acme", agent="bot", user=name)
            keys[name], _ = await runtime.operator("tests").issue_key(who, reason="a test")
        front = Front(runtime, who=principal_of, console=URL, wait=0.0)
        security = TransportSecuritySettings(allowed_hosts=["127.0.0.1:*"])
        made = site(
            Gateway(runtime=runtime, front=front, behind=None),
            Access(resource=f"{URL}/mcp"),
            security,
            urls=[URL],
        )
        before = 0

        async def app(scope, receive, send):
            nonlocal before
            now = Connection.of(scope).repeated
            came.append(now > before)
            before = now
            await made.app(scope, receive, send)

        async with served(app) as url, connected(url) as wire:
            yield runtime, keys, wire, came


def asking(key):
    body = json.dumps(modern("whoami", {})["message"]).encode()
    lines = [
        "POST /mcp HTTP/1.1",
        "Host: 127.0.0.1:8787",
        f"Authorization: Bearer {key}",
        "MCP-Protocol-Version: 2026-07-28",
        "Mcp-Method: tools/call",
        "Mcp-Name: whoami",
        "Accept: application/json, text/event-stream",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join((*lines, "", "")).encode() + body


async def asked(wire, key):
    reader, writer = wire
    writer.write(asking(key))
    head, body = await answer_in(reader)
    return int(head.split()[1]), json.loads(body) if body else None


async def test_each_is_answered_as_who_it_is():
    async with wired() as (_, keys, wire, came):
        for name in ("ann", "ann", "bob", "ann", "bob", "bob"):
            status, told = await asked(wire, keys[name])
            assert status == 200
            assert name in json.dumps(told["result"])
    # A credential is looked into when it comes for the first time.
    assert came == [False, True, False, True, True, True]


async def test_a_key_that_is_revoked_is_refused_with_the_next_call():
    async with wired() as (runtime, keys, wire, came):
        for name in ("ann", "bob", "ann"):
            assert (await asked(wire, keys[name]))[0] == 200
        assert came[-1]
        key_id = keys["ann"].split("_")[2]
        await runtime.operator("tests").revoke_key(key_id, reason="lost")
        assert (await asked(wire, keys["ann"]))[0] == 401
        assert (await asked(wire, keys["bob"]))[0] == 200
        assert (await asked(wire, keys["ann"]))[0] == 401
