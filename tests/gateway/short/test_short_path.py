"""What becomes of calls on the short way that turn out to be longer: none is made twice."""

import asyncio
import contextlib
import json

import mcp_types as types
import pytest

from counterseal import Context, tool
from counterseal.gateway.calling import Calling
from counterseal.gateway.server import Front
from counterseal.gateway.short import answer as answers
from counterseal.gateway.short import sessions
from tests.gateway.served import ANN, LEGACY, Desk, serving, soon, until
from tests.gateway.short.both import legacy, modern, post, told

ADD = {"a": 1, "b": 2}


@contextlib.asynccontextmanager
async def short(monkeypatch, tools, **options):
    """A server, and its short way."""
    paths, endpoint = [], Front.endpoint

    def made(self, manager, security):
        paths.append(endpoint(self, manager, security))
        return paths[0]

    monkeypatch.setattr(Front, "endpoint", made)
    async with serving(tools, **options) as served:
        yield served, paths[0]


@contextlib.asynccontextmanager
async def session(served, **can):
    """A session's client, and the headers that belong to it."""
    async with served.http() as http:
        headers = {**await served.session(http, **can), "MCP-Protocol-Version": "2025-11-25"}
        yield http, headers


async def lines_of(response):
    async for line in response.aiter_lines():
        if line:
            yield line


def streamed(http, served, request, headers):
    content = json.dumps(request["message"]).encode()
    headers = {"Content-Type": "application/json", **request["headers"], **headers}
    return http.stream("POST", served.url, content=content, headers=headers)


# --- sessions -------------------------------------------------------------------------------------


async def test_a_session_is_its_owners_alone_and_over_when_it_is_ended(monkeypatch):
    async with (
        short(monkeypatch, Desk().tools) as (served, path),
        session(served) as (http, headers),
        served.http(ANN) as other,
    ):
        call = legacy("add", ADD)
        assert (await post(http, served.url, call, headers)).status_code == 200
        assert path.taken == 1
        assert (await post(other, served.url, call, headers)).status_code == 404
        assert (await other.delete(served.url, headers=headers)).status_code == 404
        assert (await post(http, served.url, call, headers)).status_code == 200
        assert path.taken == 2
        assert (await http.delete(served.url, headers=headers)).status_code == 200
        assert (await post(http, served.url, call, headers)).status_code == 404
        assert path.taken == 2
        await until(lambda: not len(served.front.sessions))


async def test_now_and_then_a_session_is_seen_by_those_who_end_idle_ones(monkeypatch):
    async with (
        short(monkeypatch, Desk().tools) as (served, path),
        session(served) as (http, headers),
    ):
        monkeypatch.setattr(sessions, "_LONG_WAY", 0.0)
        answer = await post(http, served.url, legacy("add", ADD), headers)
        assert told(answer)[0]["result"]["structuredContent"] == {"total": 3}
        assert path.taken == 0
        monkeypatch.setattr(sessions, "_LONG_WAY", 60.0)
        await post(http, served.url, legacy("add", ADD), headers)
        assert path.taken == 1


async def test_a_call_that_is_taken_back_in_a_session_is_stopped_and_answered(monkeypatch):
    desk = Desk()
    async with (
        short(monkeypatch, desk.tools) as (served, path),
        session(served) as (http, headers),
    ):
        call = legacy("linger", {"text": "a"})
        calling = asyncio.ensure_future(post(http, served.url, call, headers))
        await soon(desk.begun)
        gone = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
        gone["params"] = {"requestId": "7"}
        assert (await post(http, served.url, {"message": gone}, headers)).status_code == 202
        (message,) = told(await calling)
        assert message["error"]["code"] == -32800
        await soon(desk.stopped)
        assert path.taken == 1
        assert (await post(http, served.url, legacy("add", ADD), headers)).status_code == 200


async def test_what_a_session_has_under_way_ends_with_it(monkeypatch):
    desk = Desk()
    async with (
        short(monkeypatch, desk.tools) as (served, _),
        session(served) as (http, headers),
    ):
        call = legacy("linger", {"text": "a"})
        calling = asyncio.ensure_future(post(http, served.url, call, headers))
        await soon(desk.begun)
        assert (await http.delete(served.url, headers=headers)).status_code == 200
        await soon(desk.stopped)
        (message,) = told(await calling)
        assert message["error"]["code"] == -32000


async def test_two_calls_under_one_id_do_not_get_in_each_others_way(monkeypatch):
    desk = Desk()
    async with (
        short(monkeypatch, desk.tools) as (served, path),
        session(served) as (http, headers),
    ):
        call = legacy("linger", {"text": "a"})
        calling = asyncio.ensure_future(post(http, served.url, call, headers))
        await soon(desk.begun)
        other = await post(http, served.url, legacy("add", ADD), headers)
        assert told(other)[0]["result"]["structuredContent"] == {"total": 3}
        assert path.taken == 1
        desk.door.set()
        assert told(await calling)[0]["result"]["structuredContent"] == {"noted": "a"}


