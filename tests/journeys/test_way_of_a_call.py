"""Whole calls through the real runtime: what goes in, what comes out, what is put on record."""

import asyncio
import logging
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from counterseal import Context, Grant, Proposal, tool
from counterseal.audit import EventType
from counterseal.codes import Code
from counterseal.contract.invariants import Invariant
from counterseal.gates.base import AsyncGate, Gate
from counterseal.ledger.records import Budgets, HeldStatus
from counterseal.observation.envelope import ObservationEnvelope
from counterseal.policy import Policy
from counterseal.reconcile import Reconciler
from counterseal.registry import Deprecation, Reason
from counterseal.storage.memory import MemoryStore
from counterseal.testing import HANG, FakeClock, approver, fake_tool, runtime_for, someone

CASE = {
    "type": "object",
    "properties": {
        "case_id": {"type": "string", "pattern": "^case_[0-9]{3}$", "description": "The case."},
        "note": {"type": "string", "maxLength": 50, "description": "A note."},
    },
    "required": ["case_id"],
    "additionalProperties": False,
}


def ask(tool="look_up", arguments=None, **more):
    more.setdefault("run_id", "run_1")
    return Proposal(tool=tool, arguments=arguments if arguments is not None else {}, **more)


async def types_of(runtime, tenant="acme", **which):
    return [event.type for _, event in await runtime.store.events(tenant, **which)]


async def test_a_read_goes_through_every_gate_and_comes_back_typed():
    tool = fake_tool("look_up", {"status": "open"}, input_schema=CASE)
    runtime = runtime_for(tool)
    seen = await runtime.submit(ask(arguments='{"case_id": "case_001"}'), someone())
    assert seen.ok
    assert seen.code is Code.SUCCESS
    assert seen.data == {"status": "open"}
    assert tool.calls == [{"case_id": "case_001"}]
    gates = [timed.decision.gate for timed in seen.decisions]
    assert gates == [
        "parse",
        "schema",
        "scope",
        "semantics",
        "policy",
        "state",
        "approval",
        "budget",
    ]
    ObservationEnvelope.model_validate(seen.envelope())
    assert await types_of(runtime) == [
        EventType.SUCCEEDED,
    ], "a read can't be half done, so its end tells it all"


async def test_a_refusal_executes_nothing_and_can_be_acted_on():
    tool = fake_tool(input_schema=CASE)
    runtime = runtime_for(tool)
    seen = await runtime.submit(ask(arguments={"case_id": 7}), someone())
    assert tool.calls == []
    assert seen.code is Code.TYPE_MISMATCH
    assert not seen.ok
    assert seen.feedback()["repairable"] is True
    (wrong,) = seen.feedback()["field_errors"]
    assert (wrong["field"], wrong["path"]) == ("case_id", "/case_id")
    assert await types_of(runtime) == [
        EventType.SCHEMA_REFUSED,
        EventType.DENIED,
        EventType.REPAIR_ASKED,
    ]


async def test_an_unknown_tool_and_another_tenants_tool_get_the_same_answer():
    mine, theirs = fake_tool("mine"), fake_tool("theirs")
    runtime = runtime_for(mine)
    runtime.register(
        theirs.tool, grants=[Grant(agent="agent", tool="theirs")], allowed_tenants=["other"]
    )
    hidden = await runtime.submit(ask("theirs"), someone())
    absent = await runtime.submit(ask("absent"), someone())
    assert hidden.code is absent.code is Code.STRUCTURAL_VIOLATION
    assert hidden.response.repairable
    assert hidden.for_model().replace("theirs", "?") == absent.for_model().replace("absent", "?")
    assert "mine" in hidden.for_model()


async def test_a_tool_without_a_grant_is_refused():
    runtime = runtime_for(fake_tool())
    seen = await runtime.submit(ask(), someone(agent="stranger"))
    assert seen.code is Code.PERMISSION_DENIED
    assert seen.decisions[-1].decision.rule == Reason.NO_GRANT
    assert not seen.response.repairable


