"""Progress and log messages that a client gets while its call runs."""

import asyncio
import warnings

import mcp_types as types
import pytest

from counterseal import Context, tool
from tests.gateway.served import LEGACY, MODERN, MODES, serving, soon

READS = {"effect": "read_only", "version": "1.0.0", "owner": "desk"}
WHO = {"message": "Go on?", "requestedSchema": {"type": "object", "properties": {}}}


@tool(**READS)
async def count(ctx: Context) -> dict[str, int]:
    """Count to fifty."""
    for number in range(50):
        ctx.progress(number, 50, f"at {number}")
    return {"counted": 50}


@tool(**READS)
def plod(ctx: Context) -> dict[str, int]:
    """Count to five, in a thread."""
    for number in range(5):
        ctx.progress(number, 5)
    return {"counted": 5}


@tool(**READS)
async def talk(ctx: Context) -> dict[str, str]:
    """Say something at every level."""
    for level in ("debug", "info", "warning", "error"):
        await ctx.client.log(level, {"said": level, "key": "AKIAIOSFODNN7EXAMPLE"}, "desk")
    return {"said": "all"}


class Heard(list):
    """What arrived, in order; the result is appended by the test."""

    async def progress(self, done, total, message):
        self.append((done, total, message))

    async def log(self, params):
        self.append((params.level, params.data, params.logger))


@MODES
async def test_reports_arrive_in_order_and_all_of_them_before_the_result(mode):
    heard = Heard()
    async with serving([count, plod]) as served, served.client(mode) as client:
        result = await client.call_tool("count", {}, progress_callback=heard.progress)
        assert result.structured_content == {"counted": 50}
        assert heard == [(number, 50, f"at {number}") for number in range(50)]
        heard.clear()
        await client.call_tool("plod", {}, progress_callback=heard.progress)
        assert heard == [(number, 5, None) for number in range(5)]


@MODES
async def test_reports_arrive_while_the_call_runs(mode):
    heard, told = Heard(), asyncio.Event()

    @tool(**READS)
    async def half(ctx: Context) -> dict[str, int]:
        """Wait until half of it was heard of."""
        ctx.progress(1, 2)
        await asyncio.wait_for(told.wait(), 30)
        return {"done": 2}

    async def progress(done, total, message):
        await heard.progress(done, total, message)
        told.set()

    async with serving([half]) as served, served.client(mode) as client:
        result = await client.call_tool("half", {}, progress_callback=progress)
        assert result.structured_content == {"done": 2}
    assert heard == [(1, 2, None)]


async def test_reports_of_both_rounds_arrive_each_in_its_own():
    @tool(**READS)
    async def steps(ctx: Context) -> dict[str, int]:
        """Report, ask, and report again."""
        ctx.progress(1, 2)
        await ctx.client.ask("elicitation/create", WHO)
        ctx.progress(2, 2)
        return {"done": 2}

    heard = Heard()

    async def answer(context, params):
        heard.append("asked")
        return types.ElicitResult(action="accept", content={})

    for mode in (LEGACY, MODERN):
        heard.clear()
        async with (
            serving([steps]) as served,
            served.client(mode, elicitation_callback=answer) as client,
        ):
            result = await client.call_tool("steps", {}, progress_callback=heard.progress)
            assert result.structured_content == {"done": 2}
        before, after = heard.index("asked"), heard[-1]
        assert after == (2, 2, None)
        assert (1, 2, None) in heard
        if mode == MODERN:
            assert heard[:before] == [(1, 2, None)], "a round's reports come before its end"


async def test_a_client_that_asked_for_no_reports_gets_none():
    async with serving([count]) as served, served.http() as http:
        headers = await served.session(http)
        call = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "count", "arguments": {}},
        }
        answer = await http.post(served.url, json=call, headers=headers)
        assert "notifications/progress" not in answer.text
        call["params"]["_meta"] = {"progressToken": "p1"}
        answer = await http.post(served.url, json={**call, "id": 2}, headers=headers)
        assert answer.text.count("notifications/progress") == 50
        assert answer.text.rindex("notifications/progress") < answer.text.index('"result"')


# --- logging --------------------------------------------------------------------------------------


async def set_level(client, level):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is on its way out of the protocol
        await client.set_logging_level(level)


async def test_a_client_of_2025_hears_what_it_set_its_level_to():
    heard = Heard()
    async with (
        serving([talk]) as served,
        served.client(LEGACY, logging_callback=heard.log) as client,
    ):
        await client.call_tool("talk", {})
        assert [level for level, *_ in heard] == ["debug", "info", "warning", "error"]
        heard.clear()
        await set_level(client, "warning")
        await client.call_tool("talk", {})
        assert [level for level, *_ in heard] == ["warning", "error"]
    assert {logger for *_, logger in heard} == {"desk"}


async def test_one_sessions_level_is_not_anothers():
    loud, quiet = Heard(), Heard()
    async with (
        serving([talk]) as served,
        served.client(LEGACY, logging_callback=loud.log) as first,
        served.client(LEGACY, logging_callback=quiet.log) as second,
    ):
        await set_level(second, "error")
        await first.call_tool("talk", {})
        await second.call_tool("talk", {})
    assert (len(loud), len(quiet)) == (4, 1)


@pytest.mark.parametrize(("level", "count_of"), [(None, 0), ("debug", 4), ("error", 1)])
async def test_a_client_of_2026_hears_what_it_opted_into_with_its_request(level, count_of):
    heard = Heard()
    async with (
        serving([talk]) as served,
        served.client(MODERN, logging_callback=heard.log, log_level=level) as client,
    ):
        await client.call_tool("talk", {})
    assert len(heard) == count_of


@MODES
async def test_what_a_tool_says_is_redacted(mode):
    heard = Heard()
    async with (
        serving([talk]) as served,
        served.client(mode, logging_callback=heard.log, log_level="debug") as client,
    ):
        await client.call_tool("talk", {})
    assert "AKIA" not in str(heard)
    assert heard[0][1]["said"] == "debug"


@MODES
async def test_a_client_that_takes_no_reports_does_not_hold_up_the_tool(mode, monkeypatch):
    monkeypatch.setattr("counterseal.gateway.questions._REPORT_SECONDS", 0.05)
    done = asyncio.Event()

    @tool(**READS)
    async def busy(ctx: Context) -> dict[str, int]:
        """Report more than anybody reads."""
        for number in range(5000):
            ctx.progress(number)
        done.set()
        return {"done": 1}

    async def never(*_):
        await asyncio.Event().wait()

    async with serving([busy]) as served, served.client(mode) as client:
        calling = asyncio.ensure_future(client.call_tool("busy", {}, progress_callback=never))
        await soon(done)
        calling.cancel()
        await asyncio.wait({calling})
