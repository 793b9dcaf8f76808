"""A version that widens what its tool may do waits for an operator, on every worker and after a
restart.
"""

from contextlib import AsyncExitStack, contextmanager

import pytest

from counterseal import Grant, Proposal, Runtime
from counterseal.audit import EventType
from counterseal.codes import Code
from counterseal.errors import RegistryError, StoreError
from counterseal.ledger.requests import EventFilter
from counterseal.operations.auditor import open_capture
from counterseal.operations.operator import ALL_TENANTS
from counterseal.testing import fake_tool, someone
from tests.postgres_server import borrowed_database

WHO = someone()
CASE = {
    "type": "object",
    "properties": {"case_id": {"type": "string", "maxLength": 20, "description": "Which."}},
    "required": ["case_id"],
    "additionalProperties": False,
}
OPEN = Grant(agent="agent", tool="case")


@contextmanager
def sqlite(folder):
    yield f"sqlite:///{folder}/store.db"


@contextmanager
def postgres(_folder):
    with borrowed_database() as url:
        yield url


@pytest.fixture(params=[sqlite, pytest.param(postgres, marks=pytest.mark.slow)])
def url(request, tmp_path):
    with request.param(tmp_path) as url:
        yield url


def case(version, effect="read_only", **more):
    return fake_tool("case", effect=effect, version=version, input_schema=CASE, **more)


@pytest.fixture
async def start(url):
    """Starts a worker with these tools, as a process does at its start."""
    async with AsyncExitStack() as stack:

        async def start(*tools, grants=(OPEN,)):
            runtime = Runtime.open(url)
            runtime.register(*(one.tool for one in tools), grants=grants)
            return await stack.enter_async_context(runtime)

        yield start


async def call(runtime, run_id, version=None):
    arguments = {"case_id": run_id}
    proposal = Proposal(tool="case", arguments=arguments, run_id=run_id, version=version)
    return await runtime.submit(proposal, WHO)


def why(observation):
    return " ".join(error.message for error in observation.errors)


async def events_of(runtime, *types):
    found = await runtime.store.search(ALL_TENANTS, EventFilter(types=types, limit=20))
    return [event for _, event in found]


async def test_read_that_becomes_a_write_is_held_visible_accepted_and_on_record(start):
    old = await start(case("1.0.0"))
    assert (await call(old, "run_1")).ok, "the first registration asks nobody"

    writes = case("2.0.0", "internal_mutation")
    new = await start(writes)
    held = await call(new, "run_2")
    assert held.code is Code.PERMISSION_DENIED
    assert "case 2.0.0 is held for review" in why(held)
    assert "effect-raised" in why(held)
    assert writes.calls == []
    (record,) = new.registry.export()["records"]
    assert record["status"] == "held_for_review"
    assert any(one.startswith("effect-raised: ") for one in record["held"])
    (event,) = await events_of(new, EventType.VERSION_HELD)
    assert (event.caller.tool, event.caller.version) == ("case", "2.0.0")
    assert event.body["changes"] == record["held"]

    again = await start(case("2.0.0", "internal_mutation"))
    assert (await call(again, "run_3")).code is Code.PERMISSION_DENIED, "a restart changes nothing"
    assert len(await events_of(again, EventType.VERSION_HELD)) == 1
    assert (await call(old, "run_4")).ok, "the old version goes on"

    change = await again.operator("ana").accept_version("case", "2.0.0", reason="we agreed")
    assert (change.by, change.reason) == ("ana", "we agreed")
    assert (await call(new, "run_5")).ok, "every worker sees it"
    assert len(writes.calls) == 1
    (event,) = await events_of(new, EventType.REGISTRY_CHANGED)
    assert (event.decision, event.body["by"]) == ("accept_version", "ana")
    later = await start(case("2.0.0", "internal_mutation"))
    assert (await call(later, "run_6")).ok


async def test_rollout_goes_on_with_the_old_version_while_the_new_one_is_held(start):
    await start(case("1.0.0"))
    old, new = case("1.0.0"), case("1.1.0", scopes=[], budget=500)
    runtime = await start(old, new)
    assert (await call(runtime, "run_1")).ok
    assert (len(old.calls), len(new.calls)) == (1, 0)
    named = await call(runtime, "run_2", version="1.1.0")
    assert "held for review" in why(named), "a caller that names it is refused, too"
    await runtime.operator("ana").accept_version("case", "1.1.0", reason="more calls")
    assert (await call(runtime, "run_3")).ok
    assert (len(old.calls), len(new.calls)) == (1, 1)


async def test_version_that_guardians_agree_to_is_not_held(start):
    await start(case("1.0.0"))
    narrower = case("1.1.0", runtime={"timeout_ms": 500}, budget=5)
    runtime = await start(narrower)
    assert (await call(runtime, "run_1")).ok
    assert await events_of(runtime, EventType.VERSION_HELD) == []


async def test_contract_that_changes_under_its_version_is_held_as_well(start):
    await start(case("1.0.0"))
    runtime = await start(case("1.0.0", "internal_mutation"))
    assert "held for review" in why(await call(runtime, "run_1"))