@pytest.mark.parametrize(
    ("who", "rule"),
    [
        ({"agent": "stranger"}, "no_grant"),
        ({"scopes": ["other"]}, "scope_missing"),
    ],
)
async def test_authority_is_needed_in_full(who, rule):
    runtime = runtime_for(fake_tool(scopes=["case:read"]))
    seen = await runtime.submit(ask(), someone(**who))
    assert (seen.code, seen.decisions[-1].decision.rule) == (Code.PERMISSION_DENIED, rule)


async def test_the_tenant_in_the_arguments_must_be_the_callers():
    schema = {
        "type": "object",
        "properties": {"tenant_id": {"type": "string", "maxLength": 9, "description": "Whose."}},
        "required": ["tenant_id"],
        "additionalProperties": False,
    }
    tool = fake_tool(input_schema=schema, tenant_argument="tenant_id")
    runtime = runtime_for(tool)
    assert (await runtime.submit(ask(arguments={"tenant_id": "acme"}), someone())).ok
    other = await runtime.submit(ask(arguments={"tenant_id": "evil"}), someone())
    assert other.code is Code.PERMISSION_DENIED
    assert len(tool.calls) == 1


async def test_a_run_refuses_tools_outside_its_objective():
    runtime = runtime_for(fake_tool("search"), fake_tool("delete_nothing"))
    await runtime.run(someone(), "run_1", objective="look only", allowed_tools=["search"])
    assert (await runtime.submit(ask("search"), someone())).ok
    refused = await runtime.submit(ask("delete_nothing"), someone())
    assert refused.code is Code.PERMISSION_DENIED
    assert refused.decisions[-1].decision.rule == "run-objective"


async def test_a_correction_is_made_shown_and_validated_again():
    schema = {**CASE, "required": []}
    good = Invariant(
        id="NOTE", rule="A note.", check="has(call.note)", correct={"set": {"note": "x"}}
    )
    tool = fake_tool(input_schema=schema, invariants=[good])
    seen = await runtime_for(tool).submit(ask(), someone())
    assert tool.calls == [{"note": "x"}]
    assert any("A note." in warning for warning in seen.warnings)

    bad = Invariant(id="NOTE", rule="A note.", check="has(call.note)", correct={"set": {"note": 3}})
    smuggled = fake_tool(input_schema=schema, invariants=[bad])
    refused = await runtime_for(smuggled).submit(ask(), someone())
    assert refused.code is Code.SEMANTIC_INVALIDITY
    assert smuggled.calls == []


async def test_a_dropped_step_says_so():
    never = Invariant(id="NEVER", rule="Not this.", check="false", correct="drop_step")
    seen = await runtime_for(fake_tool(invariants=[never])).submit(ask(), someone())
    assert (seen.code, seen.next_action) == (Code.SEMANTIC_INVALIDITY, "drop_step")


async def test_an_invariant_that_raises_denies():
    def broken(call, state, config):
        raise RuntimeError("secret detail")

    tool = fake_tool(invariants=[Invariant(id="B", rule="r", check=broken)])
    seen = await runtime_for(tool).submit(ask(), someone())
    assert not seen.ok
    assert tool.calls == []
    assert "secret detail" not in str(seen.record())


def saying(word):
    """What a gate's check does that has this to say."""
    if isinstance(word, Exception):
        raise word
    return word


def with_first(tool, gate):
    """A runtime whose first gate after recall is this one."""
    runtime = runtime_for(tool)
    (record,) = runtime.registry.records
    compiled = runtime.compiled_for(record)
    gates = (gate, *compiled.gates)
    runtime._compiled[record.name, record.version, record.risk] = replace(compiled, gates=gates)
    return runtime


def check_denied(seen, tool):
    assert not seen.ok
    assert tool.calls == []
    assert seen.decisions[-1].decision.rule == "gate-error"
    assert "secret detail" not in str(seen.record())


WORDS = [None, True, "allow", (), RuntimeError("secret detail")]


@pytest.mark.parametrize("gate", ["semantics", "policy", "state", "approval", "budget"])
@pytest.mark.parametrize("word", WORDS)
async def test_a_gate_that_breaks_or_says_no_word_that_is_known_denies(gate, word):
    tool = fake_tool()
    runtime = with_first(tool, Gate(gate, lambda _ctx: saying(word)))
    check_denied(await runtime.submit(ask(tool.contract.name), someone()), tool)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("breaks", ["look", "check"])
