"""One span a call, as the SDK's own exporter sees it."""

import asyncio
import subprocess
import sys
import textwrap

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode

from counterseal import Grant, Proposal
from counterseal.contract.invariants import Invariant
from counterseal.contract.model import Contract
from counterseal.ledger.records import Budgets, HeldStatus
from counterseal.telemetry import Telemetry
from counterseal.testing import FakeClock, FakeTool, fake_tool, runtime_for, someone

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SCHEMA = {
    "type": "object",
    "properties": {
        "case_id": {"type": "string", "maxLength": 30, "description": "The case."},
        "note": {"type": "string", "maxLength": 30, "description": "A note."},
    },
    "additionalProperties": False,
}
SECRET = "hunter2-the-value"


def ask(tool="look_up", arguments=None, **more):
    more.setdefault("run_id", "run_1")
    return Proposal(tool=tool, arguments={} if arguments is None else arguments, **more)


class Spans:
    """What was exported since it was looked at last."""

    def __init__(self, exporter):
        self._exporter = exporter

    async def of(self, submitted):
        """An observation, and the one span of its call."""
        self._exporter.clear()
        seen = await submitted
        (span,) = await self.all()
        return seen, span

    async def all(self):
        await asyncio.sleep(0)  # spans are built when the answer is out
        return self._exporter.get_finished_spans()


@pytest.fixture
def provider(monkeypatch):
    """An SDK, for as long as the test runs: the API itself lets one be set only once."""
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield provider
    provider.shutdown()


@pytest.fixture
def spans(provider):
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Spans(exporter)


def trace_of(span):
    return f"{span.context.trace_id:032x}"


# --- what a span tells ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "method"), [("resource", "resources/read"), ("prompt", "prompts/get")]
)
async def test_a_resource_or_prompt_of_an_upstream_executes_no_tool(spans, kind, method):
    made = fake_tool()
    contract = Contract.model_validate(
        {**made.contract.record(), "mcp": {"server": "up", "kind": kind}}
    )
    runtime = runtime_for(FakeTool(contract, ({"ok": True},)))
    seen, span = await spans.of(runtime.submit(ask(), someone()))
    assert span.name == f"{method} look_up"
    assert span.attributes["mcp.method.name"] == method
    assert span.attributes["counterseal.call.id"] == seen.call_id
    assert not [name for name in span.attributes if name.startswith("gen_ai.")]


async def test_a_call_is_one_span_with_the_conventional_names(spans):
    runtime = runtime_for(fake_tool())
    seen, span = await spans.of(runtime.submit(ask(), someone()))
    assert span.name == "execute_tool look_up"
    assert span.kind is SpanKind.INTERNAL
    assert span.status.status_code is StatusCode.UNSET
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look_up",
        "gen_ai.tool.call.id": seen.call_id,
        "gen_ai.tool.type": "function",
        "counterseal.call.id": seen.call_id,
        "counterseal.tool.version": "1.0.0",
        "counterseal.tool.side_effect_class": "READ_ONLY",
        "counterseal.tool.validation.status": "passed",
        "counterseal.tool.retryable": False,
        "counterseal.tool.repairable": False,
        "counterseal.tool.idempotency_hit": False,
        "counterseal.tenant.id": "acme",
        "counterseal.trace.id": seen.trace_id,
        "counterseal.trace.replayable": True,
    }


# Every row of the attribute table that tool spans are required to have, and where it stands.
TABLE = {
    "gen_ai.operation.name": "gen_ai.operation.name",
    "tool.name": "gen_ai.tool.name",
    "tool.version": "counterseal.tool.version",
    "tool.call_id": "counterseal.call.id",
    "tool.side_effect_class": "counterseal.tool.side_effect_class",
    "tool.validation.status": "counterseal.tool.validation.status",
    "tool.error_code": "counterseal.tool.error_code",
    "tool.retryable": "counterseal.tool.retryable",
    "tool.repairable": "counterseal.tool.repairable",
    "tool.idempotency_key_hash": "counterseal.tool.idempotency_key_hash",
    "tool.approval_id": "counterseal.tool.approval_id",
    "tenant.id": "counterseal.tenant.id",
    "trace.replayable": "counterseal.trace.replayable",
}


