"""LangChain's `create_agent`, LangGraph's `ToolNode`, and their scripted model."""

from __future__ import annotations

import asyncio
import inspect
import shutil
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import world as w
from cases import NOTE, has, same
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from pydantic import Field
from world import RUN, Turn, World, approve, effects

from counterseal.adapters import langgraph as adapter
from counterseal.adapters.host import Host

PACKAGES = ("langchain", "langgraph")
ONE_NODE = {"node": True}
"""The options with which all calls of a turn run in one node."""
contract_for = adapter.contract_for


def own_tool(function: Any) -> StructuredTool:
    """The framework's own tool of a plain function."""

    @wraps(function)
    async def streaming(**arguments: Any) -> Any:
        get_stream_writer()(f"acting: {function.__name__}")
        return await function(**arguments)

    return StructuredTool.from_function(coroutine=streaming)


class Model(BaseChatModel):
    """Says what the script has at this place of the conversation."""

    script: list[Any]
    seen: dict[str, str] = Field(default_factory=dict)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
        self.seen = {m.tool_call_id: str(m.content) for m in messages if m.type == "tool"}
        step = self.script[sum(m.type == "ai" for m in messages)]
        if isinstance(step, str):
            message = AIMessage(step)
        else:
            calls = [{"name": n, "args": a, "id": i, "type": "tool_call"} for n, a, i in step]
            message = AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


class Session:
    """An agent with `create_agent`, or with `node=True` a graph with a tool node."""

    def __init__(
        self, runtime, place, script, tools, *, node=False, retry=False, mcp=(), **options
    ):
        place.mkdir(exist_ok=True)
        self.path, self.node, self.retry = place / "graph.db", node, retry
        self.model = Model(script=script)
        self.tools = [own_tool(function) for function in tools] + list(mcp)
        self.config = {"configurable": {"thread_id": RUN}}
        self.governed = None
        if runtime is not None:
            self.governed = adapter.Counterseal(runtime, self.tools, **options)

    def _graph(self, saver: Any) -> Any:
        governed = self.governed
        if self.node:
            graph = StateGraph(MessagesState)
            graph.add_node("model", self._say)
            wrap = _asked if governed is None else governed.awrap_tool_call
            graph.add_node("tools", ToolNode(self.tools, awrap_tool_call=wrap))
            graph.add_edge(START, "model")
            graph.add_conditional_edges("model", _next, ["tools", END])
            graph.add_edge("tools", "model")
            return graph.compile(checkpointer=saver)
        retry = [ToolRetryMiddleware(max_retries=2, initial_delay=0, jitter=False)]
        middleware = [*(retry if self.retry else ()), *([governed] if governed else [_Asked()])]
        return create_agent(self.model, self.tools, middleware=middleware, checkpointer=saver)

    async def _say(self, state: Any) -> Any:
        return {"messages": [await self.model.ainvoke(state["messages"])]}

    async def start(self) -> Turn:
        return await self._run({"messages": [("user", "go")]})

    async def resume(self, reply: Any = True) -> Turn:
        """Go on; `reply` is the host's answer, for each pause or for all alike."""
        async with AsyncSqliteSaver.from_conn_string(str(self.path)) as saver:
            state = await self._graph(saver).aget_state(self.config)
        answers = {}
        for one in state.interrupts:
            answers[one.id] = reply(one.value) if callable(reply) else reply
        return await self._run(Command(resume=answers))

    async def _run(self, given: Any) -> Turn:
        async with AsyncSqliteSaver.from_conn_string(str(self.path)) as saver:
            out = await self._graph(saver).ainvoke(given, self.config, version="v2")
        return self._turn(out.value["messages"], out.interrupts)

    async def stream(self) -> tuple[Turn, list[Any]]:
        """The same as `start`, with the framework's stream: what came, in order."""
        async with AsyncSqliteSaver.from_conn_string(str(self.path)) as saver:
            graph, chunks = self._graph(saver), []
            given = {"messages": [("user", "go")]}
            async for kind, chunk in graph.astream(
                given, self.config, stream_mode=["updates", "custom"]
            ):
                chunks.append((kind, chunk))
            state = await graph.aget_state(self.config)
        streamed = [chunk for kind, chunk in chunks if kind == "custom"]
        return self._turn(state.values["messages"], state.interrupts), streamed

    async def resume_with(self, arguments: Any) -> Turn:
        """Go on with arguments that a person wrote in the host's page."""
        return await self.resume(
            lambda shown: {
                "type": "edit",
                "approval_id": shown.get("approval_id"),
                "args": arguments,
            }
        )

    async def nested(self) -> Turn:
        """Run inside of another agent's tool."""
        graph = create_agent(self.model, self.tools, middleware=[self.governed])
        out = await graph.ainvoke({"messages": [("user", "go")]}, version="v2")
        return self._turn(out.value["messages"], out.interrupts)

    def _turn(self, messages: Any, interrupts: Any) -> Turn:
        tools = [m for m in messages if isinstance(m, ToolMessage)]
        errors = {m.tool_call_id for m in tools if m.status == "error"}
        pending = [one.value for one in interrupts]
        final = None if pending else str(messages[-1].content)
        return Turn(pending, dict(self.model.seen), errors, final)


