"""Inspect with its mock model: a session is an evaluation of one sample.

Inspect has no pause. To resume is to run the evaluation again, in the same run: what was done is
answered from the record, and what was held is done if it is approved by then.
"""

from __future__ import annotations

import inspect
from typing import Any

import world as w
from cases import MAIL, NOTE, PAY, count, has, same
from inspect_ai import Task, eval_async
from inspect_ai.approval import ApprovalPolicy, auto_approver
from inspect_ai.dataset import Sample
from inspect_ai.log import read_eval_log
from inspect_ai.model import ChatCompletionChoice as Choice
from inspect_ai.model import ChatMessageAssistant, ModelOutput, ModelUsage, get_model
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import Tool, ToolCall, ToolDef
from world import RUN, Turn, World, approve

from counterseal.adapters import inspect_ai as adapter
from counterseal.errors import StoreError
from counterseal.evaluation.formats import WRITERS
from counterseal.evaluation.scores import Score
from counterseal.evaluation.trajectories import AgentCall, Trajectory
from counterseal.evaluation.trials import ScenarioReport, Trial

PACKAGES = ("inspect_ai",)
LACKS = {
    "a_vote_in_the_hosts_own_page": "An evaluation carries no answer; people decide at the desk.",
    "approved_with_other_arguments": "Inspect has no edit of a rejected call.",
    "changed_after_approval": "Inspect has no edit of a rejected call",
    "resumed_again": "Inspect has no pause to resume from",
    "nobody_approved": "Inspect has no pause to resume from",
    "resumed_twice_at_the_same_time": "One process runs one evaluation at a time.",
    "a_sub_agent_has_no_more_than_its_parent": "One process runs one evaluation at a time.",
    "streaming": "An evaluation has no stream.",
    "a_tool_of_an_mcp_server": "Tools of MCP servers are tools of Inspect like any other.",
}
contract_for = adapter.contract_for
MODEL = "mockllm/model"


def own_tool(function: Any) -> Tool:
    """A tool of Inspect, of a plain function."""
    names = inspect.signature(function).parameters
    about = {"name": function.__name__, "description": function.__doc__}
    return ToolDef(function, **about, parameters={name: f"The {name}." for name in names}).as_tool()


class Session:
    """An evaluation of one sample, with a model that follows a script."""

    def __init__(self, runtime, place, script, tools, *, retry=False, **options):
        place.mkdir(exist_ok=True)
        (place / "logs").mkdir(exist_ok=True)
        self.place, self.script, self.retry = place, script, retry
        self.tools = [own_tool(function) for function in tools]
        self.governed = None
        self.policy = ApprovalPolicy(auto_approver(), "*")
        if runtime is not None:
            options.setdefault("run_id", lambda _: RUN)
            self.governed = adapter.Counterseal(runtime, self.tools, **options)
            self.policy = ApprovalPolicy(self.governed.approver, "*")

    def _answer(self, messages, *_: Any) -> ModelOutput:
        said = [one for one in messages if one.role == "assistant"]
        step = self.script[min(len(said), len(self.script) - 1)]
        message = ChatMessageAssistant(content=step if isinstance(step, str) else "")
        if not isinstance(step, str):
            message.tool_calls = [ToolCall(id=i, function=n, arguments=a) for n, a, i in step]
        reason = "stop" if isinstance(step, str) else "tool_calls"
        # Without its usage, the mock model fetches a table of tokens.
        usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        choice = Choice(message=message, stop_reason=reason)
        return ModelOutput(model=MODEL, choices=[choice], usage=usage)

    async def start(self) -> Turn:
        task = Task(
            dataset=[Sample(input="go", id="sample")],
            solver=[use_tools(*self.tools), generate()],
        )
        (log,) = await eval_async(
            task,
            model=get_model(MODEL, custom_outputs=self._answer, memoize=False),
            approval=[self.policy],
            log_dir=str(self.place / "logs"),
            log_format="json",
            retry_on_error=1 if self.retry else None,
        )
        if log.status != "success":
            raise RuntimeError(f"the evaluation ended with {log.status}: {log.error}")
        (sample,) = log.samples
        shown, errors = {}, set()
        for message in sample.messages:
            if message.role == "tool":
                shown[message.tool_call_id] = (
                    message.error.message if message.error else message.text
                )
                if message.error:
                    errors.add(message.tool_call_id)
        waiting = self.governed.pending.values() if self.governed else ()
        pending = {one.approval_id: one.record() for one in waiting}  # the same call made twice
        return Turn(list(pending.values()), shown, errors, sample.messages[-1].text)

    async def resume(self, reply: Any = True) -> Turn:
        return await self.start()


def check_stream(chunks: list[Any]) -> None:
    """There is no stream."""


# --- cases of this framework alone ----------------------------------------------------------------


