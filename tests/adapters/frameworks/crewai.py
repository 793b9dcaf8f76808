"""CrewAI's crew with one agent, and a scripted model that calls functions.

A crew has no pause: a held call is a failure in the task's output, and to go on is to start the
crew again with the same run.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false"}

import world as w
from cases import LOOK, NOTE, count, has, same
from crewai import Agent, Crew, Process, Task
from crewai.hooks import InterceptionPoint, register_hook
from crewai.llms.base_llm import BaseLLM
from crewai.mcp import MCPServerStdio
from crewai.tools import tool as make_tool
from pydantic import Field
from world import RUN, Turn, World, approve, effects

from counterseal import Principal
from counterseal.adapters import crewai as adapter
from counterseal.errors import ContractError

PACKAGES = ("crewai",)
LACKS = {
    "a_second_call_that_is_meant": "no call id reaches a tool, so equal calls of a run are one",
    "a_vote_in_the_hosts_own_page": "a crew takes no answers, so nobody can vote in its host",
    "streaming": "the framework streams the model's words, and no results of tools",
    "cancelled_while_the_tool_runs": "a crew runs in a thread, which goes on when it is cancelled",
    "cancelled": "a crew runs in a thread, which goes on when it is cancelled",
}
contract_for = adapter.contract_for


def own_tool(function: Any) -> Any:
    """The framework's own tool of a plain function."""
    return make_tool(function.__name__)(function)


class Model(BaseLLM):
    """Says what the script has at this place of the conversation."""

    script: list[Any] = Field(default_factory=list)
    seen: dict[str, str] = Field(default_factory=dict)

    def supports_function_calling(self) -> bool:
        return True

    def call(self, messages: Any, *_: Any, **__: Any) -> Any:
        self.seen |= {m["tool_call_id"]: m["content"] for m in messages if m["role"] == "tool"}
        step = self.script[sum(m["role"] == "assistant" for m in messages)]
        if isinstance(step, str):
            return step
        about = [({"name": n, "arguments": json.dumps(a)}, i) for n, a, i in step]
        return [{"id": i, "type": "function", "function": function} for function, i in about]


class Session:
    """A crew that is started again to go on."""

    def __init__(self, runtime, place, script, tools, *, retry=False, mcp=(), **options):
        place.mkdir(exist_ok=True)
        self.runtime = runtime
        self.model = Model(model="scripted", script=script)
        self.crew = crew_of(self.model, [own_tool(function) for function in tools], mcps=list(mcp))
        self.asked, self.answered = [], False
        if runtime is None:
            register_hook(InterceptionPoint.PRE_TOOL_CALL, self._own_approval)
        else:
            options = {"run_id": lambda _: RUN, "wait": 0.0, **options}
            adapter.under_contract(self.crew, runtime, **options)

    def _own_approval(self, context: Any) -> bool | None:
        """The framework's own way: a hook that stops a call until somebody has said yes."""
        asks = context.crew is self.crew and context.tool_name in ("pay", "send_mail")
        if not asks or self.answered:
            return None
        self.asked.append({"approval_id": context.tool_name})
        return False

    async def start(self) -> Turn:
        self.asked.clear()
        output = await self.crew.kickoff_async()
        if self.runtime is None:
            return Turn([*self.asked], dict(self.model.seen), set(), output.raw)
        failures = [one for task in output.tasks_output for one in task.tool_failures]
        held = {one.failure.details.get("approval_id"): one.failure.details for one in failures}
        held.pop(None, None)
        failed = [(one.tool_name, one.tool_args) for one in failures]
        steps = [call for step in self.model.script if not isinstance(step, str) for call in step]
        errors = {call_id for name, arguments, call_id in steps if (name, arguments) in failed}
        return Turn([*held.values()], dict(self.model.seen), errors, output.raw)

    async def resume(self, _reply: Any = True) -> Turn:
        """Start the crew again: the model makes the same calls."""
        self.answered = True
        return await self.start()

    async def resume_with(self, arguments: Any) -> Turn:
        """Start the crew again, and the model makes its calls with other arguments."""
        self.model.script = [
            step if isinstance(step, str) else [(name, arguments, i) for name, _, i in step]
            for step in self.model.script
        ]
        return await self.resume()

    async def nested(self) -> Turn:
        """Run inside of another agent's tool."""
        return await self.start()


