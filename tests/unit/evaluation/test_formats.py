"""Formats: trajectories of other programs come in, reports go out."""

import csv
import io
import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from counterseal.evaluation.formats import READERS, WRITERS, FormatError, read_trajectories
from counterseal.evaluation.scores import MEASURES, Score
from counterseal.evaluation.trajectories import AgentCall, Trajectory
from counterseal.evaluation.trials import ScenarioReport, Trial

SAMPLES = Path(__file__).parent / "samples"
USES = (
    AgentCall(tool="get_order", arguments={"order_id": "o_1"}, id="c1", answer="paid"),
    AgentCall(tool="refund", arguments={"order_id": "o_1", "cents": 500}, id="c2", answer="ok"),
)


def known(trajectory):
    """What every program says of a use."""
    return [(use.tool, use.arguments, use.id, use.answer) for use in trajectory.uses]


def report(*passed):
    uses = (
        AgentCall(tool="get_order", arguments={"a": 1}, id="c1", code="SUCCESS", latency_ms=3),
        AgentCall(tool="refund", arguments={"b": 2}, id="c2", code="OUT_OF_BOUNDS", gate="schema"),
    )
    trials = []
    for number, good in enumerate(passed, 1):
        score = Score(
            passed=good, wrong=() if good else ("=it failed\x07",), shares={"selection": (1, 2)}
        )
        trajectory = Trajectory(
            name="one", objective="Pay.", uses=uses, words="Done.", started_at=1.7e9 + number
        )
        trials.append(Trial(scenario="one", number=number, score=score, trajectory=trajectory))
    return ScenarioReport(
        label="a",
        agent="a.py:f",
        wording="as declared",
        contracts={},
        policy="p",
        trials=(*trials,),
    )


# --- in -------------------------------------------------------------------------------------------


def test_chat_messages_of_openai_are_read():
    calls = [
        {
            "id": use.id,
            "type": "function",
            "function": {"name": use.tool, "arguments": json.dumps(use.arguments)},
        }
        for use in USES
    ]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Pay o_1 back."}]},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": use.id, "content": use.answer} for use in USES),
        {"role": "assistant", "content": "Done."},
    ]
    (one,) = READERS["openai"](messages)
    assert (one.objective, one.words, known(one)) == (
        "Pay o_1 back.",
        "Done.",
        known(Trajectory(name="", uses=USES)),
    )
    named = READERS["openai"]([{"name": "a", "messages": messages}, {"id": 7, "messages": []}])
    assert [each.name for each in named] == ["a", "7"]


def test_items_of_the_responses_api_are_read():
    items = [
        {"role": "user", "content": "Pay o_1 back."},
        {"type": "function_call", "call_id": "c1", "name": "get_order", "arguments": "{oops"},
        {"type": "function_call_output", "call_id": "c1", "output": "paid"},
    ]
    (one,) = READERS["openai"](items)
    assert known(one) == [("get_order", "{oops", "c1", "paid")]


def test_messages_of_anthropic_are_read():
    blocks = [
        {"type": "tool_use", "id": use.id, "name": use.tool, "input": use.arguments} for use in USES
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "c1", "content": "paid"},
        {
            "type": "tool_result",
            "tool_use_id": "c2",
            "content": [{"type": "text", "text": "ok"}],
        },
    ]
    messages = [
        {"role": "user", "content": "Pay o_1 back."},
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, *blocks]},
        {"role": "user", "content": results},
        {"role": "assistant", "content": [{"type": "text", "text": "Done."}]},
    ]
    (one,) = READERS["anthropic"](messages)
    assert known(one) == known(Trajectory(name="", uses=USES))
    assert (one.objective, one.words) == ("Pay o_1 back.", "Done.")


def test_spans_of_the_real_sdk_are_read():
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("invoke_agent") as agent:
        agent.set_attribute("gen_ai.request.model", "m-1")
        agent.set_attribute("gen_ai.usage.input_tokens", 30)
        for use in USES:
            with tracer.start_as_current_span(f"execute_tool {use.tool}") as span:
                span.set_attribute("gen_ai.operation.name", "execute_tool")
                span.set_attribute("gen_ai.tool.name", use.tool)
                span.set_attribute("gen_ai.tool.call.id", use.id)
                span.set_attribute("gen_ai.tool.call.arguments", json.dumps(use.arguments))
                span.set_attribute("gen_ai.tool.call.result", use.answer)
    spans = [json.loads(span.to_json()) for span in exporter.get_finished_spans()]
    (one,) = READERS["otel"](spans)
    assert known(one) == known(Trajectory(name="", uses=USES))
    assert (one.model, one.tokens) == ("m-1", 30)
    assert one.name == spans[0]["context"]["trace_id"]


def test_runs_that_the_library_of_langsmith_made_are_read():
    (one,) = read_trajectories(SAMPLES / "langsmith.json", "langsmith")
    assert one.name == "one"
    assert (one.objective, one.words) == ("Pay o_1 back.", "Done.")
    assert [(use.tool, use.arguments) for use in one.uses] == [
        ("get_order", {"order_id": "o_1"}),
        ("refund", {"order_id": "o_1", "cents": 500}),
    ]
    assert [use.answer for use in one.uses] == ["paid", "ValueError('no')"]


