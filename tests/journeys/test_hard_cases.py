"""Cases that are easy to get wrong: approvals gone stale, odd ids, missing secrets, lost spans."""

import asyncio
import itertools
import json
import threading
from typing import Annotated
from unittest.mock import MagicMock

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel

from counterseal import (
    ContractError,
    Grant,
    Invariant,
    Partial,
    Proposal,
    Secret,
    Tenant,
    Tool,
    tool,
)
from counterseal.codes import Code
from counterseal.errors import IsolationError
from counterseal.execution.failures import code_of, describe
from counterseal.ledger.records import Budgets, HeldStatus
from counterseal.policy import Policy
from counterseal.testing import HANG, FakeClock, fake_tool, runtime_for, someone

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
    price = {"runtime": {"cost_profile": {"cost_per_call": 0.1}}, "cost": {"day": {"USD": 9}}}
    made = fake_tool(**price)
    runtime = runtime_for(made)
    await runtime.run(someone(), "run_1", budgets=Budgets(cost={"run": {"USD": 0.3}}))
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
def test_a_tool_that_no_other_process_could_find_is_refused_when_it_is_registered(isolation):
    made = fake_tool("save", effect="draft", isolation=isolation)
    with pytest.raises(ContractError, match="isolation-unavailable"):
        runtime_for(made)


def test_a_sandbox_that_can_not_be_had_is_refused_when_it_is_registered(monkeypatch):
    def missing():
        raise IsolationError("there is no sandbox here; install one")

    @tool(effect="compute", version="1.0.0", owner="x", isolation="thread")
    def plain() -> dict[str, str]:
        """Work."""
        return {}

    boxed = Tool(
        contract=plain.contract.model_copy(
            update={"isolation": "sandbox", "runtime": {"sandbox_isolated": True}}
        ),
        function=json.loads,
    )
    runtime = runtime_for()
    monkeypatch.setattr(runtime.executor.sandboxes, "available", missing)
    with pytest.raises(ContractError, match="there is no sandbox here; install one"):
        runtime.register(boxed)
    assert runtime.registry.records == ()


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


def test_a_tenant_budget_of_seconds_or_retries_is_refused():
    with pytest.raises(ValueError, match="seconds, retries and tokens"):
        Tenant(budgets=Budgets(seconds=1))


async def test_a_probe_may_need_a_credential_and_does_not_show_it():
    @tool(effect="read_only", version="1.0.0", owner="x")
    async def look(password: Annotated[str, Secret("pw")]) -> dict[str, str]:
        """Look."""
        return {"version": "v1", "debug": password}

    saved = fake_tool("save", effect="external_notification", probe="look", consequence="So.")
    runtime = runtime_for(look, saved, secrets={"pw": "correct horse"})
    seen = await runtime.submit(ask("save"), someone())
    packet = await runtime.approvals.get("acme", seen.approval_id)
    assert packet.before == {"version": "v1", "debug": "[secret.pw]"}


async def test_an_approval_holds_only_for_the_principal_that_requested_it():
    made = fake_tool("send", effect="external_notification", input_schema=SCHEMA, consequence="So.")
    runtime = runtime_for(made)
    runtime.register(grants=[Grant(agent="other", tool="send")])
    held = await runtime.submit(ask("send", {"k": "a"}, key="k"), someone())
    await runtime.store.decide("acme", held.approval_id, HeldStatus.APPROVED, [])
    other = await runtime.submit(ask("send", {"k": "a"}, key="k"), someone("other", user="u_2"))
    assert (other.code, made.calls) == (Code.CONFIRMATION_MISSING, [])


async def test_what_is_approved_while_it_is_asked_for_is_looked_at_again(monkeypatch):
    versions = iter([1, 1, 2, 2, 2])
    made = fake_tool(
        "send",
        effect="external_notification",
        consequence="So.",
        probe=lambda: {"version": next(versions)},
    )
    runtime = runtime_for(made)
    first = await runtime.submit(ask("send"), someone())
    real = runtime.store.hold

    async def approved_meanwhile(*asked):
        await runtime.store.decide("acme", first.approval_id, HeldStatus.APPROVED, [])
        return await real(*asked)

    monkeypatch.setattr(runtime.store, "hold", approved_meanwhile)
    seen = await runtime.submit(ask("send"), someone())
    assert (seen.code, made.calls) == (Code.STALE_STATE, [])


# --- approvals, outputs, exceptions, clocks -------------------------------------------------------


