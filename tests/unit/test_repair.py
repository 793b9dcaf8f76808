"""The repair loop: whom it asks, when it ends, and what a model can't choose."""

import asyncio
from types import SimpleNamespace

import pytest

from counterseal.codes import FAILURES, FINAL, RESPONSES, Code, Path
from counterseal.proposal import Proposal
from counterseal.repair import Attempt, RepairLoop
from counterseal.testing import fake_tool, runtime_for, someone

NUMBER = {
    "type": "object",
    "properties": {"n": {"type": "integer", "description": "A number."}},
    "required": ["n"],
    "additionalProperties": False,
}


def first(arguments=None, **more):
    return Proposal(tool="look_up", arguments=arguments or {"n": "a"}, run_id="run_1", **more)


def model(*answers):
    """A model that says these one after the other, and keeps what it was fed."""
    left = list(answers)

    async def say(feedback):
        say.fed.append(feedback)
        return left.pop(0)

    say.fed = []
    return say


async def test_a_proposal_that_is_right_asks_no_model():
    says = model()
    end = await RepairLoop(says).run(
        runtime_for(fake_tool(input_schema=NUMBER)), first({"n": 1}), someone()
    )
    assert (end.ok, end.attempts, end.stopped, says.fed) == (True, 1, None, [])


async def test_hooks_see_every_refusal_and_the_end_once():
    refused, ended = [], []
    loop = RepairLoop(
        model({"arguments": {}}, {"arguments": {"n": 1}}),
        on_refusal=refused.append,
        on_end=ended.append,
    )
    end = await loop.run(runtime_for(fake_tool(input_schema=NUMBER)), first(), someone())
    assert all(isinstance(one, Attempt) for one in refused)
    assert [(one.number, one.observation.code) for one in refused] == [
        (1, Code.TYPE_MISMATCH),
        (2, Code.STRUCTURAL_VIOLATION),
    ]
    assert [one.proposal.arguments for one in refused] == [{"n": "a"}, {}]
    assert ended == [end]
    assert (end.attempts, end.proposal.arguments) == (3, {"n": 1})


@pytest.mark.parametrize("attempts", [1, 2, 3])
async def test_no_more_is_submitted_than_allowed(attempts):
    made = fake_tool(input_schema=NUMBER)
    says = model(*({"arguments": {name: 1}} for name in "abcdef"))
    end = await RepairLoop(says, attempts=attempts).run(runtime_for(made), first(), someone())
    assert (end.attempts, end.stopped) == (attempts, "attempts")
    assert (len(says.fed), made.calls) == (attempts - 1, [])


def test_at_least_one_proposal_is_submitted():
    with pytest.raises(ValueError, match="attempts"):
        RepairLoop(model(), attempts=0)


async def test_a_model_that_gives_up_ends_the_loop():
    runtime = runtime_for(fake_tool(input_schema=NUMBER))
    end = await RepairLoop(model(None)).run(runtime, first(), someone())
    assert (end.ok, end.attempts, end.stopped) == (False, 1, "model")


@pytest.mark.parametrize(
    "answer",
    [
        {"arguments": {"n": 1}},
        {"tool": "look_up", "arguments": '{"n": 1}'},
        Proposal(tool="look_up", arguments={"n": 1}),
    ],
)
async def test_a_model_may_answer_in_several_forms(answer):
    made = fake_tool(input_schema=NUMBER)
    assert (await RepairLoop(model(answer)).run(runtime_for(made), first(), someone())).ok
    assert made.calls == [{"n": 1}]


CALLS = {
    "openai chat": {
        "id": "call_9",
        "type": "function",
        "function": {"name": "look_up", "arguments": '{"n": 1}'},
    },
    "openai responses": {
        "type": "function_call",
        "call_id": "call_9",
        "name": "look_up",
        "arguments": '{"n": 1}',
    },
    "anthropic": {"type": "tool_use", "id": "call_9", "name": "look_up", "input": {"n": 1}},
    "mcp": {"name": "look_up", "arguments": {"n": 1}},
    "an sdk's object": SimpleNamespace(type="tool_use", name="look_up", input={"n": 1}),
}