@pytest.mark.parametrize("row", TABLE)
async def test_a_held_call_shows_every_row_of_the_attribute_table(spans, row):
    runtime = runtime_for(fake_tool("send", effect="external_notification"))
    own = {"workflow_id": "wf_1", "conversation_id": "conv_1", "session_id": "session_1"}
    proposal = ask("send", call_id="call_7", **own)
    seen, span = await spans.of(runtime.submit(proposal, someone()))
    assert span.attributes["gen_ai.tool.call.id"] == seen.caller_call_id == "call_7"
    belongs = ("counterseal.workflow.id", "gen_ai.conversation.id", "session.id")
    assert [span.attributes[name] for name in belongs] == list(own.values())
    told = span.attributes[TABLE[row]]
    expected = {
        "tool.name": "send",
        "tool.call_id": seen.call_id,
        "tool.side_effect_class": "HIGH_RISK_EXTERNAL",
        "tool.validation.status": "approval_pending",
        "tool.error_code": "CONFIRMATION_MISSING",
        "tool.approval_id": seen.approval_id,
        "tenant.id": "acme",
    }
    assert told == expected.get(row, told)
    assert told not in ("", None)


async def test_a_failed_call_is_an_error_by_its_code(spans):
    runtime = runtime_for(fake_tool("look_up", ConnectionError(SECRET), max_retries=0))
    seen, span = await spans.of(runtime.submit(ask(), someone()))
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == seen.code.value == "DEPENDENCY_UNAVAILABLE"
    assert span.attributes["counterseal.tool.error_code"] == "DEPENDENCY_UNAVAILABLE"
    assert span.attributes["counterseal.tool.retryable"] is True
    assert span.attributes["counterseal.tool.validation.status"] == "passed"


@pytest.mark.parametrize(
    ("arguments", "replayable"),
    [
        ({}, True),
        ("{", True),  # the text is kept, and refused again
        (b"\xff", False),  # no text
        ({"note": "token ghp_" + "a1B2" * 9}, False),  # redacted
        ("[" + " " * 9000, False),  # cut
    ],
)
async def test_a_call_can_be_replayed_if_all_that_its_decision_needed_is_kept(
    spans, arguments, replayable
):
    runtime = runtime_for(fake_tool())
    _, span = await spans.of(runtime.submit(ask(arguments=arguments), someone()))
    assert span.attributes["counterseal.trace.replayable"] is replayable


async def test_a_call_whose_arguments_are_not_kept_can_not_be_replayed(spans):
    runtime = runtime_for(fake_tool(keep_arguments_days=0))
    _, span = await spans.of(runtime.submit(ask(), someone()))
    assert span.attributes["counterseal.trace.replayable"] is False


async def test_a_span_lasts_as_long_as_the_call_by_the_runtimes_clock(spans):
    clock = FakeClock()
    runtime = runtime_for(fake_tool(), clock=clock)
    _, span = await spans.of(runtime.submit(ask(), someone()))
    assert span.start_time == int(clock.now * 1e9)
    assert span.start_time <= span.end_time < span.start_time + 60e9


# --- validation status ----------------------------------------------------------------------------

CORRECT = Invariant(id="N", rule="A note.", check="has(call.note)", correct={"set": {"note": "x"}})
REJECT = Invariant(id="N", rule="A note.", check="has(call.note)")

STATUSES = {
    "passed": (fake_tool, {}, "passed"),
    "parse": (fake_tool, {"arguments": "{"}, "failed"),
    "schema": (fake_tool, {"arguments": {"x": 1}}, "failed"),
    "semantics": (lambda **o: fake_tool(invariants=[REJECT], **o), {}, "failed"),
    "corrected": (lambda **o: fake_tool(invariants=[CORRECT], **o), {}, "repaired"),
    "unknown tool": (fake_tool, {"tool": "nothing"}, "failed"),
    "state": (lambda **o: fake_tool(probe=lambda: None, **o), {}, "blocked"),
    "held": (lambda **o: fake_tool(effect="external_notification", **o), {}, "approval_pending"),
    "corrected and held": (
        lambda **o: fake_tool(effect="external_notification", invariants=[CORRECT], **o),
        {},
        "approval_pending",
    ),
}


@pytest.mark.parametrize("name", STATUSES)
async def test_the_status_says_what_became_of_the_proposal(spans, name):
    made, proposed, status = STATUSES[name]
    runtime = runtime_for(made(input_schema=SCHEMA))
    _, span = await spans.of(runtime.submit(ask(**proposed), someone()))
    assert span.attributes["counterseal.tool.validation.status"] == status


async def test_a_caller_without_authority_is_blocked(spans):
    runtime = runtime_for(fake_tool())
    seen, span = await spans.of(runtime.submit(ask(), someone(agent="stranger")))
    assert span.attributes["counterseal.tool.validation.status"] == "blocked"
    assert span.attributes["error.type"] == seen.code.value == "PERMISSION_DENIED"


async def test_a_spent_budget_blocks(spans):
    runtime = runtime_for(fake_tool())
    await runtime.run(someone(), "run_1", budgets=Budgets(reads=0))
    _, span = await spans.of(runtime.submit(ask(), someone()))
    assert span.attributes["counterseal.tool.validation.status"] == "blocked"


