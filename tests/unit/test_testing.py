"""What the product ships for its users' tests does what it says."""

import asyncio
from typing import Annotated

import pytest
from pydantic import Field

from counterseal import ApprovalError, Context, Effect, Proposal
from counterseal.codes import Code
from counterseal.contract.declare import tool, wrap_plain_tool
from counterseal.errors import EgressError
from counterseal.storage.memory import MemoryStore
from counterseal.testing import (
    HANG,
    FakeClock,
    MockTool,
    TestCoordinator,
    ToolResult,
    approver,
    context,
    fake_tool,
    runtime_for,
    someone,
)
from counterseal.testing import MemoryStore as PublicMemoryStore

Number = Annotated[int, Field(description="A number.")]


def ask(name="look_up", arguments=None, **more):
    return Proposal(tool=name, arguments=arguments or {}, run_id="run_1", **more)


SEND = {"effect": "external_notification", "consequence": "It is sent."}


async def test_an_approver_decides_what_waits():
    made = fake_tool("send", **SEND, approval={"then": "resubmit"})
    runtime = runtime_for(made)
    held = await runtime.submit(ask("send"), someone())
    assert (held.code, made.calls) == (Code.CONFIRMATION_MISSING, [])
    assert await runtime.approvals.answer(approver()) == 1
    assert await runtime.approvals.answer(approver()) == 0
    assert (await runtime.submit(ask("send"), someone())).ok
    assert made.calls == [{}]


async def test_an_approver_who_says_no_ends_it_with_a_comment():
    made = fake_tool("send", **SEND)
    runtime = runtime_for(made)
    await runtime.submit(ask("send"), someone())
    await runtime.approvals.answer(approver(decision="reject", comment="Not on a Sunday."))
    refused = await runtime.submit(ask("send"), someone())
    assert refused.code is Code.CONFIRMATION_MISSING
    assert "Not on a Sunday." in refused.for_model()
    assert made.calls == []


async def test_an_approver_has_the_roles_that_the_test_gives():
    runtime = runtime_for(fake_tool("send", **SEND, approval={"roles": ["press"]}))
    await runtime.submit(ask("send"), someone())
    with pytest.raises(ApprovalError, match="role") as caught:
        await runtime.approvals.answer(approver())
    assert caught.value.why == "role"
    assert await runtime.approvals.answer(approver("ada", ["press"])) == 1


def test_an_approver_says_yes_or_no():
    with pytest.raises(ValueError, match="maybe"):
        approver(decision="maybe")


def test_time_stands_still_until_it_is_moved():
    clock = FakeClock(100.0)
    assert (clock(), clock()) == (100.0, 100.0)
    clock.advance(2.5)
    assert clock() == 102.5
    assert FakeClock()() == FakeClock()()


async def test_a_runtime_tells_the_time_that_it_is_given():
    clock = FakeClock()
    runtime = runtime_for(fake_tool(), clock=clock)
    assert (await runtime.submit(ask(), someone())).timestamp == clock.now
    clock.advance(60)
    assert (await runtime.submit(ask(), someone())).timestamp == clock.now


async def test_answers_come_in_their_order_and_the_last_repeats():
    made = fake_tool("look_up", {"n": 1}, {"n": 2})
    runtime = runtime_for(made)
    seen = [(await runtime.submit(ask(), someone())).data for _ in range(4)]
    assert seen == [{"n": 1}, {"n": 2}, {"n": 2}, {"n": 2}]
    assert made.calls == [{}] * 4


async def test_an_answer_may_fail_first_and_succeed_then():
    made = fake_tool("look_up", ConnectionError(), {"n": 2}, max_retries=0)
    runtime = runtime_for(made)
    codes = [(await runtime.submit(ask(), someone())).code for _ in range(2)]
    assert codes == [Code.DEPENDENCY_UNAVAILABLE, Code.SUCCESS]


async def test_an_answer_may_be_worked_out_from_the_arguments():
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "description": "A number."}},
        "additionalProperties": False,
    }
    made = fake_tool("double", lambda n: {"n": n * 2}, input_schema=schema)
    seen = await runtime_for(made).submit(ask("double", {"n": 21}), someone())
    assert seen.data == {"n": 42}
    assert made.calls == [{"n": 21}]


async def test_an_answer_may_never_come():
    made = fake_tool("look_up", HANG, timeout_ms=10, max_retries=0)
    assert (await runtime_for(made).submit(ask(), someone())).code is Code.TIMEOUT
    waiting = asyncio.create_task(made.tool())
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_garbage_is_an_answer_too():
    made = fake_tool("look_up", object())
    seen = await runtime_for(made).submit(ask(), someone())
    assert seen.code is Code.OBSERVATION_NORMALIZATION_FAIL


async def test_without_an_answer_of_its_own_a_tool_is_content():
    assert (await runtime_for(fake_tool()).submit(ask(), someone())).data == {"ok": True}