@pytest.mark.parametrize("form", CALLS)
async def test_a_providers_tool_call_is_taken_as_it_is(form):
    made = fake_tool(input_schema=NUMBER)
    end = await RepairLoop(model(CALLS[form])).run(runtime_for(made), first(), someone())
    assert (end.ok, made.calls) == (True, [{"n": 1}])
    assert end.observation.call_id != "call_9", "a call id is not the model's to choose"


NO_PROPOSALS = [
    7,
    "again",
    ["look_up"],
    [{"arguments": {"n": 1}}],
    {},
    {"tool": "look_up"},
    {"tool": None},
    {"n": 1},
    {"arguments": {"n": 1}, "why": "so"},
    {"name": "look_up"},
    {"function": {"name": "look_up"}},
    {"function": "look_up", "arguments": {"n": 1}},
    {"type": "tool_use", "name": "", "input": {"n": 1}},
    {"role": "assistant", "content": "I am sorry."},
]


@pytest.mark.parametrize("answer", NO_PROPOSALS)
async def test_what_a_model_did_not_propose_is_never_submitted(answer):
    made = fake_tool()  # which takes no arguments, so that nothing would be executed gladly
    other = fake_tool("other", input_schema=NUMBER)
    asked = Proposal(tool="other", arguments={"n": "a"}, run_id="run_1")
    says = model(answer, answer, {"arguments": {"n": 2}})
    end = await RepairLoop(says).run(runtime_for(made, other), asked, someone())
    assert (end.ok, end.attempts, made.calls, other.calls) == (True, 2, [], [{"n": 2}])
    told, *noted = says.fed
    assert "note" not in told
    for feedback in noted:
        assert feedback.pop("note").startswith("The last answer was not a proposal")
        assert feedback == told


@pytest.mark.parametrize("attempts", [1, 2, 5])
async def test_answers_that_are_no_proposals_use_up_the_attempts(attempts):
    ended, says = [], model(*["again"] * 9)
    loop = RepairLoop(says, attempts=attempts, on_end=ended.append)
    end = await loop.run(runtime_for(fake_tool(input_schema=NUMBER)), first(), someone())
    assert (end.attempts, len(says.fed)) == (1, attempts - 1)
    assert end.stopped == ("attempts" if attempts == 1 else "model")
    assert ended == [end]


async def test_a_model_that_raises_ends_the_loop_and_its_driver_sees_why():
    ended = []

    async def broken(feedback):
        raise ConnectionError("no model there")

    loop = RepairLoop(broken, on_end=ended.append)
    with pytest.raises(ConnectionError, match="no model there"):
        await loop.run(runtime_for(fake_tool(input_schema=NUMBER)), first(), someone())
    (end,) = ended
    assert (end.ok, end.stopped, end.attempts) == (False, "model", 1)


async def test_a_model_has_only_so_long_to_answer():
    ended = []

    async def silent(feedback):
        await asyncio.Event().wait()

    loop = RepairLoop(silent, seconds=0.01, on_end=ended.append)
    end = await loop.run(runtime_for(fake_tool(input_schema=NUMBER)), first(), someone())
    assert (end.ok, end.stopped, ended) == (False, "model", [end])


async def test_a_timeout_of_the_models_own_is_an_error_like_any_other():
    async def slow(feedback):
        raise TimeoutError("the provider's")

    loop = RepairLoop(slow, seconds=60)
    with pytest.raises(TimeoutError, match="the provider's"):
        await loop.run(runtime_for(fake_tool(input_schema=NUMBER)), first(), someone())


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_no_time_at_all_is_no_limit_to_set(seconds):
    with pytest.raises(ValueError, match="seconds"):
        RepairLoop(model(), seconds=seconds)


