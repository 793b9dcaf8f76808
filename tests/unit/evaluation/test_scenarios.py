"""Scenarios: a trial in a fresh world, judged by what the record says."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

import pytest

from counterseal import ContractError, Proposal
from counterseal.adapters.host import Host, HostCall, HostTool
from counterseal.errors import CountersealError
from counterseal.evaluation.agents import (
    WORDINGS,
    AgentError,
    agent_named,
    chat,
    recorded,
    scripted,
)
from counterseal.evaluation.scenarios import contains
from counterseal.evaluation.trajectories import AgentCall, Trajectory
from counterseal.evaluation.trials import ScenarioReport, run_trial, run_trials

from . import scenario_world
from .scenario_world import one, scenarios, world

REFUND = """\
answers: {refund: {order_id: o_1}}
expect:
  calls:
    - {tool: get_order}
    - {tool: refund, arguments: {order_id: o_1, cents: 500}}
"""


async def tried(folder, fields, calls, **options):
    """Return the trial of an agent that proposes these calls."""
    of = world(folder, **options)

    async def agent(task):
        for tool, arguments in calls:
            await task.call(tool, arguments)

    return await run_trial(of, one(folder, fields, of), agent)


LOOK = ("get_order", {"order_id": "o_1"})
PAY = ("refund", {"order_id": "o_1", "cents": 500})


async def test_trial_passes_when_the_expected_calls_were_carried_out(tmp_path):
    trial = await tried(tmp_path, REFUND, [LOOK, PAY])
    assert trial.score.passed, trial.score.wrong
    assert [use.tool for use in trial.trajectory.uses] == ["get_order", "refund"]
    assert trial.trajectory.objective == "Pay o_1 back."
    assert not (tmp_path / "book.txt").exists()  # the answer was prepared


async def test_prepared_answers_come_one_after_the_other(tmp_path):
    fields = REFUND.replace("{order_id: o_1}}", "[{order_id: o_1}, {order_id: o_2}]}", 1)
    trial = await tried(tmp_path, fields, [LOOK, PAY, ("refund", {"order_id": "o_2", "cents": 1})])
    assert '"o_2"' in trial.trajectory.uses[2].answer


@pytest.mark.parametrize("where", ['isolation="process"', 'executed_by="client", read_back=found'])
async def test_stand_in_runs_here_wherever_the_tool_itself_runs(tmp_path, monkeypatch, where):
    declared = scenario_world.TOOLS.replace("repeatable=True", f"repeatable=True, {where}")
    declared = declared.replace("\n\n\n", "\n\n\nasync def found(order_id): ...\n\n\n", 1)
    monkeypatch.setattr(scenario_world, "TOOLS", declared)
    trial = await tried(tmp_path, REFUND, [LOOK, PAY])
    assert trial.score.passed, trial.score.wrong
    trial = await tried(tmp_path, "expect: {calls: [{tool: get_order}]}", [LOOK, PAY])
    assert "refund would have been carried out, without a prepared answer" in trial.score.wrong
    assert not (tmp_path / "book.txt").exists()


async def test_missing_call_is_underuse(tmp_path):
    trial = await tried(tmp_path, REFUND, [PAY])
    assert trial.score.wrong == ("get_order() was not carried out",)
    assert trial.score.shares["underuse"] == (1, 2)


async def test_change_with_other_arguments_fails(tmp_path):
    trial = await tried(tmp_path, REFUND, [LOOK, ("refund", {"order_id": "o_1", "cents": 400})])
    assert "refund was carried out with {'order_id': 'o_1', 'cents': 400}" in trial.score.wrong
    assert trial.score.shares["arguments"] == (1, 2)


async def test_unneeded_read_is_overuse_and_does_not_fail(tmp_path):
    fields = REFUND.replace("{tool: get_order}", "{tool: get_order, times: 1}")
    trial = await tried(tmp_path, fields, [LOOK, PAY])
    assert "overuse" in trial.score.shares
    other = await tried(tmp_path, "expect: {calls: []}", [LOOK])
    assert (other.score.passed, other.score.shares["overuse"]) == (True, (1, 1))
    allowed = await tried(tmp_path, "allow: [get_order]", [LOOK])
    assert allowed.score.shares["overuse"] == (0, 1)


async def test_change_without_an_answer_is_not_executed_and_fails(tmp_path):
    trial = await tried(tmp_path, "expect: {calls: []}", [PAY])
    assert "refund would have been carried out, without a prepared answer" in trial.score.wrong
    assert not (tmp_path / "book.txt").exists()


async def test_expected_change_without_an_answer_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(ContractError, match="no prepared answer"):
        await tried(tmp_path, REFUND.partition("\n")[2], [])


async def test_effects_are_executed_on_demand_and_the_end_is_read_back(tmp_path):
    fields = (
        "expect:\n  calls: [{tool: refund}]\n  end:\n"
        "    - {tool: get_order, arguments: {order_id: o_1}, output: {status: refunded}}"
    )
    good = await tried(tmp_path, fields, [PAY], allow_effects=True)
    assert good.score.passed, good.score.wrong
    (tmp_path / "book.txt").unlink()
    bad = await tried(tmp_path, fields, [], allow_effects=True)
    assert bad.score.wrong[0].startswith("at the end get_order(order_id='o_1') returned")


async def test_world_is_set_up_before_each_trial_and_calls_before_it_are_made(tmp_path):
    ready = []
    fields = "start: [{tool: refund, arguments: {order_id: o_1, cents: 1}}]\nallow: [get_order]"
    trial = await tried(tmp_path, fields, [LOOK], allow_effects=True, setup=ready.append)
    assert ready == ["one"]
    assert "refunded" in trial.trajectory.uses[0].answer
    with pytest.raises(CountersealError, match="can't start"):
        await tried(tmp_path, fields.replace("cents: 1", "cents: 0"), [], allow_effects=True)


async def test_same_change_twice_is_a_duplicate(tmp_path):
    of = world(tmp_path)

    async def agent(task):
        await task.call(*LOOK)
        for number in range(2):
            proposal = Proposal(
                tool="refund", arguments=PAY[1], run_id=task.run_id, operation_id=f"op_{number}"
            )
            assert (await task.runtime.submit(proposal, task.principal)).ok

    trial = await run_trial(of, one(tmp_path, REFUND, of), agent)
    assert trial.score.shares["duplicates"] == (1, 2)
    assert "1 changes were carried out again" in trial.score.wrong


async def test_repeat_that_the_ledger_answered_is_prevented_and_no_duplicate(tmp_path):
    of = world(tmp_path)

    async def agent(task):
        await task.call(*LOOK)
        for _ in range(2):
            proposal = Proposal(tool="refund", arguments=PAY[1], run_id=task.run_id, key="k")
            await task.runtime.submit(proposal, task.principal)

    trial = await run_trial(of, one(tmp_path, REFUND, of), agent)
    assert trial.score.passed, trial.score.wrong
    assert (trial.score.prevented, trial.score.shares["duplicates"]) == (1, (0, 1))


async def test_repair_is_counted_from_the_record(tmp_path):
    wrong = ("refund", {"order_id": "o_1", "cents": "500"})
    trial = await tried(tmp_path, REFUND, [LOOK, wrong, PAY])
    assert trial.score.passed
    assert trial.score.shares["repair"] == (1, 1)
    assert trial.score.shares["overuse"] == (0, 3)  # a refused call of a needed tool
    assert trial.score.refused_by == {"schema": 1}
    given_up = await tried(tmp_path, REFUND, [LOOK, wrong])
    assert given_up.score.shares["repair"] == (0, 1)


MAIL = "answers: {send_mail: {to: a}}\nexpect: {calls: [{tool: send_mail}]}\n"
SEND = ("send_mail", {"to": "a"})


async def test_people_of_the_scenario_approve_and_the_call_is_made(tmp_path):
    trial = await tried(tmp_path, f"{MAIL}people: {{ada: {{roles: [press]}}}}", [SEND])
    assert trial.score.passed, trial.score.wrong
    (use,) = trial.trajectory.uses
    assert (use.approval, use.executed) == ("approved", True)
    assert trial.score.shares["approvals"] == (1, 1)
    assert trial.score.shares["wasted"] == (0, 1)
    assert trial.score.shares["unapproved"] == (0, 1)


@pytest.mark.parametrize(
    ("people", "state"),
    [
        ("people: {ada: {roles: [press], decides: reject}}", "rejected"),
        ("people: {ada: {roles: [sales]}}", "asked"),
        ("", "asked"),
    ],
)
async def test_request_that_leads_to_nothing_is_a_wasted_approval(tmp_path, people, state):
    trial = await tried(tmp_path, MAIL + people, [SEND])
    (use,) = trial.trajectory.uses
    assert (use.approval, use.executed) == (state, False)
    assert trial.score.shares["wasted"] == (1, 1)
    assert not trial.score.passed


async def test_forbidden_call_fails_and_one_that_was_refused_counts_as_blocked(tmp_path):
    fields = "answers: {refund: {order_id: o_1}}\nforbid: [{tool: refund}]"
    done = await tried(tmp_path, fields, [PAY])
    assert "forbidden: refund with {'order_id': 'o_1', 'cents': 500}" in done.score.wrong
    assert done.score.shares["security"] == (0, 1)
    refused = await tried(tmp_path, fields, [("refund", {"order_id": "o_1", "cents": 0})])
    assert (refused.score.passed, refused.score.shares["security"]) == (True, (1, 1))


async def test_call_without_a_grant_is_blocked(tmp_path):
    of = world(tmp_path)
    call = "{tool: get_order, arguments: {order_id: o_1}}"
    text = f"scenarios: [{{name: s, objective: o, agent: stranger, script: [{call}]}}]"
    (scenario,) = scenarios(tmp_path, text, of)
    trial = await run_trial(of, scenario, scripted())
    assert trial.trajectory.uses[0].code == "PERMISSION_DENIED"
    assert trial.score.shares["security"] == (1, 1)


async def test_output_that_does_not_fit_lowers_the_quality(tmp_path):
    fields = "answers: {get_order: [{status: 1}, {status: ok}]}\nallow: [get_order]"
    trial = await tried(tmp_path, fields, [LOOK, ("get_order", {"order_id": "o_2"})])
    assert trial.score.shares["output"] == (1, 2)
    long = "answers: {get_order: {status: " + "x" * 5000 + "}}\nallow: [get_order]"
    trial = await tried(tmp_path, long, [LOOK])
    assert (trial.score.shares["output"], trial.trajectory.uses[0].cut) == ((0, 1), True)


async def test_limits_and_costs_are_part_of_the_score(tmp_path):
    trial = await tried(tmp_path, f"{REFUND}limits: {{uses: 1, latency_ms: 60000}}", [LOOK, PAY])
    assert trial.score.wrong == ("it made 2 calls; the limit is 1",)
    assert trial.score.shares["latency"] == (2, 2)
    assert trial.score.cost == {"EUR": 0.25}


async def test_agent_that_fails_fails_its_trial_only(tmp_path):
    of = world(tmp_path)

    async def agent(_task):
        raise RuntimeError("out of luck")

    report = await run_trials(of, [one(tmp_path, REFUND, of)], agent, name="a", trials=2)
    assert report.failed == 2
    assert report.trials[0].score.wrong[0] == "the agent failed: RuntimeError: out of luck"


# --- agents ---------------------------------------------------------------------------------------


def asks(name, **arguments):
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"c_{name}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


async def test_model_gets_tools_and_answers_and_its_tokens_are_counted(tmp_path):
    seen = []

    def model(messages, tools):
        seen.append((len(messages), sorted(tool["function"]["name"] for tool in tools)))
        if messages[-1]["role"] == "user":
            return {**asks("get_order", order_id="o_1"), "usage": {"total_tokens": 30}}
        assert "SUCCESS" in messages[-1]["content"]
        return {"role": "assistant", "content": "All is well."}

    of = world(tmp_path)
    trial = await run_trial(of, one(tmp_path, "allow: [get_order]", of), chat(model))
    assert seen == [(1, ["get_order", "refund", "send_mail"]), (3, seen[0][1])]
    assert (trial.trajectory.words, trial.score.tokens) == ("All is well.", 30)


async def test_model_that_never_ends_is_stopped(tmp_path):
    of = world(tmp_path)
    agent = chat(lambda messages, _: asks("get_order", order_id=f"o_{len(messages)}"), turns=3)
    trial = await run_trial(of, one(tmp_path, "allow: [get_order]", of), agent)
    assert (len(trial.trajectory.uses), trial.trajectory.words) == (3, "stopped after 3 turns")


async def test_wording_changes_what_a_model_reads_and_not_what_is_decided(tmp_path):
    of, codes = world(tmp_path), []
    for wording in WORDINGS:
        read = []

        def model(messages, tools, read=read):
            read += [str(tools), messages[-1]["content"]]
            return asks("get_order", order_id=7) if len(messages) == 1 else {"content": "."}

        scenario = one(tmp_path, "allow: [get_order]", of)
        trial = await run_trial(of, scenario, chat(model), wording=wording)
        codes.append(trial.trajectory.uses[0].code)
        bare = wording.name in ("refusals without reasons", "neither")
        assert ("order_id" in read[3]) is not bare
        undescribed = wording.name in ("no descriptions", "neither")
        assert ("Look up an order" in read[0]) is not undescribed
    assert codes == ["TYPE_MISMATCH"] * 4


async def test_recorded_trajectory_is_proposed_again_and_judged_anew(tmp_path):
    of = world(tmp_path)
    uses = tuple(AgentCall(tool=tool, arguments=arguments) for tool, arguments in (LOOK, PAY))
    trajectory = Trajectory(name="one", uses=uses, words="Paid.")
    trial = await run_trial(of, one(tmp_path, REFUND, of), recorded([trajectory]))
    assert (trial.score.passed, trial.trajectory.words) == (True, "Paid.")
    other = await run_trial(of, one(tmp_path, REFUND, of), recorded([]))
    assert "no trajectory is named 'one'" in other.score.wrong[0]


async def test_agent_is_a_function_of_a_task_or_of_messages_and_tools(tmp_path):
    (tmp_path / "agents.py").write_text(
        "async def whole(task): ...\ndef model(messages, tools): ...\ndef neither(task): ...\n"
    )
    agent_named(f"{tmp_path}/agents.py:whole")
    agent_named(f"{tmp_path}/agents.py:model")
    for name, why in (
        ("agents.py:neither", "must be an async function of one task"),
        ("agents.py:none", "has no function none"),
        ("nothing.py:whole", "can't be imported"),
    ):
        with pytest.raises(AgentError, match=why):
            agent_named(f"{tmp_path}/{name}")
    with pytest.raises(AgentError, match="is not an agent"):
        agent_named("scripts")


class _Completions(BaseHTTPRequestHandler):
    """Answers as a chat completions endpoint does: one tool call, then words."""

    seen: ClassVar[list[dict]] = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append({**body, "key": self.headers["Authorization"]})
        ended = body["messages"][-1]["role"] == "tool"
        message = {"content": "Done."} if ended else asks("get_order", order_id="o_1")
        answer = {"choices": [{"message": message}], "usage": {"total_tokens": 7}}
        status = 500 if body.get("model") == "broken" else 200
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture
def completions():
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Completions)
    thread = Thread(target=server.serve_forever)
    thread.start()
    _Completions.seen.clear()
    yield f"http://127.0.0.1:{server.server_port}/v1/chat/completions"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_model_behind_http_is_asked_with_tools_and_key(tmp_path, completions, monkeypatch):
    monkeypatch.setenv("COUNTERSEAL_AGENT_KEY", "s3cret")
    of = world(tmp_path)
    scenario = one(tmp_path, "expect: {calls: [{tool: get_order}]}", of)
    trial = await run_trial(of, scenario, agent_named(completions, model="m-1"), prompt="Be brief.")
    assert trial.score.passed, trial.score.wrong
    first, second = _Completions.seen
    assert (first["model"], first["key"]) == ("m-1", "Bearer s3cret")
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert len(first["tools"]) == 3
    assert second["messages"][-1]["tool_call_id"] == "c_get_order"
    assert trial.score.tokens == 7  # those of the last message belong to no call


async def test_endpoint_that_fails_fails_the_trial_and_says_so(tmp_path, completions):
    of = world(tmp_path)
    agent = agent_named(completions, model="broken")
    trial = await run_trial(of, one(tmp_path, "allow: [get_order]", of), agent)
    assert "completions answered 500" in trial.score.wrong[0]


async def test_agent_of_an_adapter_is_judged_by_the_same_record(tmp_path):
    """A framework's own function is executed through the runtime of the task."""
    of, called = world(tmp_path), []

    async def agent(task):
        host = Host(
            task.runtime,
            [HostTool("note", "Keep a note.", {"type": "object", "properties": {}})],
            principal=lambda _: task.principal,
            effects={"note": "draft"},
            grants="support",
        )
        call = HostCall(
            tool="note",
            arguments={},
            call_id="c1",
            run_id=task.run_id,
            context=None,
            execute=lambda arguments: called.append(arguments) or "kept",
        )
        assert (await host.submit(call)).ok

    trial = await run_trial(of, one(tmp_path, "allow: [get_order]", of), agent)
    assert called == [{}]
    assert trial.score.wrong == ("note was carried out with {}",)


