"""Questions of an upstream, in both revisions: which client gets them, and refusals."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from counterseal.contract.tool_context import RefusedError
from counterseal.errors import NotSentError, ToolFailedError
from tests.waiting import until

from .conftest import ClientInFront, call_context, connected, in_front, program, text_of

ERAS = ["modern", "legacy"]
ALL = frozenset({"elicitation", "sampling", "roots"})
NAME = {"action": "accept", "content": {"name": "Ada"}}
SAID = {"role": "assistant", "content": {"type": "text", "text": "Hm."}, "model": "m"}
ROOTS = {"roots": [{"uri": "file:///home/ada"}]}


def everything(**instead):
    answers = {"elicitation": NAME, "sampling": SAID, "roots": ROOTS, **instead}
    return ClientInFront("elicitation", "elicitation.url", "sampling", "roots", **answers)


def at(standing, era, **settings):
    site = standing("--legacy") if era == "legacy" else standing()
    return site.settings(**settings)


@pytest.mark.parametrize("era", ERAS)
async def test_what_an_upstream_asks_is_answered_by_the_client_in_front(standing, era):
    async with connected(at(standing, era, relay=ALL)) as upstream:
        with in_front(everything()) as front:
            given = text_of(await upstream.call("ask", {}, context=call_context()))
            said = text_of(await upstream.call("sample", {}, context=call_context()))
            roots = text_of(await upstream.call("roots", {}, context=call_context()))
    assert json.loads(given)["content"] == {"name": "Ada"}
    assert json.loads(said)["content"]["text"] == "Hm."
    assert json.loads(roots)["roots"][0]["uri"] == "file:///home/ada"
    methods = [method for method, _, _ in front.asked]
    assert methods == ["elicitation/create", "sampling/createMessage", "roots/list"]
    _, params, key = front.asked[0]
    assert params["message"] == "Who?"
    assert params["requestedSchema"]["required"] == ["name"]
    assert key == ("the-key" if era == "modern" else "")


def of_2025(*can):
    front = everything()
    front.protocol_version = "2025-11-25"
    if can:
        front.can = lambda capability: capability in can
    return front


@pytest.mark.parametrize("way", ["website", "program"])
async def test_a_server_of_both_revisions_asks_a_client_of_2025_by_requests(standing, way):
    site = program("--by-request", relay=ALL) if way == "program" else None
    settings = site or standing("--by-request").settings(relay=ALL)
    async with connected(settings) as upstream:
        assert upstream.version == "2026-07-28"
        with in_front(of_2025()) as front:
            both = (upstream.call(name, {}, context=call_context()) for name in ("ask", "sample"))
            given, said = await asyncio.gather(*both)
        with in_front(everything()), pytest.raises((ToolFailedError, NotSentError)):
            await upstream.call("ask", {}, context=call_context())
    assert json.loads(text_of(given))["content"] == {"name": "Ada"}
    assert json.loads(text_of(said))["content"]["text"] == "Hm."
    assert sorted(method for method, _, _ in front.asked) == [
        "elicitation/create",
        "sampling/createMessage",
    ]


async def test_a_server_of_2026_alone_asks_a_client_of_2025_in_its_own_way(standing):
    async with connected(standing("--modern").settings(relay=ALL)) as upstream:
        for _ in range(2):
            with in_front(of_2025()) as front:
                given = text_of(await upstream.call("ask", {}, context=call_context()))
            assert json.loads(given)["content"] == {"name": "Ada"}
            assert [name for _, _, name in front.asked] == ["the-key"]


async def test_a_client_of_2025_that_can_not_be_asked_shares_the_connection_of_all():
    async with connected(program("--by-request", relay=frozenset({"sampling"}))) as upstream:
        with in_front(everything()):
            shared = await upstream.call("echo", {}, context=call_context())
        with in_front(of_2025("elicitation")):
            same = await upstream.call("echo", {}, context=call_context())
        with in_front(of_2025("sampling")):
            own = await upstream.call("echo", {}, context=call_context())
    pids = [each["structuredContent"]["pid"] for each in (shared, same, own)]
    assert pids[0] == pids[1] != pids[2]


@pytest.mark.parametrize("options", [(), ("--legacy",)])
async def test_a_program_may_ask_too(options):
    settings = program(*options, relay=frozenset({"elicitation"}))
    async with connected(settings) as upstream:
        with in_front(everything()):
            given = text_of(await upstream.call("ask", {}, context=call_context()))
    assert json.loads(given)["action"] == "accept"


@pytest.mark.parametrize("era", ERAS)
async def test_an_upstream_that_may_not_ask_is_not_told_that_it_could(standing, era):
    async with connected(at(standing, era)) as upstream:
        with in_front(everything()) as front, pytest.raises(RefusedError) as refused:
            await upstream.call("ask", {}, context=call_context())
    assert refused.value.missing == "elicitation"
    assert front.asked == []


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_can_not_is_not_asked(standing, era):
    async with connected(at(standing, era, relay=ALL)) as upstream:
        with in_front(ClientInFront("sampling", sampling=SAID)) as front:
            with pytest.raises((RefusedError, ToolFailedError)) as refused:
                await upstream.call("ask", {}, context=call_context())
            await upstream.call("sample", {}, context=call_context())
        with pytest.raises((RefusedError, ToolFailedError)):
            await upstream.call("sample", {}, context=call_context())
    assert [method for method, _, _ in front.asked] == ["sampling/createMessage"]
    # Before 2026-07-28 what a client can is said once for a connection, so the upstream learns it
    # only when it asks, and what it makes of that is its own.
    assert isinstance(refused.value, RefusedError if era == "modern" else ToolFailedError)


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_refuses_ends_the_call(standing, era):
    async with connected(at(standing, era, relay=ALL)) as upstream:
        no = everything(elicitation=RefusedError("not now"))
        with in_front(no), pytest.raises((RefusedError, ToolFailedError)) as refused:
            await upstream.call("ask", {}, context=call_context())
    told = refused.value.details["message"] if era == "legacy" else str(refused.value)
    assert "not now" in told


async def test_calls_that_may_be_asked_something_have_a_connection_each(standing):
    settings = at(standing, "legacy", relay=ALL, connections=2)
    async with connected(settings) as upstream:
        fronts = [everything(elicitation=None), everything(elicitation=None)]
        calls = []
        for front in fronts:
            with in_front(front):
                calls.append(
                    asyncio.ensure_future(upstream.call("ask", {}, context=call_context()))
                )
        for front in fronts:
            await until(front.waiting.is_set)
        assert [len(front.asked) for front in fronts] == [1, 1]

        # There is no third connection, and the call does not wait for ever.
        soon = call_context(deadline=datetime.now(UTC) + timedelta(seconds=0.1))
        with pytest.raises(NotSentError, match="busy"):
            await upstream.call("echo", {}, context=soon)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        await until(lambda: not any(c.busy for c in [*upstream._pools["*"]._extra]))
        assert text_of(await upstream.call("echo", {"text": "x"}, context=call_context())) == "x"


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_vanishes_while_it_is_asked_leaves_the_connection_usable(standing, era):
    async with connected(at(standing, era, relay=ALL, connections=1)) as upstream:
        with in_front(everything(elicitation=None)) as gone:
            call = asyncio.ensure_future(upstream.call("ask", {}, context=call_context()))
        await until(gone.waiting.is_set)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with in_front(everything()):
            assert text_of(await upstream.call("ask", {}, context=call_context()))


async def test_prompts_may_ask_too_and_are_passed_on(standing):
    async with connected(at(standing, "modern", relay=ALL)) as upstream:
        with in_front(everything()):
            prompt = await upstream.request("prompts/get", {"name": "hello"}, tenant="acme")
    assert prompt["messages"][0]["content"]["text"] == "Hello Ada"


async def test_an_upstream_that_never_stops_asking_is_stopped(standing):
    async with connected(at(standing, "modern", relay=ALL)) as upstream:
        with in_front(everything()) as front, pytest.raises(RefusedError, match="more than 10"):
            await upstream.call("nag", {}, context=call_context())
    assert len(front.asked) == 10