async def test_a_yes_for_one_version_is_no_yes_for_the_next():
    rules = {
        "rules": [
            {
                "id": f"v{n}",
                "then": "require_approval",
                "reason": "So.",
                "approvers": n,
                "when": f"contract.version == '{n}.0.0'",
            }
            for n in (1, 2)
        ]
    }
    old = fake_tool("send", effect="draft", input_schema=SCHEMA, business_key=["k"])
    runtime = runtime_for(old, policy=Policy.from_data(rules))
    held = await runtime.submit(ask("send", {"k": "a"}), someone())
    await approve(runtime, held)
    new = fake_tool(
        "send", effect="draft", input_schema=SCHEMA, business_key=["k"], version="2.0.0"
    )
    runtime.register(new.tool)
    again = await runtime.submit(ask("send", {"k": "a"}, run_id="run_2"), someone(user="u_2"))
    assert again.code is Code.CONFIRMATION_MISSING
    assert again.approval_id != held.approval_id
    assert (old.calls, new.calls) == ([], [])


def failing_half_way():
    yield 1
    raise RuntimeError("half way")


@pytest.mark.parametrize(
    "output",
    [
        itertools.count,
        lambda: {"rows": itertools.count()},
        failing_half_way,
        MagicMock,
        lambda: Partial(completed=None),
        lambda: Partial(completed=(n for n in "ab")),
    ],
)
async def test_an_output_that_is_no_data_is_a_failure_and_the_call_ends(output):
    runtime = runtime_for(fake_tool("save", output, effect="draft"))
    seen = await runtime.submit(ask("save"), someone())
    assert seen.code in (Code.OBSERVATION_NORMALIZATION_FAIL, Code.PARTIAL_SUCCESS)
    again = await runtime.submit(ask("save"), someone())
    assert again.idempotency_hit


async def test_half_a_character_in_an_output_is_mended():
    seen = await runtime_for(fake_tool("look_up", {"a": "\ud800"})).submit(ask(), someone())
    assert seen.ok
    seen.for_model().encode()


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
async def test_a_tool_cannot_end_the_program_that_runs_it(error):
    runtime = runtime_for(fake_tool("save", error, effect="draft"))
    assert (await runtime.submit(ask("save"), someone())).code is Code.UNKNOWN_ERROR
    again = await runtime.submit(ask("save"), someone())
    assert again.code is Code.IDEMPOTENCY_CONFLICT, "it may have acted before it broke"


async def test_a_correction_is_held_to_what_a_proposal_is():
    too_big = Invariant(
        id="N", rule="n.", check="false", correct=lambda c, s, k: c.replace(n=2**60)
    )
    made = fake_tool(
        "send", effect="external_notification", input_schema=SCHEMA, invariants=[too_big]
    )
    seen = await runtime_for(made).submit(ask("send", {"n": 1}), someone())
    assert seen.code is Code.SEMANTIC_INVALIDITY


async def test_what_a_caller_changes_later_does_not_reach_the_tool():
    inner = {
        "type": "object",
        "properties": {"x": {"type": "integer", "maximum": 5}},
        "additionalProperties": False,
        "description": "n",
    }
    schema = {"type": "object", "properties": {"n": inner}, "additionalProperties": False}
    arguments = {"n": {"x": 1}}

    def probe():
        arguments["n"]["x"] = 999
        return {"version": 1}

    made = fake_tool(input_schema=schema, probe=probe)
    assert (await runtime_for(made).submit(ask(arguments=arguments), someone())).ok
    assert made.calls == [{"n": {"x": 1}}]


@pytest.mark.parametrize(
    "output",
    [
        {"smtp_password": "hunter2!"},
        {"userPassword": "hunter2!"},
        {"aws_secret_access_key": "hunter2!"},
        {"session_token": "hunter2!"},
        {"password": ["hunter2!"]},
        {"pwd": "hunter2!"},
        {"log": "npm_" + "hunter2x" * 4 + "abcd"},
    ],
)
async def test_secrets_under_their_usual_names_are_not_shown(output):
    seen = await runtime_for(fake_tool("look_up", output)).submit(ask(), someone())
    assert seen.ok
    assert "hunter2" not in seen.for_model()


async def test_a_run_sees_the_output_and_not_its_summary():
    output = {
        "type": "object",
        "properties": {"version": {"type": "integer"}, "text": {"type": "string"}},
        "additionalProperties": False,
    }
    made = fake_tool(
        "look_up",
        {"version": 7, "text": "x" * 500},
        output_schema=output,
        max_output_bytes=100,
        resource="case",
        version_from="/version",
    )
    runtime = runtime_for(made)
    assert (await runtime.submit(ask(), someone())).warnings
    assert (await runtime.store.find_run("acme", "run_1")).seen == {"case": 7}


