"""LlamaIndex's `FunctionAgent`, and a scripted model that calls functions."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import Any

import world as w
from cases import NOTE, count, has, same
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ToolCallResult
from llama_index.core.agent.workflow.multi_agent_workflow import handoff
from llama_index.core.bridge.pydantic import Field
from llama_index.core.llms import ChatMessage, ChatResponse, LLMMetadata
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Context, HumanResponseEvent, InputRequiredEvent
from llama_index.tools.mcp import BasicMCPClient, McpToolSpec
from workflows.events import WorkflowIdleEvent
from world import RUN, Turn, World

from counterseal.adapters import llama_index as adapter

PACKAGES = ("llama-index-core",)
VARIES = {
    "three_in_one_turn": (
        "1x, then 1x or 2x each",
        [f"1x, {first}x, {second}x" for first in (1, 2) for second in (1, 2)],
    )
}
"""Faults whose end differs from run to run with the framework alone: what is said, and the ends."""
contract_for = adapter.contract_for


def own_tool(function: Any, *, asks: bool = False) -> FunctionTool:
    """The framework's own tool of a plain function, with a hand-made approval or not."""
    if not asks:
        return FunctionTool.from_defaults(async_fn=function)
    tool = FunctionTool.from_defaults(async_fn=function)

    async def asking(ctx: Context, **arguments: Any) -> Any:
        waiter = f"{function.__name__} {sorted(arguments.items())}"
        question = InputRequiredEvent(prefix="May I?", approval_id=waiter)
        wanted = {"approval_id": waiter}
        await ctx.wait_for_event(
            HumanResponseEvent, question, waiter, requirements=wanted, timeout=None
        )
        return await function(**arguments)

    asking.__annotations__["ctx"] = Context  # the framework reads no annotations that are text
    about = {"name": tool.metadata.name, "description": tool.metadata.description}
    return FunctionTool.from_defaults(async_fn=asking, fn_schema=tool.metadata.fn_schema, **about)