def _next(state: Any) -> str:
    return "tools" if state["messages"][-1].tool_calls else END


async def _asked(request: Any, handler: Any) -> Any:
    """The usual hand-made approval: ask, and run if the answer is yes."""
    if request.tool_call["name"] in ("pay", "send_mail"):
        reply = interrupt({"tool_call_id": request.tool_call["id"]})
        if isinstance(reply, dict):  # edited, as LangChain's own middleware allows it
            edited = {**request.tool_call, "args": reply["args"]}
            return await handler(request.override(tool_call=edited))
    return await handler(request)


class _Asked(adapter.AgentMiddleware):
    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return await _asked(request, handler)


@asynccontextmanager
async def mcp_tools(server: list[str]) -> Any:
    """The tools of an MCP server, as the framework's own."""
    connection = {"command": server[0], "args": server[1:], "transport": "stdio"}
    client = MultiServerMCPClient({"counter": connection})
    async with client.session("counter") as session:
        yield await load_mcp_tools(session)


def check_stream(chunks: list[Any]) -> None:
    """What a tool writes to the framework's stream arrives, although we execute it."""
    if chunks != ["acting: note", "acting: look_up"]:
        raise AssertionError(chunks)


# --- cases of this framework alone ----------------------------------------------------------------

PAIR = [("pay", {"to": "a", "amount": 1}, "c_a"), ("pay", {"to": "b", "amount": 1}, "c_b")]
MAIL = ("send_mail", {"to": "x", "body": "hi"}, "c_mail")


async def a_tool_node_that_runs_its_finished_calls_again(world: World) -> None:
    """One node runs all calls of a turn, and runs all of them again at each resume."""
    async with world.runtime() as runtime:
        session = world.session(runtime, [[NOTE, *PAIR], "done"], node=True)
        turn = await session.start()
        while turn.pending:
            await approve(runtime, turn)
            turn = await session.resume()
        same(turn.final, "done")
        same(sorted(effects()), [["note", "x"], ["pay", "a"], ["pay", "b"]])


async def votes_of_a_tool_node_go_where_they_belong(world: World) -> None:
    """The calls of a node share their pauses: an answer may reach another call than its own."""
    calls = [("send_mail", {"to": to, "body": "hi"}, f"c_{to}") for to in ("a", "b", "c")]

    def voter(_context: Any, answer: Any) -> Any:
        return w.ANN

    def reply(shown: Any) -> Any:
        kind = "reject" if shown["args"]["to"] == "b" else "approve"
        return {"type": kind, "approval_id": shown["approval_id"], "message": "not b"}

    async with world.runtime() as runtime:
        session = world.session(runtime, [calls, "done"], node=True, voter=voter)
        turn, rounds = await session.start(), 0
        while turn.pending and rounds < 9:
            turn, rounds = await session.resume(reply), rounds + 1
        same((turn.final, turn.errors), ("done", {"c_b"}))
        has(turn.results["c_b"], "not b")
        same(sorted(effects()), [["send_mail", "a"], ["send_mail", "c"]])