async def test_another_attempt_costs_what_a_call_costs():
    made = fake_tool(
        "look_up",
        ConnectionError(),
        max_retries=3,
        runtime={"cost_profile": {"cost_per_call": 1}, "max_retries": 3},
        cost={"day": {"USD": 9}},
    )
    runtime = runtime_for(made)
    await runtime.run(someone(), "run_1", budgets=Budgets(cost={"run": {"USD": 2}}))
    await runtime.submit(ask(), someone())
    assert len(made.calls) == 2


async def test_the_next_action_and_the_response_vector_agree():
    runtime = runtime_for(fake_tool("save", HANG, effect="draft", timeout_ms=20))
    await runtime.submit(ask("save"), someone())
    seen = await runtime.submit(ask("save"), someone())
    assert seen.response.next_action == seen.next_action == "escalate"
    assert (seen.response.retryable, seen.response.escalate) == (False, True)


async def test_trying_one_door_after_another_escalates():
    tools = [fake_tool(f"door_{n}", scopes=["none"]) for n in range(4)]
    runtime = runtime_for(*tools)
    seen = [await runtime.submit(ask(f"door_{n}"), someone()) for n in range(4)]
    assert [one.response.escalate for one in seen] == [False, False, True, True]


async def test_a_clock_that_went_forward_and_back_blocks_no_call():
    clock = FakeClock()
    limits = {"rate_limits": {"window_sec": 3600, "max_requests": 49}}
    runtime = runtime_for(fake_tool(runtime=limits), clock=clock)
    for n in range(49):
        assert (await runtime.submit(ask(run_id=f"r{n}"), someone())).ok
    clock.advance(86_400)
    await runtime.submit(ask(run_id="later"), someone())
    clock.advance(-86_400)
    seen = await runtime.submit(ask(run_id="back"), someone())
    assert seen.ok or seen.retry_after < 3600


async def test_names_from_a_model_are_kept_without_their_escapes():
    runtime = runtime_for(fake_tool(input_schema=SCHEMA))
    seen = await runtime.submit(ask("\x1b[2Jevil", call_id=5), someone())
    extra = await runtime.submit(ask(arguments={"\x1b[2Jx\u202e": 1}), someone())
    shown = str([seen.envelope(), extra.envelope(), await runtime.store.events("acme")])
    assert "\\x1b" not in shown
    assert isinstance(seen.envelope()["tool_identity"]["call_id"], str)


async def test_an_implicit_run_ends_when_it_is_idle_for_a_while():
    clock = FakeClock()
    runtime = runtime_for(fake_tool(budget=1), clock=clock)
    proposal = Proposal(tool="look_up", arguments={})
    assert (await runtime.submit(proposal, someone())).ok
    assert (await runtime.submit(proposal, someone())).code is Code.BUDGET_EXHAUSTED
    clock.advance(3 * 3600)
    assert (await runtime.submit(proposal, someone())).ok


def test_budgets_and_principals_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="reed_only"):
        Budgets(by_effect={"reed_only": 0})
    with pytest.raises(ValueError, match="from 0 on"):
        Budgets(money={"run": {"EUR": float("nan")}})
    with pytest.raises(ValueError, match="surrogate"):
        someone(user="\ud800")


async def test_a_probe_may_answer_with_a_model_and_versions_are_compared_by_type_too():
    class Seen(BaseModel):
        version: int

    made = fake_tool("save", effect="draft", probe=lambda: Seen(version=1))
    runtime = runtime_for(made)
    odd = await runtime.submit(ask("save", expected_version=True), someone())
    assert odd.code is Code.SYNTACTIC_PARSE_FAIL
    text = await runtime.submit(ask("save", expected_version="1"), someone())
    assert text.code is Code.STALE_STATE
    assert (await runtime.submit(ask("save", expected_version=1), someone())).ok


async def test_an_exception_is_never_a_success_whatever_a_contract_says():
    mapping = {"error_taxonomy_mapping": {"ValueError": "SUCCESS"}}
    declared = fake_tool("look_up", ValueError(), observability=mapping)
    with pytest.raises(ContractError, match="is not a failure code"):
        runtime_for(declared)
    assert code_of(describe(ValueError()), declared.contract) is Code.UNKNOWN_ERROR


async def test_another_attempt_is_rated_when_it_is_made():
    clock = FakeClock()

    def slow_to_fail(**_):
        clock.advance(60)
        raise ConnectionError

    limits = {"rate_limits": {"window_sec": 60, "max_requests": 1}, "max_retries": 2}
    made = fake_tool("look_up", slow_to_fail, {"ok": True}, runtime=limits)
    assert (await runtime_for(made, clock=clock).submit(ask(), someone())).ok
    assert len(made.calls) == 2

    hasty = fake_tool("look_up", ConnectionError(), {"ok": True}, runtime=limits)
    assert not (await runtime_for(hasty, clock=clock).submit(ask(), someone())).ok
    assert len(hasty.calls) == 1, "the rate left no room for another"