async def test_so_does_the_gate_that_asks_the_world(word, breaks):
    async def look(_ctx):
        return saying(word if breaks == "look" else None)

    tool = fake_tool()
    runtime = with_first(tool, AsyncGate("state", look, lambda _ctx: saying(word)))
    check_denied(await runtime.submit(ask(tool.contract.name), someone()), tool)


# --- what was done before -------------------------------------------------------------------------


class Counting(MemoryStore):
    """Remembers what it was asked before anything was admitted."""

    def __init__(self):
        super().__init__()
        self.asked = []

    async def recall(self, *where, **how):
        self.asked.append("recall")
        return await super().recall(*where, **how)

    async def admit(self, request):
        self.asked.append("admit")
        return await super().admit(request)


async def test_a_plain_change_is_looked_up_by_its_admission_alone():
    tool = fake_tool("save", {"id": 1}, effect="draft")
    runtime = runtime_for(tool, store=Counting())
    assert (await runtime.submit(ask("save"), someone())).ok
    assert runtime.store.asked == ["admit"]
    replay = await runtime.submit(ask("save"), someone())
    assert (replay.idempotency_hit, replay.data) == (True, {"id": 1})
    assert runtime.store.asked == ["admit", "admit", "recall"]
    assert len(tool.calls) == 1


@pytest.mark.parametrize("needs", ["approval", "probe", "rule"])
async def test_the_ledger_is_read_before_an_approval_is_requested(needs):
    more = {
        "approval": {"effect": "external_notification"},
        "probe": {"effect": "draft", "probe": lambda: {"version": 1}},
        "rule": {"effect": "draft"},
    }[needs]
    rule = {"id": "few", "when": "run.calls > 5", "then": "deny", "reason": "Too many."}
    policy = {"policy": Policy.from_data({"rules": [rule]})} if needs == "rule" else {}
    runtime = runtime_for(fake_tool("save", **more), store=Counting(), **policy)
    await runtime.submit(ask("save"), someone())
    assert runtime.store.asked[0] == "recall"


async def test_what_may_not_be_done_any_more_is_answered_from_memory():
    closed = []
    rule = Invariant(id="OPEN", rule="Open.", check=lambda call, state, config: not closed)
    tool = fake_tool("save", {"id": 1}, effect="draft", input_schema=CASE, invariants=[rule])
    runtime = runtime_for(tool)
    first = await runtime.submit(ask("save", {"case_id": "case_001"}), someone())
    closed.append(True)
    replay = await runtime.submit(ask("save", {"case_id": "case_001"}), someone())
    assert (replay.idempotency_hit, replay.data) == (True, first.data)
    other = await runtime.submit(ask("save", {"case_id": "case_002"}), someone())
    assert other.code is Code.SEMANTIC_INVALIDITY
    assert len(tool.calls) == 1


# --- approval -------------------------------------------------------------------------------------


async def test_a_call_that_needs_approval_is_held_and_executes_once_approved():
    tool = fake_tool("send_notice", effect="external_notification", input_schema=CASE)
    runtime = runtime_for(tool)
    call = ask("send_notice", {"case_id": "case_001"})
    held = await runtime.submit(call, someone())
    assert held.code is Code.CONFIRMATION_MISSING
    assert held.approval_id.startswith("appr_")
    assert held.response.requires_approval
    again = await runtime.submit(call, someone())
    assert again.approval_id == held.approval_id
    assert tool.calls == []

    await runtime.store.decide("acme", held.approval_id, HeldStatus.APPROVED, [])
    done = await runtime.submit(call, someone())
    assert done.ok
    replay = await runtime.submit(call, someone())
    assert replay.idempotency_hit
    assert replay.data == done.data
    assert len(tool.calls) == 1