async def test_next_version_is_compared_with_the_last_accepted_one(start):
    await start(case("1.0.0"))
    await start(case("2.0.0", "internal_mutation"))
    later = await start(case("2.0.1", "internal_mutation"))
    assert "held for review" in why(await call(later, "run_1")), "nobody accepted 2.0.0"
    await later.operator("ana").accept_version("case", "2.0.1", reason="we agreed")
    last = await start(case("2.0.2", "internal_mutation", description="Change a case, now."))
    assert (await call(last, "run_2")).ok


async def test_tool_that_is_registered_while_the_runtime_is_open_is_held_before_its_first_call(
    start,
):
    await start(case("1.0.0"))
    runtime = await start(grants=())
    writes = case("2.0.0", "internal_mutation")
    runtime.register(writes.tool, grants=[OPEN])
    assert "held for review" in why(await call(runtime, "run_1"))
    assert writes.calls == []


async def test_tool_that_is_registered_during_a_review_is_held_by_the_next_one(start, monkeypatch):
    await start(case("1.0.0"))
    runtime = await start(grants=())
    writes, read = case("2.0.0", "internal_mutation"), runtime.store.contracts

    async def read_while_another_registers(tools):
        found = await read(tools)
        if not runtime.registry.versions("case"):
            runtime.register(writes.tool, grants=[OPEN])
        return found

    monkeypatch.setattr(runtime.store, "contracts", read_while_another_registers)
    runtime.register(fake_tool("other").tool)
    await runtime.catch_up()
    assert "held for review" in why(await call(runtime, "run_1"))
    assert writes.calls == []


async def test_contract_that_could_not_be_stored_is_stored_with_the_next_call(start, monkeypatch):
    first = await start(grants=())
    first.register(case("1.0.0").tool, grants=[OPEN])

    async def fail(_new):
        raise StoreError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(first.store, "register_contracts", fail)
        assert not (await call(first, "run_1")).ok
    assert (await call(first, "run_2")).ok
    writes = case("2.0.0", "internal_mutation")
    second = await start(writes)
    assert "held for review" in why(await call(second, "run_3"))
    assert writes.calls == []


async def test_only_a_held_version_can_be_accepted(start):
    runtime = await start(case("1.0.0"))
    with pytest.raises(RegistryError, match=r"case 1\.0\.0 is not held for review"):
        await runtime.operator("ana").accept_version("case", "1.0.0", reason="x")


async def test_grant_does_not_follow_a_tool_beyond_the_effect_it_was_given_for(start):
    first = await start(case("1.0.0"), grants=())
    change = await first.operator("ana").grant(OPEN, reason="for reading")
    assert change.grant.max_effect == "read_only"
    assert (await call(first, "run_1")).ok
    second = await start(case("2.0.0", "internal_mutation"), grants=())
    await second.operator("ana").accept_version("case", "2.0.0", reason="it writes now")
    refused = await call(second, "run_2")
    assert refused.code is Code.PERMISSION_DENIED
    assert "was given for read_only at most; version 2.0.0 is internal_mutation" in why(refused)
    await second.operator("ana").revoke(OPEN, reason="it writes now")
    await second.operator("ana").grant(OPEN, reason="it may write")
    assert (await call(second, "run_3")).ok


async def test_grant_for_a_held_version_alone_is_limited_to_what_that_version_does(start):
    await start(case("1.0.0"))
    runtime = await start(case("2.0.0", "internal_mutation"), grants=())
    grant = Grant(agent="agent", tool="case", version=">=2")
    change = await runtime.operator("ana").grant(grant, reason="in advance")
    assert change.grant.max_effect == "internal_mutation"
    assert "held for review" in why(await call(runtime, "run_1")), "a grant accepts nothing"


async def test_grant_of_a_tenant_is_limited_to_what_the_tool_does_there(start):
    runtime = await start(case("1.0.0"), grants=())
    runtime.register(case("2.0.0", "internal_mutation").tool, allowed_tenants=["umbrella"])
    await runtime.catch_up()
    await runtime.operator("ana").accept_version("case", "2.0.0", reason="theirs")
    grant = Grant(agent="agent", tool="case", tenant=WHO.tenant)
    change = await runtime.operator("ana").grant(grant, reason="for reading")
    assert change.grant.max_effect == "read_only"


async def test_record_of_a_call_has_the_highest_effect_of_the_grant_that_allowed_it(start):
    runtime = await start(case("1.0.0"), grants=())
    operator = runtime.operator("ana")
    for run_id, effect in (("run_1", "read_only"), ("run_2", "irreversible")):
        grant = Grant(agent="agent", tool="case", max_effect=effect)
        await operator.grant(grant, reason="x")
        observation = await call(runtime, run_id)
        (event,) = [one for _, one in await runtime.store.events(WHO.tenant, run_id=run_id)]
        capture = await open_capture(runtime.store, runtime.vault, WHO.tenant, event)
        assert capture.authority[0]["max_effect"] == effect, observation
        (changed,) = runtime.registry.drift("case", "1.0.0")
        assert changed["stored"]["max_effect"] == effect
        if effect == "read_only":
            await operator.revoke(grant, reason="x")