async def test_an_approved_call_passes_and_names_its_approval(spans):
    runtime = runtime_for(fake_tool("send", effect="external_notification"))
    held, _ = await spans.of(runtime.submit(ask("send"), someone()))
    await runtime.store.decide("acme", held.approval_id, HeldStatus.APPROVED, [])
    seen, span = await spans.of(runtime.submit(ask("send"), someone()))
    assert seen.ok
    assert span.attributes["counterseal.tool.validation.status"] == "passed"
    assert span.attributes["counterseal.tool.approval_id"] == held.approval_id


async def test_a_replay_is_a_span_of_its_own_that_says_so(spans):
    runtime = runtime_for(fake_tool("save", effect="draft"))
    _, first = await spans.of(runtime.submit(ask("save"), someone()))
    _, second = await spans.of(runtime.submit(ask("save"), someone()))
    hits = [span.attributes["counterseal.tool.idempotency_hit"] for span in (first, second)]
    assert hits == [False, True]
    hashes = {span.attributes["counterseal.tool.idempotency_key_hash"] for span in (first, second)}
    assert len(hashes) == 1


async def test_many_calls_at_once_are_as_many_spans(spans):
    runtime = runtime_for(fake_tool())
    seen = await asyncio.gather(*(runtime.submit(ask(), someone()) for _ in range(20)))
    told = {span.attributes["gen_ai.tool.call.id"]: trace_of(span) for span in await spans.all()}
    assert told == {one.call_id: one.trace_id for one in seen}


async def test_a_call_that_is_decided_anew_is_still_one_span(spans):
    runtime = runtime_for()
    moved = []

    def probe():
        if not moved:
            moved.append(runtime.registry.kill(tool="elsewhere", reason="a change in between"))
        return {"version": 1}

    runtime.register(fake_tool("elsewhere").tool)
    tool = fake_tool("look_up", probe=probe)
    runtime.register(tool.tool, grants=[Grant(agent="agent", tool="look_up")])
    seen, span = await spans.of(runtime.submit(ask(), someone()))
    assert seen.ok
    assert moved
    assert trace_of(span) == seen.trace_id
    assert span.attributes["gen_ai.tool.call.id"] == seen.call_id


# --- context --------------------------------------------------------------------------------------


async def test_a_call_belongs_to_the_callers_current_span(spans, provider):
    runtime = runtime_for(fake_tool())
    with provider.get_tracer("agent").start_as_current_span("chat") as chat:
        seen = await runtime.submit(ask(), someone())
    span = next(one for one in await spans.all() if one.name.startswith("execute_tool"))
    assert span.parent.span_id == chat.get_span_context().span_id
    assert trace_of(span) == seen.trace_id == f"{chat.get_span_context().trace_id:032x}"


async def test_a_call_belongs_to_the_trace_that_came_with_it(spans, provider):
    runtime = runtime_for(fake_tool())
    proposal = ask(trace=f"00-{TRACE}-{PARENT}-01")
    with provider.get_tracer("agent").start_as_current_span("another"):
        seen = await runtime.submit(proposal, someone())
    span = next(one for one in await spans.all() if one.name.startswith("execute_tool"))
    assert trace_of(span) == seen.trace_id == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    assert span.parent.is_remote


async def test_a_call_without_a_caller_has_the_trace_that_the_agent_was_told(spans):
    runtime = runtime_for(fake_tool())
    first, one = await spans.of(runtime.submit(ask(), someone()))
    second, two = await spans.of(runtime.submit(ask(), someone()))
    assert (trace_of(one), trace_of(two)) == (first.trace_id, second.trace_id)
    assert first.trace_id != second.trace_id


async def test_events_and_span_of_a_call_are_of_one_trace(spans):
    runtime = runtime_for(fake_tool("save", effect="draft"))
    seen, span = await spans.of(runtime.submit(ask("save"), someone()))
    events = await runtime.store.events("acme", call_id=seen.call_id)
    assert {event.caller.trace_id for _, event in events} == {trace_of(span)}


async def test_a_caller_who_does_not_sample_gets_no_span(monkeypatch):
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=ParentBased(ALWAYS_OFF), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    runtime = runtime_for(fake_tool())
    seen = await runtime.submit(ask(trace=f"00-{TRACE}-{PARENT}-00"), someone())
    await asyncio.sleep(0)
    assert exporter.get_finished_spans() == ()
    assert seen.trace_id == TRACE


async def test_the_span_is_no_part_of_what_the_tool_sees(spans):
    inside = []
    tool = fake_tool("look_up", lambda: inside.append(trace.get_current_span()) or {})
    await spans.of(runtime_for(tool).submit(ask(), someone()))
    assert not inside[0].get_span_context().is_valid