def crew_of(model: Model, tools: list[Any], guardrail: Any = None, **more: Any) -> Crew:
    about = {"role": "support", "goal": "help", "backstory": "-", "llm": model, "tools": tools}
    agent = Agent(**about, **more)
    task = Task(description="go", expected_output="done", agent=agent, guardrail=guardrail)
    return Crew(agents=[agent], tasks=[task])


@asynccontextmanager
async def mcp_tools(server: list[str]) -> Any:
    """The configuration of an MCP server: the adapter asks it for its tools."""
    yield [MCPServerStdio(command=server[0], args=server[1:])]


# --- cases of this framework alone ----------------------------------------------------------------


async def a_tool_of_an_mcp_server(world: World) -> None:
    """The framework names the tool after its server; the list of undeclared tools says how."""
    server = [sys.executable, str(Path(__file__).parents[1] / "mcp_server.py"), w.URL]
    async with world.runtime() as runtime, mcp_tools(server) as mcps:
        try:
            world.session(runtime, ["done"], tools=(), mcp=mcps, grants=())
        except ContractError as error:
            (name,) = [problem.tool for problem in error.problems]
        options = {"effects": {name: "external_notification"}, "grants": w.AGENT, "mcp": mcps}
        script = [[(name, {"text": "hello"}, "c_post")], "done"]
        session = world.session(runtime, script, tools=(), **options)
        turn = await session.start()
        same((len(turn.pending), effects("post")), (1, []))
        await approve(runtime, turn)
        has((await session.resume()).results["c_post"], "posted hello")
        same(effects("post"), [["post", "hello"]])


async def a_task_that_is_tried_again(world: World) -> None:
    """The framework runs the whole task again when its guardrail refuses the output."""
    outputs = []

    def guardrail(output: Any):
        outputs.append(output)
        return len(outputs) > 1, "once more"

    async with world.runtime() as runtime:
        model = Model(model="scripted", script=[[NOTE], "done"])
        crew = crew_of(model, [own_tool(w.note)], guardrail)
        options = {"principal": w.someone, "effects": {"note": "draft"}, "grants": w.AGENT}
        adapter.under_contract(crew, runtime, **options)
        await crew.kickoff_async()
        same(len(outputs), 2)
        count(note=1)


async def a_tool_that_went_past_the_contract_is_stopped(world: World) -> None:
    """Only beside tools under contract: other crews of the process are left alone."""
    script = [[NOTE, LOOK], "done"]
    async with world.runtime() as runtime:
        session = world.session(runtime, script, tools=(w.note,))
        session.crew.agents[0].tools.append(own_tool(w.look_up))
        session.crew.tasks[0].tools.append(own_tool(w.look_up))
        turn = await session.start()
        has(turn.results["c_look"], "blocked by hook")
        count(note=1)
        alone = crew_of(Model(model="scripted", script=script), [*map(own_tool, w.TOOLS)])
        await alone.kickoff_async()
        count(note=2, look_up=1)


