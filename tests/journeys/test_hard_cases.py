"""Cases that are easy to get wrong: approvals gone stale, odd ids, missing secrets, lost spans."""

import asyncio
import threading
from typing import Annotated

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from counterseal import ContractError, Grant, Proposal, Secret, Tenant, tool
from counterseal.codes import Code
from counterseal.policy import Policy
from counterseal.storage.base import Budgets, HeldStatus
from counterseal.testing import HANG, fake_tool, runtime_for, someone

SCHEMA = {
    "type": "object",
    "properties": {
        "k": {"type": "string", "maxLength": 9, "description": "k"},
        "n": {"type": "integer", "description": "n"},
    },
    "additionalProperties": False,
}


def ask(name="look_up", arguments=None, **more):
    more.setdefault("run_id", "run_1")
    return Proposal(tool=name, arguments=arguments or {}, **more)


@pytest.fixture
def spans(monkeypatch):
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)

    async def of(submitted):
        exporter.clear()
        seen = await submitted
        await asyncio.sleep(0)
        (span,) = exporter.get_finished_spans()
        return seen, span

    of.exporter = exporter
    return of


def trace_of(span):
    return f"{span.context.trace_id:032x}"


async def approve(runtime, seen):
    await runtime.store.decide("acme", seen.approval_id, HeldStatus.APPROVED, [])


def noticing(world):
    return fake_tool(
        "send",
        effect="external_notification",
        input_schema=SCHEMA,
        business_key=["k"],
        probe=lambda: dict(world),
    )


async def test_a_stale_approval_is_void_and_can_be_asked_for_anew():
    world = {"version": 1}
    runtime = runtime_for(noticing(world))
    await approve(runtime, await runtime.submit(ask("send", {"k": "a"}), someone()))
    world["version"] = 2
    assert (await runtime.submit(ask("send", {"k": "a"}), someone())).code is Code.STALE_STATE
    again = await runtime.submit(ask("send", {"k": "a"}, expected_version=2), someone())
    assert again.code is Code.CONFIRMATION_MISSING


async def test_a_stale_approval_does_not_come_back_to_life():
    world = {"version": 1}
    runtime = runtime_for(noticing(world))
    await approve(runtime, await runtime.submit(ask("send", {"k": "a"}), someone()))
    world["version"] = 2
    await runtime.submit(ask("send", {"k": "a"}), someone())
    world["version"] = 1
    seen = await runtime.submit(ask("send", {"k": "a"}), someone())
    assert seen.code is Code.CONFIRMATION_MISSING


async def test_a_packet_for_other_arguments_does_not_say_which_version_is_meant():
    world = {"version": 1}
    runtime = runtime_for(noticing(world))
    await approve(runtime, await runtime.submit(ask("send", {"k": "a", "n": 1}), someone()))
    world["version"] = 2
    other = ask("send", {"k": "a", "n": 2}, expected_version=2)
    assert (await runtime.submit(other, someone())).code is Code.CONFIRMATION_MISSING


@pytest.mark.parametrize("field", ["operation_id", "workflow_id", "run_id"])
async def test_a_half_character_in_a_proposals_ids_is_refused_and_not_raised(field):
    runtime = runtime_for(fake_tool("save", effect="draft"))
    seen = await runtime.submit(ask("save", **{field: "\ud800"}), someone())
    assert not seen.ok


async def test_a_write_whose_secret_is_missing_did_not_happen():
    @tool(effect="draft", version="1.0.0", owner="x")
    async def save(password: Annotated[str, Secret("pw")]) -> dict[str, str]:
        """Save it."""
        return {}

    runtime = runtime_for(save)
    await runtime.submit(ask("save"), someone())
    runtime.secrets = {"pw": "x"}
    assert (await runtime.submit(ask("save"), someone())).code is not Code.IDEMPOTENCY_CONFLICT


async def test_a_resolver_that_has_no_such_secret_is_a_dependency():
    @tool(effect="read_only", version="1.0.0", owner="x")
    async def read(password: Annotated[str, Secret("pw")]) -> dict[str, str]:
        """Read it."""
        return {}

    runtime = runtime_for(read, secrets=lambda tenant, name: {}[name])
    assert (await runtime.submit(ask("read"), someone())).code is Code.DEPENDENCY_UNAVAILABLE


@pytest.mark.parametrize(
    "parent",
    [
        "garbage",
        f"00-{'0' * 32}-{'1' * 16}-01",
        f"00-{'a' * 32}-{'0' * 16}-01",
        f"ff-{'a' * 32}-{'1' * 16}-01",
    ],
)
async def test_span_and_observation_agree_on_the_trace_of_a_bad_traceparent(spans, parent):
    seen, span = await spans(runtime_for(fake_tool()).submit(ask(trace=parent), someone()))
    assert seen.trace_id == trace_of(span)
    assert int(seen.trace_id, 16)


