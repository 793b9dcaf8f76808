"""Sessions of 2025-11-25: their owner, and what ends with them."""

import asyncio
import contextlib
import json

from tests.gateway.served import ANN, Desk, serving, soon
from tests.waiting import until

ADD = {"a": 1, "b": 2}


@contextlib.asynccontextmanager
async def session(served, **can):
    """A session's client, and the headers that belong to it."""
    async with served.http() as http:
        headers = {**await served.session(http, **can), "MCP-Protocol-Version": "2025-11-25"}
        yield http, headers


def call(name="add", arguments=None):
    params = {"name": name, "arguments": arguments or ADD}
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}


def messages(response):
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines]


async def test_a_session_is_its_owners_alone_and_over_when_it_is_ended():
    async with (
        serving(Desk().tools) as served,
        session(served) as (http, headers),
        served.http(ANN) as other,
    ):
        url = served.url
        assert (await http.post(url, json=call(), headers=headers)).status_code == 200
        assert (await other.post(url, json=call(), headers=headers)).status_code == 404
        assert (await other.delete(url, headers=headers)).status_code == 404
        assert (await http.post(url, json=call(), headers=headers)).status_code == 200
        assert len(served.server.notifications._connections) == 1
        assert (await http.delete(url, headers=headers)).status_code == 200
        assert (await http.post(url, json=call(), headers=headers)).status_code == 404
        await until(lambda: not served.server.notifications._connections)


async def test_a_call_that_is_cancelled_in_a_session_is_stopped():
    desk = Desk()
    async with serving(desk.tools) as served, session(served) as (http, headers):
        slow = call("linger", {"text": "a"})
        calling = asyncio.ensure_future(http.post(served.url, json=slow, headers=headers))
        await soon(desk.begun)
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
        cancelled["params"] = {"requestId": 7}
        answer = await http.post(served.url, json=cancelled, headers=headers)
        assert answer.status_code == 202
        await soon(desk.stopped)
        (message,) = messages(await calling)
        assert message["error"]["code"] == -32800
        assert (await http.post(served.url, json=call(), headers=headers)).status_code == 200


async def test_the_calls_of_a_session_end_with_it():
    desk = Desk()
    async with serving(desk.tools) as served, session(served) as (http, headers):
        slow = call("linger", {"text": "a"})
        calling = asyncio.ensure_future(http.post(served.url, json=slow, headers=headers))
        await soon(desk.begun)
        assert (await http.delete(served.url, headers=headers)).status_code == 200
        await soon(desk.stopped)
        await calling


async def test_a_client_that_disconnects_does_not_cancel_its_call():
    desk = Desk()
    async with serving(desk.tools) as served, session(served) as (http, headers):
        slow = call("linger", {"text": "a"})
        calling = asyncio.ensure_future(http.post(served.url, json=slow, headers=headers))
        await soon(desk.begun)
        calling.cancel()
        await asyncio.wait({calling})
        answer = await http.post(served.url, json=call(), headers=headers)
        assert messages(answer)[0]["result"]["structuredContent"] == {"total": 3}
        assert not desk.stopped.is_set()
        desk.door.set()
        await until(lambda: not served.server.calls.running.count)
        again = await http.post(served.url, json=slow, headers=headers)
        assert messages(again)[0]["result"]["structuredContent"] == {"noted": "a"}
    assert desk.notes == ["a"]
