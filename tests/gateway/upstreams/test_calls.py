"""A call to an upstream, over every transport and in both revisions: request and result."""

import asyncio
import json

import pytest

from counterseal.contract.tool_context import RefusedError
from counterseal.errors import AnswerLostError, NotSentError, TooLateError, ToolFailedError
from counterseal.execution.attempt import TOO_LATE
from counterseal.upstream import UpstreamSettings

from .conftest import ClientInFront, call_context, connected, in_front, program, text_of
from .server import make_server

WAYS = ["program", "legacy program", "website", "legacy website", "json website", "inside"]


@pytest.fixture(scope="module")
async def way(request, standing):
    options = [f"--{word}" for word in ("legacy", "json") if word in request.param]
    if "program" in request.param:
        settings = program(*options)
    elif "website" in request.param:
        settings = standing(*options).settings()
    else:
        settings = UpstreamSettings(name="up", python=make_server())
    async with connected(settings) as upstream:
        yield upstream


@pytest.mark.parametrize("way", WAYS, indirect=True)
async def test_a_call_reaches_the_upstream_in_every_way_there_is(way, request):
    assert way.ready, way.trouble
    which = request.node.callspec.params["way"]
    assert way.version == ("2025-11-25" if "legacy" in which else "2026-07-28")
    assert "tools" in way.capabilities
    told = []
    front = ClientInFront(traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    context = call_context(key="k-1", told=told)

    with in_front(front):
        result = await way.call("echo", {"text": "hi", "none": None}, context=context)
        await way.call("progress", {}, context=context)

    assert result["content"][0] == {"type": "text", "text": "hi"}
    meta = json.loads(result["structuredContent"]["meta"])
    assert meta["counterseal/idempotency_key"] == "k-1"
    assert meta["traceparent"] == front.traceparent
    # An answer that is one JSON text has no room for anything before it.
    assert told == ([] if "json" in which else [(1, 2, "half")])


@pytest.mark.parametrize("way", ["program", "legacy website"], indirect=True)
async def test_fifty_calls_at_once_share_one_connection(way):
    texts = [f"text {number}" for number in range(50)]
    results = await asyncio.gather(
        *(way.call("echo", {"text": text}, context=call_context()) for text in texts)
    )
    assert [text_of(result) for result in results] == texts
    assert len({result["structuredContent"]["pid"] for result in results}) == 1
    assert [pool._extra for pool in way._pools.values()] == [{}]


@pytest.mark.parametrize("way", ["program", "website", "legacy website"], indirect=True)
async def test_what_an_upstream_logs_in_a_call_reaches_that_calls_client(way):
    with in_front(ClientInFront()) as front:
        await way.call("log", {}, context=call_context())
    assert front.logged == [("warning", "be careful")]


@pytest.mark.parametrize("way", ["program", "legacy website", "inside"], indirect=True)
async def test_a_tool_that_says_it_failed_is_told_from_one_that_was_refused(way):
    with pytest.raises(ToolFailedError) as failed:
        await way.call("fail", {}, context=call_context())
    assert failed.value.details == "it broke"
    with pytest.raises(ToolFailedError) as refused:
        await way.call("refuse", {}, context=call_context())
    assert refused.value.details == {"code": -32602, "message": "not like this"}
    with pytest.raises(ToolFailedError) as unknown:
        await way.call("no such tool", {}, context=call_context())
    assert unknown.value.details["code"] == -32602


async def test_what_is_no_result_of_a_call_counts_as_a_lost_answer():
    async with connected(program()) as upstream:
        with pytest.raises(AnswerLostError, match="an invalid result"):
            await upstream.call("wrong", {}, context=call_context())
        assert text_of(await upstream.call("echo", {"text": "on"}, context=call_context())) == "on"


@pytest.mark.parametrize("way", ["website"], indirect=True)
async def test_a_tool_that_needs_what_the_client_can_not_do_says_what_is_missing(way):
    with pytest.raises(RefusedError) as refused:
        await way.call("ask", {}, context=call_context())
    assert refused.value.missing == "elicitation"


@pytest.mark.parametrize("way", ["program", "website"], indirect=True)
async def test_a_call_whose_lease_lapsed_is_not_sent_and_the_next_one_is(way):
    token = TOO_LATE.set(lambda: "the lease is over")
    try:
        with pytest.raises(TooLateError, match="the lease is over"):
            await way.call("echo", {"text": "late"}, context=call_context())
    finally:
        TOO_LATE.reset(token)
    assert text_of(await way.call("echo", {"text": "on"}, context=call_context())) == "on"


@pytest.mark.parametrize("way", ["website"], indirect=True)
async def test_a_lease_that_lapses_while_a_request_waits_for_its_turn_is_noticed(way):
    reasons = iter(["", "the lease is over"])
    token = TOO_LATE.set(lambda: next(reasons))
    try:
        with pytest.raises(NotSentError, match="the lease is over"):
            await way.call("echo", {"text": "late"}, context=call_context())
    finally:
        TOO_LATE.reset(token)
    assert text_of(await way.call("echo", {"text": "on"}, context=call_context())) == "on"
