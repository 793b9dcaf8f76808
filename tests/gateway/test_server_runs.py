"""Which run a call belongs to, and what makes two calls one: over MCP, `_meta` says so."""

import asyncio

from tests.gateway.served import ANN, BOT, LEGACY, MODERN, MODES, Desk, facts, serving

NOTE = {"text": "a"}


def meta(**said):
    return {f"counterseal/{name}": value for name, value in said.items()}


@MODES
async def test_the_same_call_twice_executes_once(mode):
    desk = Desk()
    async with serving(desk.tools) as served, served.client(mode) as client:
        first = await client.call_tool("note", NOTE)
        second = await client.call_tool("note", NOTE)
        assert first.structured_content == second.structured_content == {"notes": 1}
        assert [facts(one)["replayed"] for one in (first, second)] == [False, True]
        await client.call_tool("note", {"text": "b"})
    assert desk.notes == ["a", "b"]


@MODES
async def test_the_same_call_at_once_executes_once_and_both_get_the_result(mode):
    desk = Desk()
    async with serving(desk.tools) as served, served.client(mode) as client:
        calls = [asyncio.ensure_future(client.call_tool("linger", NOTE)) for _ in range(5)]
        await desk.begun.wait()
        desk.door.set()
        results = await asyncio.gather(*calls)
        assert {str(result.structured_content) for result in results} == {"{'noted': 'a'}"}
        assert sorted(facts(one)["replayed"] for one in results) == [False] + [True] * 4
    assert desk.notes == ["a"]


@MODES
async def test_a_run_that_is_named_is_the_callers_own_choice(mode):
    desk = Desk()
    async with serving(desk.tools) as served, served.client(mode) as client:
        for run in ("run_1", "run_1", "run_2"):
            await client.call_tool("note", NOTE, meta=meta(run_id=run))
        assert desk.runs == ["run_1", "run_2"]
        odd = await client.call_tool("note", NOTE, meta=meta(run_id=""))
        assert odd.is_error
        assert facts(odd)["code"] == "SYNTACTIC_PARSE_FAIL"


async def test_two_sessions_of_one_principal_are_two_runs():
    desk = Desk()
    async with serving(desk.tools) as served:
        for _ in range(2):
            async with served.client(LEGACY) as client:
                await client.call_tool("note", NOTE)
                await client.call_tool("note", NOTE)
    assert len(set(desk.runs)) == 2
    assert desk.notes == ["a", "a"]
    assert all(run.startswith("run_mcp_") for run in desk.runs)


async def test_without_a_session_calls_belong_to_the_implicit_run_of_their_principal():
    desk = Desk()
    async with serving(desk.tools) as served:
        for who in (BOT, BOT, ANN):
            async with served.client(MODERN, who) as client:
                await client.call_tool("note", NOTE)
    assert len(set(desk.runs)) == 2, "one for each"
    assert desk.notes == ["a", "a"]


@MODES
async def test_an_idempotency_key_makes_calls_of_two_runs_one(mode):
    desk = Desk()
    async with serving(desk.tools) as served, served.client(mode) as client:
        said = [meta(run_id=run, idempotency_key="k_1") for run in ("run_1", "run_2")]
        first = await client.call_tool("note", NOTE, meta=said[0])
        second = await client.call_tool("note", NOTE, meta=said[1])
        assert [facts(one)["replayed"] for one in (first, second)] == [False, True]
        other = await client.call_tool("note", {"text": "b"}, meta=said[0])
        assert facts(other)["code"] == "SIGNATURE_MISMATCH"
        async with served.client(mode, ANN) as ann:
            await ann.call_tool("note", NOTE, meta=meta(idempotency_key="k_1"))
    assert desk.notes == ["a"]


@MODES
async def test_an_operation_id_makes_the_same_arguments_two_operations(mode):
    desk = Desk()
    async with serving(desk.tools) as served, served.client(mode) as client:
        for operation in ("op_1", "op_2", "op_1"):
            said = meta(run_id="run_1", operation_id=operation)
            await client.call_tool("note", NOTE, meta=said)
    assert desk.notes == ["a", "a"]


@MODES
async def test_what_a_model_writes_names_no_run(mode):
    desk = Desk()
    async with serving(desk.tools) as served, served.client(mode) as client:
        for run in ("run_1", "run_2"):
            result = await client.call_tool("note", {**NOTE, "_meta": meta(run_id=run)})
            assert result.is_error
    assert desk.notes == []
