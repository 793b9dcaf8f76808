"""What an evaluation says: never more than was tried."""

import json
from typing import Annotated
from xml.etree import ElementTree as ET

import pytest
from pydantic import Field

from counterseal import CountersealError, Invariant, tool
from counterseal.evaluation.evaluator import evaluate, subjects_of
from counterseal.evaluation.report import EvaluationReport
from counterseal.testing import fake_tool, runtime_for

Amount = Annotated[int, Field(ge=0, le=100, description="How much.")]


def refund(**declared):
    async def refund(amount: Amount, note: Annotated[str, Field(max_length=9)] = "") -> str:
        """Refund an amount."""
        return "done"

    return tool(**{"effect": "draft", "version": "1.0.0", "owner": "tests", **declared})(refund)


IMPOSSIBLE = Invariant(id="never", rule="Nobody may.", check="call.amount > 1000")


async def test_a_mode_that_does_not_apply_says_why_and_is_not_passed(evaluated):
    cell = (await evaluated(refund(), mode="compensation")).cells[0]
    assert (cell.status, cell.cases) == ("not applicable", ())
    assert cell.reason == "the contract names no compensation tool"


async def test_without_a_good_call_nothing_that_needs_one_is_tried(evaluated):
    report = await evaluated(refund(invariants=[IMPOSSIBLE]))
    assert report.cell("refund", "permissions").status == "not tried"
    assert "Nobody may." in report.cell("refund", "permissions").reason
    assert report.cell("refund", "schema").status == "passed", "bad arguments need none"
    assert report.missing()["refund"] == ["success", "denial", "failure"]


async def test_a_function_that_changes_something_does_not_run_without_leave():
    done = []

    async def pay(amount: Amount) -> str:
        """Pay."""
        done.append(amount)
        return "paid"

    runtime = runtime_for(tool(effect="draft", version="1.0.0", owner="tests")(pay))
    subjects = await subjects_of(runtime, declared={"pay": {"run": "real"}})
    report = await evaluate(subjects)
    assert done == []
    assert report.tools[0].ran == "a stub"
    assert "--allow-effects" in report.tools[0].note


@pytest.mark.parametrize(
    "where",
    [
        {"executed_by": "client", "read_back": fake_tool("find").tool.function},
        {"isolation": "sandbox", "runs_code": True},
    ],
    ids=lambda where: next(iter(where)),
)
async def test_stub_stands_for_a_tool_wherever_that_runs(where):
    runtime = runtime_for()
    runtime.register(refund(**where).contract)
    report = await evaluate(await subjects_of(runtime))
    assert report.cell("refund", "idempotency").status == "passed"
    assert not report.failures


async def test_signature_of_a_tool_that_the_client_carries_out_is_not_run(evaluated):
    found = refund(executed_by="client", read_back=fake_tool("find").tool.function)
    report = await evaluated(found, mode="schema", declared={"refund": {"run": "real"}})
    assert report.tools[0].ran == "a stub"
    assert "The client carries it out" in report.tools[0].note


async def test_a_failure_is_made_shorter(evaluated):
    broken = fake_tool(
        "broken",
        7,
        input_schema=refund().contract.affordance.input_schema,
        output_schema={"type": "object", "required": ["x"], "properties": {"x": {}}},
    )
    declared = {"broken": {"run": "real", "arguments": {"amount": 4, "note": "long"}}}
    report = await evaluated(broken, declared=declared, mode="schema")
    (failure,) = [case for _, case in report.failures]
    assert failure.arguments == {"amount": 4}


async def test_a_recorded_output_stands_for_the_function(evaluated, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "good.yaml"
    file.write_text("arguments: {amount: 5}\noutput: {result: recorded}\n")
    report = await evaluated(refund(), declared={"refund": {"fixture": "good.yaml"}})
    assert report.ok
    assert (report.tools[0].ran, report.tools[0].arguments) == ("a recorded output", "declared")
    file.write_text("arguments: {amount: 5}\nmore: 1\n")
    with pytest.raises(CountersealError, match="must be a mapping with arguments"):
        await evaluated(refund(), declared={"refund": {"fixture": "good.yaml"}})


async def test_unknown_names_are_refused(evaluated):
    with pytest.raises(CountersealError, match="not a tool for agents here; they are: refund"):
        await evaluated(refund(), only="refunds")
    with pytest.raises(CountersealError, match="there is no tool of this name"):
        await evaluated(refund(), declared={"refunds": {}})


async def test_all_forms_say_the_same(evaluated, tmp_path):
    report = await evaluated(fake_tool("quote"), mode="drift")
    bad = await evaluated(
        fake_tool("quote", {"price": "x"}, output_schema={"required": ["y"], "type": "object"}),
        mode="observation",
        declared={"quote": {"run": "real"}},
    )
    for one in (report, bad):
        root = ET.fromstring(one.junit())
        counts = one.summary()
        assert int(root[0].get("failures")) == counts["failed"] == len(one.failures)
        assert len(root.findall(".//testcase")) == counts["cases"]
        assert f"{counts['passed']} of {counts['cases']} cases passed" in one.markdown()
        file = tmp_path / "report.json"
        file.write_text(json.dumps(one.record()))
        assert EvaluationReport.read(file) == one
    assert not bad.ok


async def test_what_is_tried_is_the_same_every_time():
    async def names():
        subjects = await subjects_of(runtime_for(refund()))
        report = await evaluate(subjects)
        return [(cell.mode, case.name, case.status) for cell in report.cells for case in cell.cases]

    assert await names() == await names()