async def test_an_approved_call_takes_on_the_held_calls_trace(spans):
    runtime = runtime_for(fake_tool("send", effect="external_notification"))
    held, _ = await spans(runtime.submit(ask("send"), someone()))
    await approve(runtime, held)
    seen, span = await spans(runtime.submit(ask("send"), someone()))
    assert seen.trace_id == held.trace_id == trace_of(span)


async def test_a_replays_observation_and_span_agree(spans):
    runtime = runtime_for(fake_tool("save", effect="draft"))
    await spans(runtime.submit(ask("save"), someone()))
    seen, span = await spans(runtime.submit(ask("save"), someone()))
    assert seen.trace_id == trace_of(span)


async def test_a_mismatch_of_keys_is_blocked(spans):
    runtime = runtime_for(fake_tool("save", effect="draft", input_schema=SCHEMA))
    await spans(runtime.submit(ask("save", {"n": 1}, key="k"), someone()))
    seen, span = await spans(runtime.submit(ask("save", {"n": 2}, key="k"), someone()))
    assert seen.code is Code.SIGNATURE_MISMATCH
    assert span.attributes["counterseal.tool.validation.status"] == "blocked"


async def test_a_rejected_call_is_blocked_and_not_pending(spans):
    runtime = runtime_for(fake_tool("send", effect="external_notification"))
    held, _ = await spans(runtime.submit(ask("send"), someone()))
    await runtime.store.decide("acme", held.approval_id, HeldStatus.REJECTED, [])
    _, span = await spans(runtime.submit(ask("send"), someone()))
    assert span.attributes["counterseal.tool.validation.status"] == "blocked"


async def test_a_cancelled_call_has_its_span(spans):
    runtime = runtime_for(fake_tool("look_up", HANG))
    call = asyncio.create_task(runtime.submit(ask(), someone()))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.sleep(0)
    assert len(spans.exporter.get_finished_spans()) == 1


async def test_a_half_character_in_a_key_does_not_lose_the_span(spans):
    runtime = runtime_for(fake_tool("save", effect="draft"))
    await spans(runtime.submit(ask("save", key="\ud800"), someone()))


async def test_a_rejected_read_is_over_and_does_not_wait_for_ever():
    rule = {"id": "one", "then": "require_approval", "when": "true", "reason": "So."}
    runtime = runtime_for(fake_tool(), policy=Policy.from_data({"rules": [rule]}))
    held = await runtime.submit(ask(), someone())
    await runtime.store.decide("acme", held.approval_id, HeldStatus.REJECTED, [])
    assert (await runtime.submit(ask(), someone())).next_action == "replan"


async def test_money_is_not_lost_to_rounding():
    made = fake_tool(runtime={"cost_profile": {"cost_per_call": 0.1}})
    runtime = runtime_for(made)
    await runtime.run(someone(), "run_1", budgets=Budgets(money=0.3))
    assert [(await runtime.submit(ask(), someone())).ok for _ in range(4)] == [
        True,
        True,
        True,
        False,
    ]


async def test_a_sync_tool_that_raises_stop_iteration_fails_at_once():
    @tool(effect="read_only", version="1.0.0", owner="x", timeout_ms=300, max_retries=0)
    def first() -> dict[str, str]:
        """First of nothing."""
        return next(iter(()))

    assert (await runtime_for(first).submit(ask("first"), someone())).code is Code.UNKNOWN_ERROR


# --- isolation, kills, state, ids -----------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["process", "sandbox"])
async def test_isolation_that_cannot_be_had_is_refused_and_not_ignored(isolation):
    made = fake_tool("save", effect="draft", isolation=isolation)
    runtime = runtime_for(made)
    assert (await runtime.submit(ask("save"), someone())).code is Code.DEPENDENCY_UNAVAILABLE
    assert made.calls == []
    again = await runtime.submit(ask("save"), someone())
    assert again.code is Code.DEPENDENCY_UNAVAILABLE, "nothing began, so the key is free"


async def test_a_tool_runs_in_the_thread_that_its_contract_asks_for():
    seen = {}

    @tool(effect="read_only", version="1.0.0", owner="x", isolation="thread")
    async def apart() -> dict[str, str]:
        """Run apart."""
        seen["async"] = threading.current_thread()
        return {}

    @tool(effect="draft", version="1.0.0", owner="x", isolation="inline")
    def write() -> dict[str, str]:
        """Write."""
        seen["write"] = threading.current_thread()
        return {}

    runtime = runtime_for(apart, write)
    for name in ("apart", "write"):
        assert (await runtime.submit(ask(name), someone())).ok
    assert threading.main_thread() not in seen.values()


