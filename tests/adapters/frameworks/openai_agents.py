"""The OpenAI Agents SDK with its own scripted model."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import Any

import world as w
from agents import Agent, Runner, RunState, function_tool, set_tracing_disabled
from agents.exceptions import ModelBehaviorError
from agents.mcp import MCPServerStdio
from agents.testing import ScriptedModel, assistant_message, function_call
from cases import MAIL, NOTE, has, same
from world import RUN, Turn, World, approve, effects

from counterseal.adapters import openai_agents as adapter

PACKAGES = ("openai-agents",)
EDITS = False
contract_for = adapter.contract_for
own_tool = function_tool
set_tracing_disabled(True)


class Session:
    """A run that is kept as text when it pauses, as a host would keep it."""

    def __init__(self, runtime, place, script, tools, *, retry=False, **options):
        place.mkdir(exist_ok=True)
        self.path, self.script, self.context = place / "run.json", script, {"session": RUN}
        mcp = options.pop("mcp", ())
        self.tools = [
            function_tool(
                tool, needs_approval=runtime is None and tool.__name__ in ("pay", "send_mail")
            )
            for tool in tools
        ]
        self.governed = None
        if runtime is not None:
            options.setdefault("run_id", lambda ctx: ctx.context["session"])
            self.governed = adapter.Counterseal(runtime, [*self.tools, *mcp], **options)
            self.tools = self.governed.tools

    def _agent(self, done: int) -> tuple[Agent, ScriptedModel]:
        steps = [
            [assistant_message(step)]
            if isinstance(step, str)
            else [function_call(name, arguments, call_id=id_) for name, arguments, id_ in step]
            for step in self.script[done:]
        ]
        model = ScriptedModel(steps)
        return Agent(name="support", model=model, tools=self.tools), model

    async def start(self) -> Turn:
        agent, model = self._agent(0)
        return await self._turn(await Runner.run(agent, "go", context=self.context), model, 0)

    async def resume(self, reply: Any = True) -> Turn:
        kept = json.loads(self.path.read_text())
        agent, model = self._agent(kept["done"])
        state = await RunState.from_string(agent, kept["state"], context_override=self.context)
        if callable(reply):
            for item in state.get_interruptions():
                pending = await self.governed.pending(item, self.context)
                await self.governed.decide(reply(pending.record()), self.context)
        if self.governed is None:
            for item in state.get_interruptions():
                state.approve(item)
        else:
            await self.governed.settle(state, self.context)
        return await self._turn(await Runner.run(agent, state), model, kept["done"])

    async def resume_with(self, arguments: Any) -> Turn | None:
        """Go on with a stored run that somebody has edited: the SDK has no edit of its own."""
        text = self.path.read_text()
        kept = json.loads(text)
        state = json.loads(kept["state"])
        self.path.write_text(json.dumps({**kept, "state": json.dumps(_edited(state, arguments))}))
        try:
            return await self.resume()
        except ModelBehaviorError:
            return None

    async def stream(self) -> tuple[Turn, list[Any]]:
        agent, model = self._agent(0)
        result = Runner.run_streamed(agent, "go", context=self.context)
        chunks = [event async for event in result.stream_events()]
        return await self._turn(result, model, 0), chunks

    async def nested(self) -> Turn:
        """Run inside of another agent's tool. A pause of the inner run ends up as a question."""
        return await self.start()

    async def _turn(self, result: Any, model: ScriptedModel, before: int) -> Turn:
        seen = {}
        for call in model.calls:
            for item in call.input if isinstance(call.input, list) else ():
                if item.get("type") == "function_call_output":
                    seen[item["call_id"]] = str(item["output"])
        errors = {call_id for call_id, text in seen.items() if "\nnext action: " in text}
        done = before + len(model.calls)
        kept = {"state": result.to_state().to_string(), "done": done}
        self.path.write_text(json.dumps(kept))
        pending = []
        for item in result.interruptions:
            shown = self.governed and await self.governed.pending(item, self.context)
            pending.append(shown.record() if shown else {"call_id": item.raw_item.call_id})
        final = None if pending else str(result.final_output)
        return Turn(pending, seen, errors, final)


def _edited(value: Any, arguments: Any) -> Any:
    """A stored state in which every function call has other arguments."""
    if isinstance(value, dict):
        changed = {name: _edited(each, arguments) for name, each in value.items()}
        if value.get("type") == "function_call" and "arguments" in value:
            changed["arguments"] = json.dumps(arguments)
        return changed
    return [_edited(each, arguments) for each in value] if isinstance(value, list) else value


@asynccontextmanager
async def mcp_tools(server: list[str]) -> Any:
    async with MCPServerStdio({"command": server[0], "args": server[1:]}) as connected:
        yield await adapter.mcp_tools(connected)


def check_stream(chunks: list[Any]) -> None:
    names = [chunk.name for chunk in chunks if chunk.type == "run_item_stream_event"]
    same(names.count("tool_output"), 2, names)


# --- cases of this framework alone ----------------------------------------------------------------


async def an_agent_as_a_tool_pauses_and_goes_on(world: World) -> None:
    """The SDK nests the interruption of an agent that is a tool; its own call is no operation."""
    async with world.runtime() as runtime:
        inner = world.session(runtime, [[NOTE, MAIL], "inner done"])
        steps = [[function_call("ask_helper", {"input": "t"}, call_id="c_ask")], "done"]
        helper, _ = inner._agent(0)
        asks = helper.as_tool(tool_name="ask_helper", tool_description="Ask a helper.")
        outer = adapter.Counterseal(
            runtime,
            [asks],
            principal=w.someone,
            run_id=lambda ctx: ctx.context["session"],
            effects={"ask_helper": "compute"},
            grants=w.grants(tools=["ask_helper"]),
        )
        model = ScriptedModel([steps[0], [assistant_message("done")]])
        agent = Agent(name="support", model=model, tools=outer.tools)
        context = {"session": RUN}
        result = await Runner.run(agent, "go", context=context)
        (item,) = result.interruptions
        pending = await inner.governed.pending(item, context)
        await approve(runtime, Turn([pending.record()], {}, set(), None))
        state = result.to_state()
        same(await inner.governed.settle(state, context), [])
        result = await Runner.run(agent, state)
        same(result.final_output, "done")
        same(sorted(effects()), [["note", "x"], ["send_mail", "a@example.org"]])


async def an_unnamed_conversation_is_refused_at_start_up(world: World) -> None:
    async with world.runtime() as runtime:
        try:
            adapter.Counterseal(runtime, [], principal=w.someone)
        except ValueError as error:
            has(str(error), "run_id")
        else:
            raise AssertionError("no error")


CASES = (
    an_agent_as_a_tool_pauses_and_goes_on,
    an_unnamed_conversation_is_refused_at_start_up,
)