async def test_an_approval_stands_for_exactly_its_arguments():
    tool = fake_tool(
        "send_notice", effect="external_notification", input_schema=CASE, business_key=["case_id"]
    )
    runtime = runtime_for(tool)
    held = await runtime.submit(ask("send_notice", {"case_id": "case_001"}), someone())
    await runtime.store.decide("acme", held.approval_id, HeldStatus.APPROVED, [])
    other = await runtime.submit(
        ask("send_notice", {"case_id": "case_001", "note": "and delete all"}), someone()
    )
    assert other.code is Code.CONFIRMATION_MISSING
    assert other.approval_id != held.approval_id
    assert tool.calls == []


async def test_a_rejected_approval_ends_it():
    tool = fake_tool("send_notice", effect="external_notification")
    runtime = runtime_for(tool)
    held = await runtime.submit(ask("send_notice"), someone())
    await runtime.store.decide("acme", held.approval_id, HeldStatus.REJECTED, [])
    seen = await runtime.submit(ask("send_notice"), someone())
    assert (seen.code, seen.next_action) == (Code.CONFIRMATION_MISSING, "replan")
    assert tool.calls == []


async def test_no_approval_is_requested_for_a_call_that_could_not_run():
    tool = fake_tool("delete_case", effect="irreversible")
    runtime = runtime_for(tool)
    seen = await runtime.submit(ask("delete_case"), someone())
    assert seen.code is Code.BUDGET_EXHAUSTED
    assert EventType.APPROVAL_REQUIRED not in await types_of(runtime)


async def test_a_read_that_policy_holds_is_asked_about_once_and_only_if_it_could_run():
    ask_first = Policy.from_data(
        {"rules": [{"id": "ask", "then": "require_approval", "reason": "Sensitive."}]}
    )
    tool = fake_tool(budget=1)
    runtime = runtime_for(tool, policy=ask_first)
    held = await runtime.submit(ask(), someone())
    assert held.code is Code.CONFIRMATION_MISSING
    await runtime.store.decide("acme", held.approval_id, HeldStatus.APPROVED, [])
    assert (await runtime.submit(ask(), someone())).ok
    spent = await runtime.submit(ask(), someone())
    assert spent.code is Code.BUDGET_EXHAUSTED
    assert len(tool.calls) == 1
    assert (await types_of(runtime)).count(EventType.APPROVAL_REQUIRED) == 1


# --- budgets --------------------------------------------------------------------------------------


async def test_budgets_hold_under_concurrency():
    tool = fake_tool(budget=5)
    runtime = runtime_for(tool)
    seen = await asyncio.gather(*(runtime.submit(ask(), someone()) for _ in range(40)))
    assert sum(one.ok for one in seen) == 5 == len(tool.calls)
    spent = [one for one in seen if not one.ok]
    assert {one.code for one in spent} == {Code.BUDGET_EXHAUSTED}
    assert "run.tool.look_up" in spent[0].for_model()


@pytest.mark.parametrize(
    ("effect", "budgets", "budget"),
    [
        ("read_only", Budgets(reads=2), "run.reads"),
        ("draft", Budgets(writes=2), "run.writes"),
        ("retrieve", Budgets(by_effect={"retrieve": 2}), "run.effect.retrieve"),
        ("compute", Budgets(cost={"run": {"USD": 0.25}}), "run.cost.run.USD"),
    ],
)
async def test_a_run_has_budgets_of_its_own(effect, budgets, budget):
    tool = fake_tool(
        effect=effect,
        input_schema=CASE,
        runtime={"cost_profile": {"cost_per_call": 0.1}},
        cost={"day": {"USD": 9}},
    )
    runtime = runtime_for(tool)
    await runtime.run(someone(), "run_1", budgets=budgets)
    seen = [
        await runtime.submit(ask(arguments={"case_id": f"case_{n:03}"}), someone())
        for n in range(3)
    ]
    assert [one.ok for one in seen] == [True, True, False]
    assert seen[-1].decisions[-1].decision.rule == budget
    assert (
        await runtime.submit(ask(arguments={"case_id": "case_009"}, run_id="run_2"), someone())
    ).ok


async def test_a_run_ends_when_its_time_is_up():
    clock = FakeClock()
    runtime = runtime_for(fake_tool(), clock=clock)
    await runtime.run(someone(), "run_1", budgets=Budgets(seconds=60))
    assert (await runtime.submit(ask(), someone())).ok
    clock.advance(61)
    seen = await runtime.submit(ask(), someone())
    assert seen.decisions[-1].decision.rule == "run.seconds"


