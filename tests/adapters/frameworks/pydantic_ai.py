"""Pydantic AI with its function model."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import Any

import world as w
from cases import LOOK, NOTE, has, same
from pydantic_ai import Agent, ModelRetry, Tool
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved
from world import RUN, Turn, World, effects

from counterseal.adapters import pydantic_ai as adapter
from counterseal.errors import ContractError

PACKAGES = ("pydantic-ai-slim",)
contract_for = adapter.contract_for
own_tool = Tool


class Session:
    """An agent whose messages are kept as JSON, as a host would keep them."""

    def __init__(self, runtime, place, script, tools, *, retry=False, **options):
        place.mkdir(exist_ok=True)
        self.path, self.script = place / "messages.json", script
        self.seen, self.errors = {}, set()
        mcp = options.pop("mcp", ())
        own = [
            Tool(tool, requires_approval=runtime is None and tool.__name__ in ("pay", "send_mail"))
            for tool in tools
        ]
        capabilities = []
        if runtime is not None:
            capabilities = [adapter.Counterseal(runtime, own, **options)]
        self.agent = Agent(
            FunctionModel(self._say, stream_function=self._stream),
            output_type=[str, DeferredToolRequests],
            tools=own,
            toolsets=list(mcp),
            capabilities=capabilities,
        )

    def _step(self, messages: Any) -> Any:
        for message in messages:
            for part in message.parts if isinstance(message, ModelRequest) else ():
                if isinstance(part, ToolReturnPart):
                    self.seen[part.tool_call_id] = part.model_response_str()
                    if part.outcome in ("failed", "retried"):
                        self.errors.add(part.tool_call_id)
        return self.script[sum(isinstance(message, ModelResponse) for message in messages)]

    def _say(self, messages: Any, _info: Any) -> ModelResponse:
        step = self._step(messages)
        if isinstance(step, str):
            return ModelResponse(parts=[TextPart(step)])
        return ModelResponse(parts=[ToolCallPart(*each) for each in step])

    async def _stream(self, messages: Any, _info: Any) -> Any:
        step = self._step(messages)
        if isinstance(step, str):
            yield step
            return
        for index, (name, arguments, call_id) in enumerate(step):
            yield {index: DeltaToolCall(name, json.dumps(arguments), tool_call_id=call_id)}

    async def start(self) -> Turn:
        return self._turn(await self.agent.run("go", conversation_id=RUN))

    async def resume(self, reply: Any = True) -> Turn:
        kept = json.loads(self.path.read_text())
        answers = dict.fromkeys(kept["pending"], True)
        metadata = {}
        if callable(reply):
            metadata = {call_id: reply(shown) for call_id, shown in kept["pending"].items()}
        return await self._go_on(kept, DeferredToolResults(approvals=answers, metadata=metadata))

    async def resume_with(self, arguments: Any) -> Turn:
        kept = json.loads(self.path.read_text())
        changed = ToolApproved(override_args=arguments)
        answers = dict.fromkeys(kept["pending"], changed)
        return await self._go_on(kept, DeferredToolResults(approvals=answers))

    async def _go_on(self, kept: Any, results: DeferredToolResults) -> Turn:
        history = ModelMessagesTypeAdapter.validate_python(kept["messages"])
        run = self.agent.run(
            message_history=history, deferred_tool_results=results, conversation_id=RUN
        )
        return self._turn(await run)

    async def stream(self) -> tuple[Turn, list[Any]]:
        async with self.agent.run_stream_events("go", conversation_id=RUN) as events:
            chunks = [event async for event in events]
        return self._turn(chunks[-1].result), chunks

    async def nested(self) -> Turn:
        return self._turn(await self.agent.run("go"))

    def _turn(self, result: Any) -> Turn:
        deferred = isinstance(result.output, DeferredToolRequests)
        pending = {}
        if deferred:
            shown = result.output.metadata
            ids = [one.tool_call_id for one in result.output.approvals]
            pending = {call_id: shown.get(call_id, {}) for call_id in ids}
        messages = json.loads(result.all_messages_json())
        self.path.write_text(json.dumps({"messages": messages, "pending": pending}))
        final = None if deferred else result.output
        return Turn([*pending.values()], dict(self.seen), set(self.errors), final)


@asynccontextmanager
async def mcp_tools(server: list[str]) -> Any:
    from fastmcp.client.transports import StdioTransport

    async with MCPToolset(StdioTransport(server[0], server[1:])) as toolset:
        yield [toolset]


def check_stream(chunks: list[Any]) -> None:
    kinds = [getattr(chunk, "event_kind", "") for chunk in chunks]
    same(kinds.count("function_tool_result"), 2, kinds)


# --- cases of this framework alone ----------------------------------------------------------------


async def a_retry_that_a_tool_asks_for(world: World) -> None:
    """A tool that reads may ask the model again; one that changes something may have done it."""

    async def look_up(topic: str) -> str:
        """Look something up."""
        await w.act("look_up", topic)
        if topic == "y":
            raise ModelRetry("ask for z")
        return f"about {topic}"

    async def note(text: str) -> str:
        """Write a note."""
        await w.act("note", text)
        raise ModelRetry("try once more")

    script = [[LOOK], [("look_up", {"topic": "z"}, "c_2")], [NOTE], [NOTE], "done"]
    async with world.runtime() as runtime:
        options = {"tools": (look_up, note), "same": "intent"}
        turn = await world.session(runtime, script, **options).start()
        has(turn.results["c_look"], "ask for z")
        has(turn.results["c_2"], "about z")
        has(turn.results["c_note"], "not known whether")
        same(effects(), [["look_up", "y"], ["look_up", "z"], ["note", "x"]])


async def a_run_with_an_undeclared_tool_does_not_begin(world: World) -> None:
    """Tools of decorators and servers are known only when a run begins."""
    asked = []

    def model(messages: Any, _info: Any) -> ModelResponse:
        asked.append(messages)
        return ModelResponse(parts=[TextPart("done")])

    async with world.runtime() as runtime:
        governed = adapter.Counterseal(runtime, principal=w.someone)
        agent = Agent(FunctionModel(model), tools=[w.pay, w.note], capabilities=[governed])
        try:
            await agent.run("go")
        except ContractError as error:
            same({problem.tool for problem in error.problems}, {"pay", "note"})
        else:
            raise AssertionError("the run began")
        same(asked, [])


CASES = (
    a_retry_that_a_tool_asks_for,
    a_run_with_an_undeclared_tool_does_not_begin,
)