# --- handed over ----------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [False, True])
async def test_a_call_that_a_person_has_to_approve_is_handed_over_and_made_once(monkeypatch, begun):
    """Also when its answer has begun as a stream already."""
    monkeypatch.setattr(Calling, "may_ask_in_session", lambda *_: False)
    desk, asked = Desk(), []
    submit = Calling._submit

    async def slowly(self, client, *rest):
        seen = await submit(self, client, *rest)
        await asyncio.sleep(0.05 if begun else 0)
        return seen

    monkeypatch.setattr(answers, "_SOON", 0.0 if begun else 60.0)
    monkeypatch.setattr(Calling, "_submit", slowly)
    async with short(monkeypatch, desk.tools) as (served, path):

        async def point_out(_, params):
            asked.append(params)
            await served.decide()
            return {"action": "accept"}

        async with served.client(LEGACY, elicitation_callback=_typed(point_out)) as client:
            result = await client.call_tool("send", {"to": "Ann"})
        assert result.structured_content == {"sent": "Ann"}
        assert path.taken == 1
    assert desk.sent == ["Ann"]
    assert len(asked) == 1


def _typed(answering):
    async def answer(context, params):
        return types.ElicitResult.model_validate(await answering(context, params))

    return answer


# --- what takes its time --------------------------------------------------------------------------


@pytest.mark.parametrize("make", [modern, legacy])
async def test_what_takes_long_becomes_a_stream_that_shows_signs_of_life(monkeypatch, make):
    monkeypatch.setattr(answers, "_SOON", 0.01)
    monkeypatch.setattr(answers, "_PING", 0.02)
    desk = Desk()
    async with (
        short(monkeypatch, desk.tools) as (served, path),
        session(served) as (http, headers),
    ):
        call = make("linger", {"text": "a"})
        own = headers if make is legacy else {}
        async with streamed(http, served, call, own) as response:
            assert response.headers["content-type"] == "text/event-stream"
            lines = lines_of(response)
            assert (await anext(lines)).startswith(": ping")
            assert (await anext(lines)).startswith(": ping")
            desk.door.set()
            data = [line async for line in lines if line.startswith("data: ")]
        (message,) = [json.loads(line[6:]) for line in data]
        assert message["result"]["structuredContent"] == {"noted": "a"}
        assert path.taken == 1


async def test_a_client_of_2026_that_hangs_up_stops_its_call(monkeypatch):
    desk = Desk()
    async with short(monkeypatch, desk.tools) as (served, path), served.http() as http:
        call = modern("linger", {"text": "a"})
        calling = asyncio.ensure_future(post(http, served.url, call, call["headers"]))
        await soon(desk.begun)
        calling.cancel()
        await soon(desk.stopped)
        await until(lambda: not served.front.calling.under_way)
        assert path.taken == 1


async def test_a_client_of_2025_that_hangs_up_has_said_nothing(monkeypatch):
    desk = Desk()
    async with (
        short(monkeypatch, desk.tools) as (served, _),
        session(served) as (http, headers),
    ):
        call = legacy("linger", {"text": "a"})
        calling = asyncio.ensure_future(post(http, served.url, call, headers))
        await soon(desk.begun)
        calling.cancel()
        await asyncio.wait({calling})
        await asyncio.sleep(0.2)
        assert not desk.stopped.is_set()
        desk.door.set()
        await until(lambda: not served.front.calling.under_way)
        again = await post(http, served.url, call, headers)
        assert told(again)[0]["result"]["structuredContent"] == {"noted": "a"}
    assert desk.notes == ["a"]


async def test_what_a_tool_logs_comes_before_its_result(monkeypatch):
    @tool(effect="read_only", version="1.0.0", owner="desk")
    async def talk(ctx: Context) -> dict[str, bool]:
        """Say something on the way."""
        await ctx.client.log("info", "on the way")
        return {"done": True}

    async with (
        short(monkeypatch, [talk]) as (served, path),
        session(served) as (http, headers),
    ):
        said, last = told(await post(http, served.url, legacy("talk", {}), headers))
        assert said["method"] == "notifications/message"
        assert said["params"]["data"] == "on the way"
        assert last["result"]["structuredContent"] == {"done": True}
        assert path.taken == 1


async def test_a_long_request_goes_the_long_way(monkeypatch):
    @tool(effect="read_only", version="1.0.0", owner="desk")
    async def measure(text: str) -> dict[str, int]:
        """Tell how long a text is.

        Args:
            text: The text.
        """
        return {"length": len(text)}

    async with short(monkeypatch, [measure]) as (served, path), served.http() as http:
        call = modern("measure", {"text": "x" * 300_000})
        (message,) = told(await post(http, served.url, call, call["headers"]))
        assert message["result"]["_meta"]["counterseal/observation"]["call_id"]
        assert path.taken == 0