async def test_a_tenants_budget_is_shared_by_its_runs_and_comes_back_with_the_day():
    from counterseal.runtime import Tenant

    clock = FakeClock()
    runtime = runtime_for(
        fake_tool(), clock=clock, tenants={"acme": Tenant(budgets=Budgets(reads=2))}
    )
    for run in ("run_1", "run_2"):
        assert (await runtime.submit(ask(run_id=run), someone())).ok
    spent = await runtime.submit(ask(run_id="run_3"), someone())
    assert spent.decisions[-1].decision.rule == "tenant.reads"
    assert (await runtime.submit(ask(), someone(tenant="other"))).ok
    clock.advance(86_400)
    assert (await runtime.submit(ask(run_id="run_4"), someone())).ok


async def test_a_grant_can_give_calls_of_a_critical_tool():
    tool = fake_tool("delete_case", effect="irreversible")
    runtime = runtime_for()
    runtime.register(
        tool.tool, grants=[Grant(agent="agent", tool="delete_case", max_calls_per_run=1)]
    )
    held = await runtime.submit(ask("delete_case"), someone())
    assert held.code is Code.CONFIRMATION_MISSING


async def test_too_many_calls_at_once_are_told_when_to_come_back():
    clock = FakeClock()
    limits = {"rate_limits": {"window_sec": 10, "max_requests": 2}}
    runtime = runtime_for(fake_tool(runtime=limits), clock=clock)
    seen = [await runtime.submit(ask(run_id=f"run_{n}"), someone()) for n in range(3)]
    assert [one.code for one in seen] == [Code.SUCCESS, Code.SUCCESS, Code.RATE_LIMITED]
    assert seen[-1].retry_after == pytest.approx(5)
    clock.advance(5)
    assert (await runtime.submit(ask(), someone())).ok


# --- keys -----------------------------------------------------------------------------------------


async def test_the_same_call_again_is_answered_from_memory_and_spends_nothing():
    tool = fake_tool("save_draft", {"draft": 1}, {"draft": 2}, effect="draft", budget=1)
    runtime = runtime_for(tool)
    first = await runtime.submit(ask("save_draft"), someone())
    second = await runtime.submit(ask("save_draft"), someone())
    assert (first.idempotency_hit, second.idempotency_hit) == (False, True)
    assert second.data == first.data == {"draft": 1}
    assert second.ok
    assert len(tool.calls) == 1


async def test_a_key_that_is_used_for_something_else_is_refused():
    tool = fake_tool("save_draft", effect="draft", input_schema=CASE)
    runtime = runtime_for(tool)
    await runtime.submit(ask("save_draft", {"case_id": "case_001"}, key="k"), someone())
    other = await runtime.submit(ask("save_draft", {"case_id": "case_002"}, key="k"), someone())
    assert other.code is Code.SIGNATURE_MISMATCH
    assert other.response.fail_closed
    assert len(tool.calls) == 1


async def test_a_call_in_progress_is_not_made_twice():
    tool = fake_tool("save_draft", HANG, effect="draft")
    runtime = runtime_for(tool)
    first = asyncio.create_task(runtime.submit(ask("save_draft"), someone()))
    for _ in range(10):  # it is admitted, and its tool begins in a task of its own
        await asyncio.sleep(0)
    assert len(tool.calls) == 1
    second = await runtime.submit(ask("save_draft"), someone())
    assert second.code is Code.IDEMPOTENCY_CONFLICT
    assert second.retry_after
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    third = await runtime.submit(ask("save_draft"), someone())
    assert third.code is Code.IDEMPOTENCY_CONFLICT, "it may have happened, so nothing re-runs it"
    assert len(tool.calls) == 1


async def test_a_repeatable_call_must_be_named_the_second_time():
    tool = fake_tool("save_draft", effect="draft", repeatable=True)
    runtime = runtime_for(tool)
    assert (await runtime.submit(ask("save_draft"), someone())).ok
    unnamed = await runtime.submit(ask("save_draft"), someone())
    assert unnamed.code is Code.SEMANTIC_INVALIDITY
    assert (await runtime.submit(ask("save_draft", operation_id="second"), someone())).ok
    assert len(tool.calls) == 2