async def sync_entry_points(world: World) -> None:
    async with world.runtime() as runtime:
        tools = [own_tool(function) for function in (w.note, w.send_mail)]
        blocking = [StructuredTool.from_function(_blocking(tool), name=tool.name) for tool in tools]
        effects_ = {"note": "draft", "send_mail": "external_notification"}
        options = {"principal": w.someone, "grants": w.grants(tools=effects_), "effects": effects_}
        governed = adapter.Counterseal(runtime, blocking, **options)
        model = Model(script=[[NOTE, MAIL], "done"])
        saver = InMemorySaver()
        agent = create_agent(model, blocking, middleware=[governed], checkpointer=saver)
        config = {"configurable": {"thread_id": RUN}}
        given = {"messages": [("user", "go")]}
        out = await asyncio.to_thread(agent.invoke, given, config, version="v2")
        same(len(out.interrupts), 1)
        turn = Turn([one.value for one in out.interrupts], {}, set(), None)
        await approve(runtime, turn)
        await asyncio.to_thread(agent.invoke, Command(resume=True), config)
        same(sorted(effects()), [["note", "x"], ["send_mail", "x"]])
        Host.patience = 0.2
        try:
            agent.invoke(given, {"configurable": {"thread_id": "other"}})
        except RuntimeError as error:
            has(str(error), "asyncio.to_thread")
        else:
            raise AssertionError("a sync call in the loop's own thread would wait for ever")


def _blocking(tool: Any) -> Any:
    def function(**arguments: Any) -> str:
        w.post([tool.name, next(iter(arguments.values()))])
        return "done"

    function.__doc__ = tool.description
    function.__signature__ = inspect.signature(getattr(w, tool.name))
    function.__annotations__ = getattr(w, tool.name).__annotations__
    return function


async def a_tool_alone_without_a_node(world: World) -> None:
    async with world.runtime() as runtime:
        governed = adapter.Counterseal(
            runtime,
            [w.look_up],  # a bare function, as create_agent takes it
            principal=w.someone,
            effects={"look_up": "read_only"},
            grants=w.grants(tools=["look_up"]),
        )
        alone = governed.tool(StructuredTool.from_function(coroutine=w.look_up))
        call = {"name": "look_up", "args": {"topic": "y"}, "id": "c_1", "type": "tool_call"}
        has((await alone.ainvoke(call)).content, "about y")
        has(await alone.ainvoke({"topic": "z"}), "about z")
        refused = await alone.ainvoke({**call, "args": {"subject": "y"}})
        same(refused.status, "error")
        same(effects(), [["look_up", "y"], ["look_up", "z"]])


async def a_command_is_made_again_from_the_ledger(world: World) -> None:
    """A tool that changes the graph's state changes it again when its call is only repeated."""

    async def note(text: str) -> Any:
        """Write a note."""
        await w.act("note", text)
        return Command(update={"messages": [ToolMessage("noted", tool_call_id="c_note")]})

    async with world.runtime() as runtime:
        for _ in range(2):
            session = world.session(runtime, [[NOTE], "done"], tools=(note,))
            turn = await session.start()
            same((turn.results, turn.final), ({"c_note": "noted"}, "done"))
            shutil.rmtree(world.place / "state")
        same(effects(), [["note", "x"]])


async def a_tool_that_interrupts_by_itself(world: World) -> None:
    async def note(text: str) -> str:
        """Write a note, after a question."""
        answer = interrupt({"question": "which colour?"})
        await w.act("note", f"{text} {answer}")
        return f"noted {text} {answer}"

    async with world.runtime() as runtime:
        session = world.session(runtime, [[NOTE], "done"], tools=(note,))
        turn = await session.start()
        same(turn.pending, [{"question": "which colour?"}])
        turn = await session.resume("red")
        has(turn.results["c_note"], "noted x red")
        same(effects(), [["note", "x red"]])


CASES = (
    a_tool_node_that_runs_its_finished_calls_again,
    votes_of_a_tool_node_go_where_they_belong,
    sync_entry_points,
    a_tool_alone_without_a_node,
    a_command_is_made_again_from_the_ledger,
    a_tool_that_interrupts_by_itself,
)