async def test_a_stale_approval_of_a_read_does_not_execute_either():
    world = {"version": 1}
    rule = {"id": "one", "then": "require_approval", "when": "true", "reason": "So."}
    made = fake_tool(probe=lambda: dict(world))
    runtime = runtime_for(made, policy=Policy.from_data({"rules": [rule]}))
    await approve(runtime, await runtime.submit(ask(), someone()))
    world["version"] = 2
    assert (await runtime.submit(ask(), someone())).code is Code.STALE_STATE
    assert made.calls == []


async def test_an_approved_read_tells_one_story_under_one_trace():
    rule = {"id": "one", "then": "require_approval", "when": "true", "reason": "So."}
    runtime = runtime_for(fake_tool(), policy=Policy.from_data({"rules": [rule]}))
    held = await runtime.submit(ask(), someone())
    await approve(runtime, held)
    seen = await runtime.submit(ask(), someone())
    assert seen.ok
    gates = [timed.decision.gate for timed in seen.decisions]
    assert len(gates) == len(set(gates)) == 8
    _, last = (await runtime.store.events("acme"))[-1]
    assert last.caller.trace_id == seen.trace_id == held.trace_id


async def test_state_that_does_not_fit_is_left_alone_and_the_call_still_ends():
    effects = [{"key": "merged", "merge": "merge_dict"}, {"key": "listed", "merge": "append"}]
    made = fake_tool("look_up", {"merged": 3, "listed": 4}, state_effects=effects)
    runtime = runtime_for(made)
    for _ in range(2):
        assert (await runtime.submit(ask(), someone())).ok
    run = await runtime.store.find_run("acme", "run_1")
    assert run.state == {"listed": [4, 4]}


@pytest.mark.parametrize(
    "odd", [{"tool": ["x"]}, {"version": ["1"]}, {"key": ""}, {"run_id": "a\0"}]
)
async def test_odd_ids_are_refused_and_not_raised(odd):
    proposal = Proposal(**{"tool": "look_up", "arguments": {}, "run_id": "run_1", **odd})
    assert not (await runtime_for(fake_tool()).submit(proposal, someone())).ok


async def test_a_tool_registered_past_the_runtime_is_ready_all_the_same():
    made = fake_tool()
    runtime = runtime_for()
    runtime.registry.register(made.tool, grants=[Grant(agent="agent", tool="look_up")])
    assert (await runtime.submit(ask(), someone())).ok


async def test_a_write_is_announced_whatever_its_contract_says_of_audit():
    made = fake_tool("save", effect="draft", observability={"audit_required": False})
    runtime = runtime_for(made)
    await runtime.submit(ask("save"), someone())
    types = [event.type.value for _, event in await runtime.store.events("acme")]
    assert types == ["tool.requested", "tool.started", "tool.succeeded"]


async def test_a_kill_stops_the_next_attempt_of_a_call_under_way():
    def fails(**_):
        runtime.registry.kill(tool="look_up", reason="stop")
        raise ConnectionError

    made = fake_tool("look_up", fails)
    runtime = runtime_for(made)
    await runtime.submit(ask(), someone())
    assert len(made.calls) == 1


async def test_a_contracts_own_word_for_an_error_is_taken():
    class GoneError(Exception):
        pass

    mapping = {"error_taxonomy_mapping": {"GoneError": "STALE_STATE"}}
    made = fake_tool("look_up", GoneError(), observability=mapping)
    assert (await runtime_for(made).submit(ask(), someone())).code is Code.STALE_STATE


async def test_arguments_are_bounded_in_every_form():
    text = {"type": "string", "maxLength": 10**7, "description": "t"}
    schema = {"type": "object", "properties": {"t": text}, "additionalProperties": False}
    made = fake_tool(input_schema=schema)
    seen = await runtime_for(made).submit(ask(arguments={"t": "x" * 10**6}), someone())
    assert seen.code is Code.SYNTACTIC_PARSE_FAIL


async def test_an_unknown_outcome_is_a_persons_to_find_out():
    made = fake_tool("save", HANG, effect="draft", timeout_ms=20)
    runtime = runtime_for(made)
    await runtime.submit(ask("save"), someone())
    again = await runtime.submit(ask("save"), someone())
    assert (again.code, again.next_action) == (Code.IDEMPOTENCY_CONFLICT, "escalate")
    assert again.retry_after is None


def test_a_tenant_has_no_budget_that_nobody_keeps():
    with pytest.raises(ValueError, match="seconds and retries"):
        Tenant(budgets=Budgets(seconds=1))


def test_a_probe_that_needs_more_than_arguments_is_refused_at_registration():
    @tool(effect="read_only", version="1.0.0", owner="x")
    async def look(password: Annotated[str, Secret("pw")]) -> dict[str, str]:
        """Look."""
        return {}

    with pytest.raises(ContractError, match="takes more than arguments"):
        runtime_for(look, fake_tool("save", effect="draft", probe="look"))