# --- state ----------------------------------------------------------------------------------------


async def test_a_target_that_changed_is_found_out_before_anything_runs():
    world = {"version": 1}
    tool = fake_tool(
        "update_case",
        lambda **_: {"version": world["version"]},
        effect="internal_mutation",
        input_schema=CASE,
        output_schema={
            "type": "object",
            "properties": {"version": {"type": "integer"}},
            "additionalProperties": False,
        },
        resource="case:{case_id}",
        version_from="/version",
        probe=lambda case_id: dict(world),
    )
    runtime = runtime_for(tool)
    first = await runtime.submit(ask("update_case", {"case_id": "case_001"}), someone())
    assert first.ok
    world["version"] = 2
    stale = await runtime.submit(
        ask("update_case", {"case_id": "case_001", "note": "more"}), someone()
    )
    assert stale.code is Code.STALE_STATE
    assert stale.response.repairable
    refreshed = await runtime.submit(
        ask("update_case", {"case_id": "case_001", "note": "more"}, expected_version=2), someone()
    )
    assert refreshed.ok
    assert len(tool.calls) == 2


async def test_an_approval_is_void_when_the_target_changed_meanwhile():
    world = {"version": 1}
    tool = fake_tool("send_notice", effect="external_notification", probe=lambda: dict(world))
    runtime = runtime_for(tool)
    held = await runtime.submit(ask("send_notice"), someone())
    await runtime.store.decide("acme", held.approval_id, HeldStatus.APPROVED, [])
    world["version"] = 2
    seen = await runtime.submit(ask("send_notice"), someone())
    assert seen.code is Code.STALE_STATE
    assert tool.calls == []


async def test_a_probe_that_fails_denies():
    def broken():
        raise OSError("db-password-in-message")

    tool = fake_tool("update_case", effect="internal_mutation", probe=broken)
    seen = await runtime_for(tool).submit(ask("update_case"), someone())
    assert seen.code is Code.DEPENDENCY_UNAVAILABLE
    assert "password" not in str(seen.record())
    missing = fake_tool("update_case", effect="internal_mutation", probe=lambda: None)
    assert (
        await runtime_for(missing).submit(ask("update_case"), someone())
    ).code is Code.STALE_STATE


# --- execution ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("password=hunter2"), Code.UNKNOWN_ERROR),
        (TimeoutError("password=hunter2"), Code.TIMEOUT),
        (ConnectionResetError("password=hunter2"), Code.DEPENDENCY_UNAVAILABLE),
    ],
)
async def test_a_failing_tool_tells_the_model_a_code_and_the_operator_the_rest(error, code, caplog):
    with caplog.at_level(logging.ERROR):
        seen = await runtime_for(fake_tool("look_up", error)).submit(ask(), someone())
    assert seen.code is code
    assert "hunter2" not in str(seen.record()) + seen.for_model()
    assert "hunter2" in caplog.text


async def test_a_read_is_tried_again_and_a_write_is_not():
    reading = fake_tool("look_up", ConnectionError(), ConnectionError(), {"ok": True})
    seen = await runtime_for(reading).submit(ask(), someone())
    assert seen.ok
    assert seen.envelope()["execution_metadata"]["attempt_number"] == 3
    writing = fake_tool("save_draft", ConnectionError(), effect="draft", max_retries=5)
    assert not (await runtime_for(writing).submit(ask("save_draft"), someone())).ok
    assert (len(reading.calls), len(writing.calls)) == (3, 1)


async def test_a_read_that_fails_for_good_is_not_tried_again():
    tool = fake_tool("look_up", ValueError())
    await runtime_for(tool).submit(ask(), someone())
    assert len(tool.calls) == 1