# --- what it must not tell ------------------------------------------------------------------------


async def test_no_argument_output_message_or_key_is_in_a_span(spans):
    calls = [
        (fake_tool("save", {"note": SECRET}, effect="draft", input_schema=SCHEMA), "save"),
        (fake_tool("save", RuntimeError(SECRET), effect="draft", input_schema=SCHEMA), "save"),
        (fake_tool("save", effect="draft", business_key=["note"], input_schema=SCHEMA), "save"),
    ]
    for tool, name in calls:
        for more in ({}, {"key": SECRET}, {"operation_id": SECRET}, {"approval": SECRET}):
            proposal = ask(name, {"note": SECRET}, **more)
            seen, span = await spans.of(runtime_for(tool).submit(proposal, someone()))
            assert "counterseal.tool.idempotency_key_hash" in span.attributes
            assert SECRET not in span.to_json()
            assert seen.call_id in span.to_json()


async def test_a_misfit_is_not_quoted_in_a_span(spans):
    runtime = runtime_for(fake_tool(input_schema=SCHEMA))
    for arguments in (f'{{"note": "{SECRET}', {"note": [SECRET]}, {SECRET: 1}):
        _, span = await spans.of(runtime.submit(ask(arguments=arguments), someone()))
        assert SECRET not in span.to_json()


async def test_a_key_is_told_by_a_fingerprint_that_differs_by_tenant(spans):
    runtime = runtime_for(fake_tool("save", effect="draft"))
    told = {}
    for tenant in ("acme", "other"):
        proposal = ask("save", key="order-1")
        _, span = await spans.of(runtime.submit(proposal, someone(tenant=tenant)))
        told[tenant] = span.attributes["counterseal.tool.idempotency_key_hash"]
    assert told["acme"] != told["other"]
    assert not any("order-1" in shown for shown in told.values())


def test_a_fingerprint_can_not_be_made_without_the_key():
    one, same, other = Telemetry(b"k" * 32), Telemetry(b"k" * 32), Telemetry()
    assert one.fingerprint("acme", "order-1") == same.fingerprint("acme", "order-1")
    assert one.fingerprint("acme", "order-1") != other.fingerprint("acme", "order-1")
    assert one.fingerprint("acme", "order-1") != one.fingerprint("acme", "order-2")


# --- when nobody listens --------------------------------------------------------------------------


@pytest.mark.parametrize("nobody", [None, NoOpTracerProvider()])
async def test_no_span_is_made_without_an_sdk(monkeypatch, nobody):
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", nobody)
    emitted = []
    monkeypatch.setattr(Telemetry, "emit", lambda *finished: emitted.append(finished))
    assert not Telemetry().listening
    seen = await runtime_for(fake_tool()).submit(ask(), someone())
    assert len(seen.trace_id) == 32
    assert emitted == []


async def test_the_trace_of_the_caller_is_kept_without_an_sdk():
    runtime = runtime_for(fake_tool())
    seen = await runtime.submit(ask(trace=f"00-{TRACE}-{PARENT}-01"), someone())
    assert seen.trace_id == TRACE


@pytest.mark.parametrize(
    "trace_parent",
    ["", "garbage", f"00-{TRACE.upper()}-{PARENT}-01", f"00-{TRACE[1:]}-{PARENT}-01"],
)
async def test_a_trace_that_is_none_is_replaced_by_a_new_one(trace_parent):
    runtime = runtime_for(fake_tool())
    seen = await runtime.submit(ask(trace=trace_parent), someone())
    assert len(seen.trace_id) == 32
    assert set(seen.trace_id) <= set("0123456789abcdef")
    assert seen.trace_id != TRACE


def run(program):
    """A program in a process of its own, where nobody else has touched OpenTelemetry."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.slow
def test_the_core_neither_needs_nor_loads_an_sdk():
    told = run("""
        import asyncio, sys
        from counterseal import Proposal
        from counterseal.testing import fake_tool, runtime_for, someone
        runtime = runtime_for(fake_tool())
        seen = asyncio.run(runtime.submit(Proposal(tool="look_up", arguments={}), someone()))
        print(seen.code, runtime.telemetry.listening, "opentelemetry.sdk" in sys.modules)
    """)
    assert told == ["SUCCESS", "False", "False"]


@pytest.mark.slow
def test_the_last_span_of_a_program_is_not_lost():
    told = run("""
        import asyncio
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        from counterseal import Proposal
        from counterseal.testing import fake_tool, runtime_for, someone
        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
        runtime = runtime_for(fake_tool())
        asyncio.run(runtime.submit(Proposal(tool="look_up", arguments={}), someone()))
        print(*(span.name.replace(" ", "_") for span in exporter.get_finished_spans()))
    """)
    assert told == ["execute_tool_look_up"]
