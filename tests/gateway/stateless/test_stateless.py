"""Calls on the stateless path that are slow, cancelled or too long for it."""

import asyncio
import contextlib
import json

from counterseal import tool
from counterseal.gateway import stateless
from counterseal.gateway.server import McpServer
from tests.gateway.served import Desk, serving, soon
from tests.gateway.stateless.both import modern, post, told
from tests.waiting import until


@contextlib.asynccontextmanager
async def served_stateless(monkeypatch, tools, **options):
    """A server, and its stateless path."""
    paths, endpoint = [], McpServer.endpoint

    def made(self, manager, security):
        paths.append(endpoint(self, manager, security))
        return paths[0]

    monkeypatch.setattr(McpServer, "endpoint", made)
    async with serving(tools, **options) as served:
        yield served, paths[0]


async def lines_of(response):
    async for line in response.aiter_lines():
        if line:
            yield line


async def test_a_slow_call_becomes_a_stream_with_keep_alives(monkeypatch):
    monkeypatch.setattr(stateless, "_SOON", 0.01)
    monkeypatch.setattr(stateless, "_PING", 0.02)
    desk = Desk()
    async with served_stateless(monkeypatch, desk.tools) as (served, path), served.http() as http:
        call = modern("linger", {"text": "a"})
        headers = {"Content-Type": "application/json", **call["headers"]}
        content = json.dumps(call["message"])
        async with http.stream("POST", served.url, content=content, headers=headers) as response:
            assert response.headers["content-type"] == "text/event-stream"
            lines = lines_of(response)
            assert (await anext(lines)).startswith(": ping")
            assert (await anext(lines)).startswith(": ping")
            desk.door.set()
            data = [line async for line in lines if line.startswith("data: ")]
        (message,) = [json.loads(line[6:]) for line in data]
        assert message["result"]["structuredContent"] == {"noted": "a"}
        assert path.taken == 1


async def test_a_client_that_disconnects_cancels_its_call(monkeypatch):
    desk = Desk()
    async with served_stateless(monkeypatch, desk.tools) as (served, path), served.http() as http:
        call = modern("linger", {"text": "a"})
        calling = asyncio.ensure_future(post(http, served.url, call, call["headers"]))
        await soon(desk.begun)
        calling.cancel()
        await soon(desk.stopped)
        await until(lambda: not served.server.calls.running)
        assert path.taken == 1


async def test_a_long_request_goes_to_the_sdk(monkeypatch):
    @tool(effect="read_only", version="1.0.0", owner="desk")
    async def measure(text: str) -> dict[str, int]:
        """Tell how long a text is.

        Args:
            text: The text.
        """
        return {"length": len(text)}

    async with served_stateless(monkeypatch, [measure]) as (served, path), served.http() as http:
        call = modern("measure", {"text": "x" * 300_000})
        (message,) = told(await post(http, served.url, call, call["headers"]))
        assert message["result"]["_meta"]["counterseal/observation"]["call_id"]
        assert path.taken == 0


async def test_a_body_in_several_messages_is_put_together(monkeypatch):
    async with served_stateless(monkeypatch, Desk().tools) as (served, path), served.http() as http:
        call = modern("add", {"a": 1, "b": 2})
        text = json.dumps(call["message"]).encode()

        async def parts():
            for start in range(0, len(text), 50):
                yield text[start : start + 50]
                await asyncio.sleep(0)

        headers = {"Content-Type": "application/json", **call["headers"]}
        (message,) = told(await http.post(served.url, content=parts(), headers=headers))
        assert message["result"]["structuredContent"] == {"total": 3}
        assert path.taken == 1