async def test_retries_are_a_budget_of_the_run():
    tool = fake_tool("look_up", ConnectionError(), max_retries=9)
    runtime = runtime_for(tool)
    await runtime.run(someone(), "run_1", budgets=Budgets(retries=3))
    for _ in range(3):
        seen = await runtime.submit(ask(), someone())
        assert seen.code is Code.DEPENDENCY_UNAVAILABLE
    assert len(tool.calls) == 3 + 3, "three calls, and three retries among them"


async def test_a_tool_that_hangs_is_stopped_at_its_deadline():
    tool = fake_tool("look_up", HANG, timeout_ms=20)
    seen = await runtime_for(tool).submit(ask(), someone())
    assert seen.code is Code.TIMEOUT


async def test_a_mutation_that_did_not_answer_is_not_run_again():
    tool = fake_tool("save_draft", HANG, effect="draft", timeout_ms=20)
    runtime = runtime_for(tool)
    assert (await runtime.submit(ask("save_draft"), someone())).code is Code.TIMEOUT
    again = await runtime.submit(ask("save_draft"), someone())
    assert again.code is Code.IDEMPOTENCY_CONFLICT
    assert len(tool.calls) == 1


async def test_garbage_from_a_tool_is_not_shown():
    output = {
        "type": "object",
        "properties": {"count": {"type": "integer"}},
        "required": ["count"],
        "additionalProperties": False,
    }
    tool = fake_tool("look_up", {"count": "hunter2"}, output_schema=output)
    seen = await runtime_for(tool).submit(ask(), someone())
    assert seen.code is Code.OBSERVATION_NORMALIZATION_FAIL
    assert "hunter2" not in str(seen.record())
    assert seen.raw


async def test_secrets_in_an_output_are_redacted_and_listed():
    key = "AKIAIOSFODNN7EXAMPLE"
    tool = fake_tool("look_up", {"log": f"using {key} now"})
    seen = await runtime_for(tool).submit(ask(), someone())
    assert key not in str(seen.record()) + seen.for_model()
    assert seen.redactions


# --- escalation, kill, preview --------------------------------------------------------------------


async def test_refusals_that_keep_happening_escalate():
    runtime = runtime_for(fake_tool())
    seen = [await runtime.submit(ask(), someone(agent="stranger")) for _ in range(3)]
    assert [one.response.escalate for one in seen] == [False, False, True]


async def test_a_kill_stops_the_next_call_and_a_call_that_is_being_decided():
    tool = fake_tool("update_case", effect="internal_mutation")
    runtime = runtime_for(tool)

    def probe():
        runtime.registry.kill(tool="update_case", reason="stop")
        return {"version": 1}

    watched = fake_tool("update_case", effect="internal_mutation", version="2.0.0", probe=probe)
    runtime.register(watched.tool)
    seen = await runtime.submit(ask("update_case"), someone())
    assert seen.code is Code.PERMISSION_DENIED
    assert (tool.calls, watched.calls) == ([], [])


async def test_a_run_keeps_the_version_it_began_with():
    old = fake_tool("look_up", {"v": 1})
    runtime = runtime_for(old)
    await runtime.submit(ask(), someone())
    runtime.register(fake_tool("look_up", {"v": 2}, version="2.0.0").tool)
    assert (await runtime.submit(ask(), someone())).data == {"v": 1}
    assert (await runtime.submit(ask(run_id="run_2"), someone())).data == {"v": 2}


async def test_a_proposal_cannot_talk_a_run_into_another_version():
    runtime = runtime_for(
        fake_tool("look_up", {"v": 1}), fake_tool("look_up", {"v": 2}, version="2.0.0")
    )
    assert (await runtime.submit(ask(version="1.0.0"), someone())).data == {"v": 1}
    other = await runtime.submit(ask(version="2.0.0"), someone())
    assert other.code is Code.PERMISSION_DENIED
    assert (await runtime.submit(ask(), someone())).data == {"v": 1}


async def test_a_preview_leaves_no_trace():
    tool = fake_tool("send_notice", effect="external_notification")
    runtime = runtime_for(tool)
    preview = await runtime.preview(ask("send_notice"), someone())
    assert (preview.verdict, preview.code) == ("require_approval", "CONFIRMATION_MISSING")
    assert [timed.decision.gate for timed in preview.decisions][-1] == "budget"
    refused = await runtime.preview(ask("send_notice", "{"), someone())
    assert refused.code == "SYNTACTIC_PARSE_FAIL"
    assert await types_of(runtime) == []
    assert await runtime.store.find_run("acme", "run_1") is None
    assert tool.calls == []


