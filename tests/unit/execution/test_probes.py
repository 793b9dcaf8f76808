"""Probes: asking the world through a function or a tool."""

import asyncio
import threading
from typing import Annotated

import pytest
from pydantic import BaseModel, Field

from counterseal import Context, Registry, Secret
from counterseal.contract.declare import tool
from counterseal.execution.executor import Executor
from counterseal.execution.probes import Probe, ProbeError, ProbeRequest, probe
from counterseal.testing import fake_tool, someone

SCHEMA = {
    "type": "object",
    "properties": {"case_id": {"type": "string", "maxLength": 9, "description": "The case."}},
    "additionalProperties": False,
}
CaseId = Annotated[str, Field(max_length=9, description="The case.")]
ARGUMENTS = {"case_id": "c1", "note": "x"}


OWNER = fake_tool("owner", effect="draft").contract


async def ask(hook, *tools, tenant="acme", arguments=ARGUMENTS, secrets=None, **record):
    registry = Registry()
    if tools:
        registry.register(*tools, **record)
    about = Context(principal=someone(tenant=tenant), run_id="run_1", call_id="call_1", key="k1")
    return await probe(
        hook, ProbeRequest(OWNER, arguments, lambda: about, registry, Executor(secrets), 30.0)
    )


# --- functions ------------------------------------------------------------------------------------


async def test_a_function_takes_the_arguments_that_it_names():
    assert await ask(lambda note: {"version": note}) == Probe("x", {"version": "x"})
    assert await ask(lambda: {"version": 1}) == Probe(1, {"version": 1})


async def test_an_async_function_is_awaited():
    async def look(case_id):
        await asyncio.sleep(0)
        return {"version": 1, "id": case_id}

    assert (await ask(look)).state == {"version": 1, "id": "c1"}


async def test_a_sync_function_leaves_the_event_loop_alone():
    found = await ask(lambda: {"version": threading.get_ident()})
    assert found.version != threading.get_ident()


async def test_nothing_there_is_nothing():
    assert await ask(lambda: None) is None


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ({"version": 3}, 3),
        ({"version": "v3"}, "v3"),
        ({"version": 0}, 0),
        ({}, None),
        ({"version": None}, None),
        ({"version": 1.5}, None),
        ({"version": ["v3"]}, None),
        ("text", None),
        ([1], None),
    ],
)
async def test_a_version_is_a_text_or_a_whole_number_or_unknown(answer, version):
    found = await ask(lambda: answer)
    assert found.version == version
    assert found.state == (answer if isinstance(answer, dict) else {"result": answer})


@pytest.mark.parametrize("error", [KeyError("hunter2"), OSError("hunter2"), LookupError()])
async def test_a_function_that_fails_leaves_the_state_unknown(error):
    def broken():
        raise error

    with pytest.raises(ProbeError) as raised:
        await ask(broken)
    assert type(error).__name__ in raised.value.trace
    assert "hunter2" not in str(raised.value)


async def test_a_function_that_wants_more_than_there_is_fails():
    with pytest.raises(ProbeError):
        await ask(lambda missing: missing)


async def test_a_probe_that_is_cancelled_is_cancelled():
    async def hang():
        await asyncio.Event().wait()

    running = asyncio.create_task(ask(hang))
    for _ in range(3):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


# --- tools ----------------------------------------------------------------------------------------


async def test_a_tool_takes_the_arguments_that_it_declares():
    reader = fake_tool("read_case", {"version": 4}, input_schema=SCHEMA)
    assert (await ask("read_case", reader.tool)).version == 4
    assert reader.calls == [{"case_id": "c1"}]


async def test_a_tools_version_is_where_its_contract_says():
    reader = fake_tool(
        "read_case",
        {"meta": {"etag": "v7"}, "version": "another"},
        output_schema={
            "type": "object",
            "properties": {
                "meta": {"type": "object", "properties": {"etag": {"type": "string"}}},
            },
        },
        version_from="/meta/etag",
    )
    assert (await ask("read_case", reader.tool)).version == "v7"


async def test_a_tools_record_is_read_as_plain_data():
    class Case(BaseModel):
        version: int
        status: str

    @tool(effect="read_only", version="1.0.0", owner="tests")
    def read_case(case_id: CaseId) -> Case:
        """Read a case."""
        return Case(version=2, status=case_id)

    assert await ask("read_case", read_case) == Probe(2, {"version": 2, "status": "c1"})


@pytest.mark.parametrize(
    "record", [{"enabled": False}, {"allowed_tenants": ["other"]}], ids=["disabled", "not ours"]
)
async def test_a_tool_that_can_not_be_used_leaves_the_state_unknown(record):
    reader = fake_tool("read_case", {"version": 4})
    with pytest.raises(ProbeError):
        await ask("read_case", reader.tool, **record)
    assert reader.calls == []


async def test_a_tool_that_is_not_there_leaves_the_state_unknown():
    with pytest.raises(ProbeError):
        await ask("read_case")


async def test_a_tool_that_fails_leaves_the_state_unknown():
    reader = fake_tool("read_case", ConnectionError("hunter2"))
    with pytest.raises(ProbeError) as raised:
        await ask("read_case", reader.tool)
    assert "hunter2" not in str(raised.value)


async def test_a_tool_is_given_what_its_marked_parameters_ask_for():
    @tool(effect="read_only", version="1.0.0", owner="tests")
    def read_case(
        case_id: CaseId, ctx: Context, token: Annotated[str, Secret("token")]
    ) -> dict[str, str]:
        """Read a case."""
        return {"version": case_id, "said": f"{ctx.tenant} {token}"}

    found = await ask("read_case", read_case, secrets={"token": "correct horse"})
    assert found == Probe("c1", {"version": "c1", "said": "acme [secret.token]"})


async def test_a_function_is_given_what_its_marked_parameters_ask_for():
    def look(case_id: str, ctx: Context, token: Annotated[str, Secret("token")]):
        return {"version": case_id, "said": f"{ctx.key} {token}"}

    found = await ask(look, secrets={"token": "correct horse"})
    assert found.state["said"] == "k1 [secret.token]"