async def work_that_is_delegated(world: World) -> None:
    """The framework's delegation is a tool under contract; the coworker's calls are limited."""
    name = "delegate_work_to_coworker"
    asks = {"task": "note x", "context": "-", "coworker": "clerk"}
    first = Model(model="scripted", script=[[(name, asks, "c_1")], "done"])
    clerk = Model(model="scripted", script=[[NOTE, LOOK], "noted"])

    def who(call: Any) -> Principal:
        return Principal(tenant="acme", agent=call.agent.role, user="u_1")

    def member(role: str, model: Model, **more: Any) -> Agent:
        return Agent(role=role, goal="help", backstory="-", llm=model, **more)

    tools = [own_tool(w.note), own_tool(w.look_up)]
    agents = [member("lead", first, allow_delegation=True), member("clerk", clerk, tools=tools)]
    task = Task(description="go", expected_output="done", agent=agents[0])
    crew = Crew(agents=agents, tasks=[task])
    question = "ask_question_to_coworker"
    effects = {name: "compute", question: "compute", "note": "draft", "look_up": "read_only"}
    grants = [*w.grants("lead", [name, "note"]), *w.grants("clerk", ["note", "look_up"])]
    async with world.runtime() as runtime:
        adapter.under_contract(crew, runtime, principal=who, effects=effects, grants=grants)
        same((await crew.kickoff_async()).raw, "done")
        has(clerk.seen["c_note"], "noted x")
        has(clerk.seen["c_look"], "PERMISSION_DENIED")
        count(note=1)
        events = [event for _, event in await runtime.store.events("acme")]
        (done,) = [e for e in events if (e.type.value, e.caller.tool) == ("tool.succeeded", "note")]
        same((done.caller.agent, done.body["parents"]), ("clerk", ["lead"]))


async def both_ways_to_start_a_crew(world: World) -> None:
    """The framework calls tools in a thread, also when the crew itself is async."""
    async with world.runtime() as runtime:
        for number, way in enumerate(("akickoff", "kickoff"), start=1):
            step = [("note", {"text": way}, "c_note")]
            session = world.session(runtime, [step, "done"])
            if way == "akickoff":
                await session.crew.akickoff()
            else:
                await asyncio.to_thread(session.crew.kickoff)
            has(session.model.seen["c_note"], f"noted {way}")
            count(note=number)


class Thinker(Model):
    """Calls tools in words."""

    def supports_function_calling(self) -> bool:
        return False

    def call(self, messages: Any, *_: Any, **__: Any) -> Any:
        self.seen = {"all": "\n".join(m["content"] for m in messages)}
        return self.script[sum(m["role"] == "assistant" for m in messages)]


async def an_agent_that_calls_tools_in_words(world: World) -> None:
    note = 'Thought: I write.\nAction: note\nAction Input: {"text": "x"}'
    look = 'Thought: I look.\nAction: look_up\nAction Input: {"topic": "y"}'
    script = [note, look, "Thought: I now know the final answer\nFinal Answer: done"]
    async with world.runtime() as runtime:
        model = Thinker(model="scripted", script=script)
        crew = crew_of(model, [own_tool(w.note), own_tool(w.look_up)])
        about = {"principal": w.someone, "effects": {"note": "draft", "look_up": "read_only"}}
        adapter.under_contract(crew, runtime, grants=w.grants(tools=["note"]), **about)
        same((await crew.kickoff_async()).raw, "done")
        has(model.seen["all"], "noted x", "PERMISSION_DENIED")
        count(note=1)


async def what_a_crew_can_not_do_is_refused_at_start_up(world: World) -> None:
    async with world.runtime() as runtime:
        crew = crew_of(Model(model="scripted"), [own_tool(w.note)])
        about = {"principal": w.someone, "effects": {"note": "draft"}, "grants": w.AGENT}
        managed = Crew(
            agents=crew.agents,
            tasks=crew.tasks,
            process=Process.hierarchical,
            manager_llm=Model(model="scripted"),
        )
        for target, more, part in (
            (crew, {"pause": "native"}, "can't pause"),
            (crew, {"voter": lambda *_: None}, "votes"),
            (managed, {}, "hierarchical"),
        ):
            try:
                adapter.under_contract(target, runtime, **about, **more)
            except ValueError as error:
                has(str(error), part)
            else:
                raise AssertionError(part)


CASES = (
    a_tool_of_an_mcp_server,
    a_task_that_is_tried_again,
    a_tool_that_went_past_the_contract_is_stopped,
    work_that_is_delegated,
    both_ways_to_start_a_crew,
    an_agent_that_calls_tools_in_words,
    what_a_crew_can_not_do_is_refused_at_start_up,
)