async def test_events_of_one_tenant_are_not_anothers():
    runtime = runtime_for(fake_tool())
    await runtime.submit(ask(), someone())
    assert await types_of(runtime, tenant="other") == []


async def test_decisions_read_the_same_in_a_replay_as_in_the_first_answer():
    runtime = runtime_for(fake_tool(effect="draft"))
    first = await runtime.submit(ask(key="k"), someone())
    replay = await runtime.submit(ask(key="k"), someone())
    assert replay.idempotency_hit
    assert replay.decisions
    assert {type(timed) for timed in replay.decisions} == {type(first.decisions[0])}
    by_gate = {timed.decision.gate: timed.decision for timed in first.decisions}
    for timed in replay.decisions:
        assert timed.decision == by_gate[timed.decision.gate]


# --- no text contradicts another ------------------------------------------------------------------


async def test_an_expired_key_is_not_called_in_progress():
    clock = FakeClock()
    runtime = runtime_for(fake_tool(effect="draft"), clock=clock, store=MemoryStore(clock))
    assert (await runtime.submit(ask(key="k"), someone())).ok
    clock.advance(366 * 86400)
    await Reconciler(runtime).once()
    text = (await runtime.submit(ask(key="k"), someone())).for_model()
    assert "next action: use_new_operation" in text
    assert "no longer kept" in text
    assert "progress" not in text
    assert "Wait" not in text


async def test_an_unknown_outcome_that_a_person_must_find_out_does_not_say_wait():
    runtime = runtime_for(fake_tool("save", TimeoutError(), effect="draft", on_unknown="escalate"))
    await runtime.submit(ask("save", key="k"), someone())
    text = (await runtime.submit(ask("save", key="k"), someone())).for_model()
    assert "next action: escalate" in text
    assert "not known whether an earlier call" in text
    assert "progress" not in text
    assert "Wait" not in text


async def test_only_a_change_that_timed_out_may_have_taken_effect():
    read = fake_tool("look_up", TimeoutError(), runtime={"max_retries": 0})
    change = fake_tool("save", TimeoutError(), effect="draft", on_unknown="escalate")
    runtime = runtime_for(read, change)
    seen = await runtime.submit(ask(), someone())
    assert (seen.code, "effect" in seen.for_model()) == (Code.TIMEOUT, False)
    seen = await runtime.submit(ask("save"), someone())
    assert (seen.code, "not known whether the call took effect" in seen.for_model()) == (
        Code.TIMEOUT,
        True,
    )


async def test_a_retired_tool_names_its_successor_and_does_not_say_give_up():
    clock = FakeClock()
    runtime = runtime_for(fake_tool("t1"), fake_tool("t2"), clock=clock)
    removal = datetime.fromtimestamp(clock.now, UTC)
    gone = Deprecation(removal_at=removal, replacement_tool="t2")
    runtime.registry.deprecate("t1", "1.0.0", gone)
    seen = await runtime.submit(ask("t1"), someone())
    assert seen.code is Code.PERMISSION_DENIED
    text = seen.for_model()
    assert "Use t2." in text
    assert "Do not try again" not in text
    assert "next action: replan" in text


async def test_tool_sees_the_callers_conversation_and_session_also_after_an_approval():
    seen = []

    @tool(effect="external_notification", version="1.0.0", owner="desk", consequence="It is sent.")
    async def send(ctx: Context) -> dict[str, bool]:
        """Send it."""
        seen.append((ctx.conversation_id, ctx.session_id))
        return {"sent": True}

    runtime = runtime_for(send)
    held = ask("send", conversation_id="conv_1", session_id="sess_1")
    assert (await runtime.submit(held, someone())).code is Code.CONFIRMATION_MISSING
    await runtime.approvals.answer(approver())
    assert await Reconciler(runtime).once() == {"executed": 1}
    assert seen == [("conv_1", "sess_1")]