@pytest.mark.parametrize("effect", Effect)
def test_a_made_up_tool_of_every_effect_can_be_registered(effect):
    runtime = runtime_for(fake_tool(effect=effect))
    (record,) = runtime.registry.records
    assert record.contract.effect is effect
    granted = runtime.registry.grants_of("agent", "look_up")
    assert bool(granted) is record.contract.exposed


def test_a_made_up_tool_takes_what_a_real_one_takes():
    made = fake_tool("save", version="2.1.0", scopes=["case:write"], timeout_ms=5, budget=3)
    contract = made.contract
    assert (contract.name, contract.version, contract.budget) == ("save", "2.1.0", 3)
    assert contract.security.required_scopes == ("case:write",)
    assert contract.runtime.timeout_ms == 5


def test_two_made_up_tools_have_nothing_in_common():
    one, two = fake_tool("one"), fake_tool("two")
    asyncio.run(one.tool())
    assert (len(one.calls), len(two.calls)) == (1, 0)


async def test_real_tools_and_made_up_ones_live_side_by_side():
    @tool(effect="compute", version="1.0.0", owner="tests")
    def add(a: Number, b: Number) -> int:
        """Add two numbers."""
        return a + b

    runtime = runtime_for(add, fake_tool())
    assert (await runtime.submit(ask("add", {"a": 1, "b": 2}), someone())).data == {"result": 3}
    assert (await runtime.submit(ask(), someone())).ok


async def test_grants_go_to_the_agent_that_is_named():
    runtime = runtime_for(fake_tool(), agent="clerk")
    assert (await runtime.submit(ask(), someone(agent="clerk"))).ok
    assert (await runtime.submit(ask(), someone())).code is Code.PERMISSION_DENIED


def test_someone_is_an_ordinary_principal():
    who = someone(roles=["clerk"], scopes=["a"])
    assert (who.tenant, who.agent, who.user) == ("acme", "agent", "u_1")
    assert (who.roles, who.scopes) == (frozenset({"clerk"}), frozenset({"a"}))
    assert someone(user=None).user is None
    assert someone("clerk", "other").tenant == "other"


async def test_runtimes_share_no_memory():
    assert PublicMemoryStore is MemoryStore
    made = fake_tool("save", effect="draft")
    one, two = runtime_for(made), runtime_for(made)
    await one.submit(ask("save"), someone())
    assert not (await two.submit(ask("save"), someone())).idempotency_hit


async def test_a_context_lends_what_a_real_one_does():
    made = fake_tool("look", egress=["api.example.org"])
    ctx = context(made, key="k_1", principal=someone("clerk"))
    assert (ctx.agent, ctx.key, ctx.cancelled) == ("clerk", "k_1", False)
    ctx.files.write_text("a.txt", "x")
    assert ctx.files.list() == ["a.txt"]
    with pytest.raises(EgressError):
        await ctx.http.get("http://127.0.0.1:9/")
    ctx.progress(1)
    ctx.log.info("fine")


def test_a_context_made_by_hand_says_what_it_lacks():
    bare = Context(principal=someone(), run_id="r", call_id="c")
    assert bare.tenant == "acme"
    with pytest.raises(RuntimeError, match="testing"):
        bare.files  # noqa: B018 - asking is enough


async def test_a_module_of_amplifier_is_mounted_without_it():
    coordinator = TestCoordinator()
    closed = []

    async def mount(coordinator, config):
        await coordinator.mount("tools", MockTool("look", return_value=config["answer"]))
        coordinator.register_contributor("observability.events", "look", lambda: ["look:done"])
        coordinator.register_capability("looking", value=True)
        return lambda: closed.append("look")

    coordinator.register_cleanup(await mount(coordinator, {"answer": 42}))
    mounted = coordinator.get("tools", "look")
    assert (await mounted.execute({"a": 1})).output == 42
    assert (mounted.call_count, mounted.last_input) == (1, {"a": 1})
    assert await coordinator.collect_contributions("observability.events") == [["look:done"]]
    assert coordinator.get_capability("looking")
    await coordinator.unmount("tools", "look")
    assert coordinator.get("tools") == {}
    await coordinator.cleanup()
    assert closed == ["look"]


async def test_hooks_of_a_coordinator_answer_events():
    coordinator = TestCoordinator()
    undo = coordinator.hooks.register("tool:pre", lambda event, data: ToolResult(output=event))
    assert (await coordinator.hooks.emit("tool:pre", {"tool_name": "x"})).output == "tool:pre"
    undo()
    assert await coordinator.hooks.emit("tool:pre", {}) is None
    assert [event for event, _ in coordinator.events] == ["tool:pre", "tool:pre"]


async def test_a_mock_tool_is_a_plain_tool_and_its_failure_has_words():
    mock = MockTool("look", return_value=ToolResult(success=False, error={"message": "no such"}))
    contract = wrap_plain_tool(mock, effect="read_only")
    seen = await runtime_for(contract).submit(ask("look"), someone())
    assert seen.code == "SEMANTIC_INVALIDITY"
    assert "no such" in seen.for_model()