async def test_a_mended_proposal_is_bound_to_its_own_arguments():
    asked = first(proposed={"n": "b"})
    made = fake_tool(input_schema=NUMBER, effect="draft")
    runtime = runtime_for(made)
    end = await RepairLoop(model({"arguments": {"n": 1}})).run(runtime, asked, someone())
    assert end.proposal.proposed is None
    plain = Proposal(tool="look_up", arguments={"n": 1}, run_id="run_1")
    assert (await runtime.submit(plain, someone())).idempotency_hit


@pytest.mark.parametrize("answer", [{"tool": 3, "arguments": {}}, {"arguments": None}])
async def test_an_answer_that_makes_no_sense_is_refused_like_any_proposal(answer):
    runtime = runtime_for(fake_tool(input_schema=NUMBER))
    end = await RepairLoop(model(answer, None)).run(runtime, first(), someone())
    assert (end.attempts, end.stopped, end.ok) == (2, "model", False)


async def test_a_model_chooses_tool_and_arguments_and_nothing_else():
    asked = first(
        key="k_1",
        call_id="call_1",
        workflow_id="w_1",
        operation_id="op_1",
        trace=f"00-{'1' * 32}-{'2' * 16}-01",
        version="1.0.0",
        expected_version=3,
        configurable={"mode": "safe"},
    )
    wanted = Proposal(
        tool="look_up",
        arguments={"n": 1},
        run_id="run_other",
        key="k_other",
        call_id="call_other",
        workflow_id="w_other",
        operation_id="op_other",
        trace=f"00-{'3' * 32}-{'4' * 16}-01",
        version="9.9.9",
        expected_version=4,
        configurable={"mode": "wild"},
        approval="token",
    )
    runtime = runtime_for(fake_tool(input_schema=NUMBER))
    end = await RepairLoop(model(wanted)).run(runtime, asked, someone())
    assert end.ok
    kept = ("run_id", "key", "workflow_id", "operation_id", "trace", "version", "configurable")
    for name in (*kept, "expected_version", "approval"):
        assert getattr(end.proposal, name) == getattr(asked, name), name
    assert end.proposal.call_id is None
    assert end.observation.call_id not in ("call_1", "call_other")


async def test_what_was_said_of_one_tool_is_not_said_of_another():
    runtime = runtime_for(fake_tool(input_schema=NUMBER), fake_tool("other", version="2.0.0"))
    answer = {"tool": "other", "arguments": {}}
    asked = first(version="1.0.0", expected_version=3)
    end = await RepairLoop(model(answer)).run(runtime, asked, someone())
    assert end.ok
    assert (end.proposal.version, end.proposal.expected_version) == (None, None)


OTHERWISE = [code for code in sorted(FAILURES) if RESPONSES[code].path is not Path.REPAIR]


@pytest.mark.parametrize("code", OTHERWISE)
async def test_the_loop_goes_on_down_no_other_path(code):
    mapping = {"error_taxonomy_mapping": {"ValueError": code.value}}
    made = fake_tool("look_up", ValueError("no"), observability=mapping, max_retries=0)
    says = model()
    end = await RepairLoop(says).run(
        runtime_for(made), Proposal(tool="look_up", arguments={}, run_id="run_1"), someone()
    )
    assert (end.observation.code, end.attempts, end.stopped) == (code, 1, "path")
    assert (says.fed, len(made.calls)) == ([], 1)


@pytest.mark.parametrize("code", sorted(FINAL))
async def test_no_contract_can_make_a_denial_repairable(code):
    made = fake_tool(
        "look_up",
        ValueError("no"),
        observability={"error_taxonomy_mapping": {"ValueError": code.value}},
        error_contract={"repairable_errors": [code.value], "retryable_errors": [code.value]},
    )
    says = model()
    end = await RepairLoop(says).run(
        runtime_for(made), Proposal(tool="look_up", arguments={}, run_id="run_1"), someone()
    )
    assert (end.attempts, end.stopped, says.fed, len(made.calls)) == (1, "path", [], 1)
    assert not end.observation.response.repairable
    assert not end.observation.response.retryable