def test_log_that_inspect_made_is_read():
    (one,) = read_trajectories(SAMPLES / "inspect.json", "inspect")
    assert (one.name, one.model, one.tokens) == ("mail", "mockllm/model", 45)
    assert [(use.tool, use.arguments["to"], use.answer) for use in one.uses] == [
        ("send_mail", "x", "no"),
        ("send_mail", "a@example.org", "sent to a@example.org"),
    ]
    assert one.facts == {"scores": {"includes": "C"}}


def test_sample_of_inspect_that_was_not_scored_is_read(tmp_path):
    log = json.loads((SAMPLES / "inspect.json").read_text("utf-8"))
    del log["samples"][0]["scores"]
    (tmp_path / "log.json").write_text(json.dumps(log), "utf-8")
    (one,) = read_trajectories(tmp_path / "log.json", "inspect")
    assert one.facts == {"scores": {}}


def test_results_of_tau2_are_read_without_the_users_own_calls():
    call = {"id": "c1", "name": "get_order", "arguments": {"order_id": "o_1"}}
    theirs = {**call, "id": "c2", "requestor": "user"}
    answer = {"role": "tool", "id": "c1", "content": "paid", "requestor": "assistant"}
    simulation = {
        "task_id": "7",
        "trial": 1,
        "duration": 2.5,
        "termination_reason": "user_stop",
        "reward_info": {"reward": 1.0},
        "messages": [
            {"role": "user", "content": "Hello.", "tool_calls": [theirs]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_messages": [answer]},
            {"role": "assistant", "content": "It is paid."},
        ],
    }
    data = {
        "info": {"agent_info": {"llm": "m-1"}},
        "tasks": [{"id": "7", "user_scenario": {"instructions": {"reason_for_call": "Why?"}}}],
        "simulations": [simulation],
    }
    (one,) = READERS["tau2"](data)
    assert known(one) == [("get_order", {"order_id": "o_1"}, "c1", "paid")]
    assert (one.name, one.objective, one.model, one.words) == ("7", "Why?", "m-1", "It is paid.")
    assert (one.facts["reward"], one.duration_ms) == (1.0, 2500)


@pytest.mark.parametrize("form", READERS)
@pytest.mark.parametrize("text", ["{}", "[]", "[1]", '"x"', "{", "1\n2", '{"samples": 1}'])
def test_other_files_are_refused_with_a_reason(tmp_path, form, text):
    (tmp_path / "wrong.json").write_text(text)
    with pytest.raises(FormatError, match=rf"wrong.json .*{form}"):
        read_trajectories(tmp_path / "wrong.json", form)


def test_unreadable_files_are_refused(tmp_path):
    with pytest.raises(FormatError, match="can't read"):
        read_trajectories(tmp_path / "none.json")
    (tmp_path / "log.eval").write_bytes(b"PK\xff\xfe")
    with pytest.raises(FormatError, match="is read as JSON"):
        read_trajectories(tmp_path / "log.eval", "inspect")


# --- out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", sorted(set(READERS) & set(WRITERS)))
def test_what_is_written_is_read_again(tmp_path, form):
    file = tmp_path / "out.json"
    file.write_text(WRITERS[form]([report(True, False)]))
    first, second = read_trajectories(file, form)
    assert first.name == second.name == "one"
    assert first.objective == "Pay."
    assert [(use.tool, use.arguments) for use in first.uses] == [
        ("get_order", {"a": 1}),
        ("refund", {"b": 2}),
    ]


def test_junit_names_every_trial_and_why_it_failed():
    root = ET.fromstring(WRITERS["junit"]([report(True, False)]))
    (suite,) = root
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [case.get("name") for case in suite] == ["trial 1", "trial 2"]
    assert suite[1][0].get("message") == "=it failed\\x07"


def test_csv_has_a_row_for_each_trial_and_no_formula():
    rows = list(csv.DictReader(io.StringIO(WRITERS["csv"]([report(True, False)]))))
    assert [row["passed"] for row in rows] == ["True", "False"]
    assert rows[1]["wrong"].startswith("'=")
    assert (rows[0]["selection"], rows[0]["selection_of"]) == ("1", "2")
    assert {*MEASURES} <= {*rows[0]}


def test_spans_that_are_written_say_what_was_refused():
    data = json.loads(WRITERS["otel"]([report(False)]))
    root, first, second = data["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert first["parentSpanId"] == second["parentSpanId"] == root["spanId"]
    assert len(root["traceId"]) == 32
    attributes = {one["key"]: one["value"] for one in second["attributes"]}
    assert attributes["counterseal.tool.error_code"] == {"stringValue": "OUT_OF_BOUNDS"}
    assert (root["status"], first["status"], second["status"]) == ({"code": 2}, {}, {"code": 2})