class Model(FunctionCallingLLM):
    """Says what the script has at this place of the conversation."""

    script: list[Any] = Field(default_factory=list)
    seen: dict[str, str] = Field(default_factory=dict)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_function_calling_model=True, model_name="scripted")

    def _say(self, messages: Any) -> ChatResponse:
        results = [m for m in messages if m.role == "tool"]
        self.seen = {m.additional_kwargs["tool_call_id"]: str(m.content) for m in results}
        number = sum(m.role == "assistant" for m in messages)
        step = self.script[number]
        text = step if isinstance(step, str) else ""
        return ChatResponse(message=ChatMessage(role="assistant", content=text), raw={"at": number})

    async def achat_with_tools(self, *_: Any, chat_history: Any = (), **__: Any) -> ChatResponse:
        return self._say(chat_history)

    async def astream_chat_with_tools(self, *_: Any, chat_history: Any = (), **__: Any) -> Any:
        async def whole() -> Any:
            yield self._say(chat_history)

        return whole()

    def get_tool_calls_from_response(self, response: Any, *_: Any, **__: Any) -> list[Any]:
        step = self.script[response.raw["at"]]
        if isinstance(step, str):
            return []
        return [ToolSelection(tool_id=i, tool_name=n, tool_kwargs=a) for n, a, i in step]

    def _prepare_chat_with_tools(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}

    def chat(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    complete = stream_chat = stream_complete = chat
    achat = acomplete = astream_chat = astream_complete = chat


class Session:
    """An agent whose context is kept in a file."""

    def __init__(self, runtime, place, script, tools, *, retry=False, mcp=(), **options):
        place.mkdir(exist_ok=True)
        self.path = place / "context.json"
        self.model = Model(script=script)
        asking = ("pay", "send_mail") if runtime is None else ()
        own = [own_tool(function, asks=function.__name__ in asking) for function in tools]
        self.tools = own + list(mcp)
        about = {"llm": self.model, "tools": self.tools, "streaming": False}
        if runtime is None:
            self.governed, self.agent = None, FunctionAgent(**about)
        else:
            options = {"run_id": lambda _: RUN, **options}
            self.governed = adapter.Counterseal(runtime, self.tools, **options)
            self.agent = adapter.ContractFunctionAgent(governed=self.governed, **about)

    async def start(self) -> Turn:
        return (await self.stream())[0]

    async def stream(self) -> tuple[Turn, list[Any]]:
        return await self._until_paused(self.agent.run("go"))

    async def resume(self, reply: Any = True) -> Turn:
        """Go on; `reply` is the host's answer, for each pause or for all alike."""
        kept = json.loads(self.path.read_text())
        answers = []
        for shown in kept["asked"]:
            said = reply(shown) if callable(reply) else {"response": str(reply)}
            answers.append(HumanResponseEvent(**{"approval_id": shown["approval_id"], **said}))
        ctx = Context.from_dict(self.agent, kept["context"])
        handler = self.agent.run(ctx=ctx)
        # The framework leaves the memory to its host, and takes it only when the run has begun.
        said = [ChatMessage(role=r, content=c, additional_kwargs=k) for r, c, k in kept["memory"]]
        memory = ChatMemoryBuffer.from_defaults(said, token_limit=10**6)
        await handler.ctx.store.set("memory", memory)
        for answer in answers:
            handler.ctx.send_event(answer)
        return (await self._until_paused(handler))[0]

    async def resume_with(self, arguments: Any) -> Turn:
        """Go on with arguments that a person wrote in the host's page."""
        return await self.resume(lambda _: {"type": "edit", "args": arguments})

    async def nested(self) -> Turn:
        """Run inside of another agent's tool."""
        return await self.start()

    async def _until_paused(self, handler: Any) -> tuple[Turn, list[Any]]:
        """Go on until nothing more happens without an answer, or the model has ended the run."""
        asked, results, errors, events = [], {}, set(), []
        async for event in self._events(handler):
            events.append(type(event).__name__)
            if isinstance(event, ToolCallResult):
                results[event.tool_id] = event.tool_output.content
                errors |= {event.tool_id} if event.tool_output.is_error else set()
            if isinstance(event, InputRequiredEvent):
                asked.append(dict(event.items()))
            if asked and isinstance(event, WorkflowIdleEvent):
                break
        if asked:
            said = (await handler.ctx.store.get("memory")).get_all()
            memory = [(m.role.value, m.content, m.additional_kwargs) for m in said]
            state = {"context": handler.ctx.to_dict(), "memory": memory, "asked": asked}
            self.path.write_text(json.dumps(state))
            await handler.cancel_run()
            return Turn(asked, {**self.model.seen, **results}, errors, None), events
        final = str(await handler)
        return Turn([], {**self.model.seen, **results}, errors, final), events

    async def _events(self, handler: Any) -> Any:
        """The events of a run, which ends with its host: alone it would go on."""
        try:
            async for event in handler.stream_events(expose_internal=True):
                yield event
        except asyncio.CancelledError:
            await handler.cancel_run()
            raise


@asynccontextmanager
async def mcp_tools(server: list[str]) -> Any:
    """The tools of an MCP server, as the framework's own."""
    client = BasicMCPClient(server[0], args=server[1:])
    yield await McpToolSpec(client=client).to_tool_list_async()


def check_stream(chunks: list[Any]) -> None:
    """The framework's stream has the calls and their results."""
    same((chunks.count("ToolCall"), chunks.count("ToolCallResult")), (2, 2))


# --- cases of this framework alone ----------------------------------------------------------------


async def the_context_names_the_run(world: World) -> None:
    """Without `run_id`, calls of one context are one run, and a second context is another."""
    async with world.runtime() as runtime:
        options = {"run_id": None}
        for _ in range(2):
            turn = await world.session(runtime, [[NOTE], "done"], **options).start()
            has(turn.results["c_note"], "noted x")
        count(note=2)


async def a_workflow_of_agents(world: World) -> None:
    """A workflow calls the tools of its agents itself: under contract, or not at all."""
    hand = ("handoff", {"to_agent": "clerk", "reason": "r"}, "c_hand")

    def agent(name: str, script: list[Any], kind: Any = FunctionAgent, **more: Any) -> Any:
        about = {"name": name, "description": name, "llm": Model(script=script), **more}
        return kind(tools=[own_tool(w.note)], streaming=False, **about)

    async with world.runtime() as runtime:
        passing_on = FunctionTool.from_defaults(async_fn=handoff)
        options = {"effects": {"note": "draft", "handoff": "compute"}, "grants": w.AGENT}
        governed = adapter.Counterseal(
            runtime, [own_tool(w.note), passing_on], principal=w.someone, **options
        )
        agents = [agent("first", [[hand]]), agent("clerk", ["", [NOTE], "done"])]
        flow = adapter.ContractAgentWorkflow(agents, governed=governed, root_agent="first")
        same(str(await flow.run("go")), "done")
        count(note=1)
        events = [event for _, event in await runtime.store.events("acme")]
        done = [e.caller.tool for e in events if e.type.value == "tool.succeeded"]
        same(done, ["handoff", "note"])

        past = agent("only", [[NOTE]], adapter.ContractFunctionAgent, governed=governed)
        try:
            await AgentWorkflow([past]).run("go")
        except TypeError as error:
            has(str(error), "ContractAgentWorkflow")
        else:
            raise AssertionError("the run went past the contract")
        count(note=1)


class Thinker(Model):
    """Calls tools in words."""

    async def achat(self, messages: Any, **_: Any) -> ChatResponse:
        said = sum(m.role == "assistant" for m in messages)
        return ChatResponse(message=ChatMessage(role="assistant", content=self.script[said]))


async def an_agent_that_calls_tools_in_words(world: World) -> None:
    async with world.runtime() as runtime:
        governed = adapter.Counterseal(
            runtime,
            [own_tool(w.note), own_tool(w.look_up)],
            principal=w.someone,
            effects={"note": "draft", "look_up": "read_only"},
            grants=w.grants(tools=["note"]),
        )
        note = 'Thought: I write.\nAction: note\nAction Input: {"text": "x"}'
        look = 'Thought: I look.\nAction: look_up\nAction Input: {"topic": "y"}'
        llm = Thinker(script=[note, look, "Thought: I can answer.\nAnswer: done"])
        tools = [own_tool(w.note), own_tool(w.look_up)]
        agent = adapter.ContractReActAgent(llm=llm, tools=tools, governed=governed, streaming=False)
        handler = agent.run("go")
        results = [e async for e in handler.stream_events() if isinstance(e, ToolCallResult)]
        same(str(await handler), "done")
        same([one.tool_output.is_error for one in results], [False, True])
        has(results[1].tool_output.content, "PERMISSION_DENIED")
        count(note=1)


CASES = (
    the_context_names_the_run,
    a_workflow_of_agents,
    an_agent_that_calls_tools_in_words,
)
