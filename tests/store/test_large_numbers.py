"""Numbers from 2^53 on, in and out of every store: the held call, its approval, and its replay."""

import pytest

from counterseal import Proposal
from counterseal.codes import Code
from counterseal.testing import approver, fake_tool, runtime_for, someone

VALUE = {
    "type": "object",
    "properties": {"value": {"type": "number", "description": "A value."}},
    "required": ["value"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("text", ["5.972e24", "10000000000000000", "-9007199254740993", "1e308"])
async def test_call_that_was_held_with_a_large_number_is_executed_and_repeated(store, text):
    tool = fake_tool(
        "weigh",
        lambda value: {"value": value},
        effect="external_notification",
        input_schema=VALUE,
        output_schema=VALUE,
        consequence="{value} is weighed.",
        approval={"then": "resubmit"},
        state_effects=[{"key": "weight"}],
    )
    runtime = runtime_for(tool, store=store)
    proposal = Proposal(tool="weigh", arguments=f'{{"value": {text}}}', run_id="run_1", key="k")
    assert (await runtime.submit(proposal, someone())).code is Code.CONFIRMATION_MISSING
    assert await runtime.approvals.answer(approver()) == 1
    for _ in range(2):
        answer = await runtime.submit(proposal, someone())
        assert answer.code is Code.SUCCESS
        assert answer.data == {"value": float(text)}
    assert tool.calls == [{"value": float(text)}]
    run = await store.find_run("acme", "run_1")
    assert run.state["weight"] == {"value": float(text)}