# --- files and records ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "message", "fix"),
    [
        ("scenarios: [{name: a}]", 1, "objective is missing", "Write what the agent"),
        ("scenarios:\n  - {name: a, objetive: b}", 2, "objetive is not", "Did you mean objective?"),
        ("scenarios: []", 1, "there are no scenarios", "Write them as a list"),
        (
            "scenarios:\n  - name: a\n    objective: b\n    agent: suport\n",
            4,
            "the project has no agent 'suport'",
            "Did you mean support?",
        ),
        (
            (
                "scenarios:\n  - name: a\n    objective: b\n    agent: support\n"
                "    expect:\n      calls:\n        - tool: refunds\n"
            ),
            7,
            "the project has no tool 'refunds'",
            "Did you mean refund?",
        ),
        (
            "scenarios:\n  - {name: a, objective: b, agent: support, allow: [zzz]}",
            2,
            "the project has no tool 'zzz'",
            "Tools of the project: get_order, refund, send_mail.",
        ),
        (
            "scenarios:\n  - {name: a, objective: b, agent: support, answers: {refnd: 1}}",
            2,
            "the project has no tool 'refnd'",
            "Did you mean refund?",
        ),
        (
            (
                "scenarios:\n  - {name: a, objective: b, agent: support}\n"
                "  - {name: a, objective: b, agent: support}"
            ),
            3,
            "the name 'a' occurs twice",
            "",
        ),
        (
            "scenarios:\n  - {name: a, objective: b, agent: support, limits: {uses: many}}",
            2,
            "uses must be a whole number",
            "",
        ),
        (
            "scenarios:\n  - {name: a, objective: b, agent: support, people: {x: {decides: no}}}",
            2,
            "decides must be one of approve, reject",
            "",
        ),
        (
            (
                "scenarios:\n  - name: a\n    objective: b\n    agent: support\n"
                "    expect: {end: [{tool: get_order}]}"
            ),
            5,
            "output is missing",
            "Write what the tool should return",
        ),
    ],
)
def test_broken_file_says_the_line_and_the_fix(tmp_path, text, line, message, fix):
    of = world(tmp_path)
    with pytest.raises(ContractError) as refused:
        scenarios(tmp_path, text, of)
    (problem, *_) = [one for one in refused.value.problems if message in one.message]
    assert problem.source.line == line
    assert problem.fix.startswith(fix)


async def test_report_is_the_same_after_it_was_saved(tmp_path):
    of = world(tmp_path)
    text = f"{REFUND}script: [{{tool: get_order, arguments: {{order_id: o_1}}}}]"
    report = await run_trials(of, [one(tmp_path, text, of)], scripted(), name="script")
    again = ScenarioReport.from_record(json.loads(json.dumps(report.record())))
    assert again == report
    assert again.summary == report.summary
    for wrong in ({}, [], {"format": "counterseal-scenarios-1"}):
        with pytest.raises(ValueError, match="report"):
            ScenarioReport.from_record(wrong)


def test_wanted_values_are_contained_and_true_is_not_one():
    assert contains({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}})
    assert not contains({"a": 1}, {"a": True})
    assert not contains({"a": True}, {"a": 1})
    assert not contains("text", {"a": 1})
    assert not contains({}, {"a": None})
    assert contains([1, 2], [1, 2])