async def resumed_twice(world: World) -> None:
    """Nothing is done twice, and the model reads the earlier result."""
    async with world.runtime() as runtime:
        session = world.session(runtime, [[NOTE, MAIL], "done"])
        await approve(runtime, await session.start())
        has((await session.resume()).results["c_mail"], "sent to a@example.org")
        again = await session.resume()
        has(again.results["c_mail"], "This call was made before", "sent to a@example.org")
        count(note=1, send_mail=1)


async def the_store_is_down(world: World) -> None:
    """The sample ends with an error, and nothing is done."""
    async with world.runtime() as runtime:
        session = world.session(runtime, [[NOTE], "done"])

        async def down(*_: Any, **__: Any) -> None:
            raise StoreError("disk gone")

        runtime.store.admit = down
        try:
            turn = await session.start()
        except RuntimeError as error:
            has(str(error), "the store is down, so nothing was executed")
        else:
            raise AssertionError(f"the run went on: {turn}")
        count()


async def the_frameworks_own_retry_around_us(world: World) -> None:
    """The tool acts and breaks: Inspect runs the sample again, and the call is not made again."""
    w.FAULTS["note"] = "raise"
    async with world.runtime() as runtime:
        turn = await world.session(runtime, [[NOTE], "done"], retry=True).start()
        same(turn.errors, {"c_note"})
        count(note=1)


async def a_second_call_that_is_meant(world: World) -> None:
    """The arguments alone count, because a held call is made again under another id."""
    again = ("note", NOTE[1], "c_again")
    async with world.runtime() as runtime:
        turn = await world.session(runtime, [[NOTE], [again], "done"]).start()
        has(turn.results["c_again"], "made before", "noted x")
        count(note=1)
        turn = await world.session(
            runtime, [[NOTE], [again], "done"], same="call", run_id=lambda _: "other"
        ).start()
        count(note=3)


async def a_correction_changes_what_is_executed(world: World) -> None:
    rule = {
        "id": "short",
        "rule": "A note is y.",
        "check": "call.text == 'y'",
        "correct": {"set": {"text": "y"}},
    }
    contract = contract_for(own_tool(w.note), effect="draft", invariants=[rule])
    async with world.runtime() as runtime:
        turn = await world.session(runtime, [[NOTE], "done"], contracts=[contract]).start()
        has(turn.results["c_note"], "noted y")
        same(w.effects("note"), [["note", "y"]])


async def a_tool_without_a_contract_is_rejected(world: World) -> None:
    async with world.runtime() as runtime:
        session = world.session(runtime, [[NOTE], "done"])
        session.governed._names.discard("note")
        turn = await session.start()
        has(turn.results["c_note"], "note is not under contract here")
        count()


async def a_call_is_settled_with_what_inspect_reports(world: World) -> None:
    async with world.runtime() as runtime:
        await world.session(runtime, [[NOTE, PAY], "done"]).start()
        events = [event for _, event in await runtime.store.events("acme")]
        ended = [(e.caller.tool, e.type.value) for e in events if e.type.value == "tool.succeeded"]
        same(ended, [("note", "tool.succeeded")])
        same({event.caller.run_id for event in events}, {RUN})


async def each_sample_is_a_run(world: World) -> None:
    async with world.runtime() as runtime:
        session = world.session(runtime, [[MAIL], "done"], run_id=None)
        await session.start()
        await session.start()
        runs = {event.caller.run_id for _, event in await runtime.store.events("acme")}
        same(len(runs), 2)


async def a_log_that_we_write_is_read_by_inspect(world: World) -> None:
    use = AgentCall(tool="note", arguments={"text": "x"}, id="c1", code="SUCCESS", answer="noted x")
    refused = AgentCall(tool="pay", arguments={}, id="c2", code="OUT_OF_BOUNDS", gate="schema")
    trajectory = Trajectory(name="one", objective="go", uses=(use, refused), words="done")
    score = Score(passed=True, shares={"selection": (1, 2)})
    trial = Trial(scenario="one", number=1, score=score, trajectory=trajectory)
    report = ScenarioReport(
        label="a", agent="a", wording="w", contracts={}, policy="p", trials=(trial,)
    )
    path = world.place / "log.json"
    path.write_text(WRITERS["inspect"]([report]))
    log = read_eval_log(str(path))
    (sample,) = log.samples
    same((log.status, sample.scores["counterseal"].value), ("success", "C"))
    same([one.role for one in sample.messages], ["user", *["assistant", "tool"] * 2, "assistant"])
    same(sample.messages[1].tool_calls[0].arguments, {"text": "x"})


CASES = (
    resumed_twice,
    the_store_is_down,
    the_frameworks_own_retry_around_us,
    a_second_call_that_is_meant,
    a_correction_changes_what_is_executed,
    a_tool_without_a_contract_is_rejected,
    a_call_is_settled_with_what_inspect_reports,
    each_sample_is_a_run,
    a_log_that_we_write_is_read_by_inspect,
)
