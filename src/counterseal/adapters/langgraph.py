"""LangChain and LangGraph: one class for `create_agent`, for `ToolNode` and for single tools.

    governed = Counterseal(runtime, tools, principal=..., effects={"pay": "irreversible"})
    create_agent(model, tools, middleware=[governed])
    ToolNode(tools, wrap_tool_call=governed.wrap_tool_call,
             awrap_tool_call=governed.awrap_tool_call)

Put it last in the list of middleware, closest to the tool: a retry inside of it would act twice.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias, Unpack

from counterseal.adapters.host import (
    Answer,
    Host,
    HostCall,
    HostOptions,
    HostTool,
    Pending,
    check_versions,
    contract_of,
    missing_extra,
)
from counterseal.contract.effects import Effect
from counterseal.contract.model import Contract
from counterseal.errors import SpokenError
from counterseal.runtime import Runtime

try:
    from langchain.agents.middleware import AgentMiddleware
    from langchain_core.messages import ToolMessage, message_to_dict, messages_from_dict
    from langchain_core.runnables import RunnableConfig
    from langchain_core.runnables.config import ensure_config
    from langchain_core.tools import BaseTool
    from langchain_core.tools import tool as make_tool
    from langchain_core.utils.function_calling import convert_to_openai_tool
    from langgraph.errors import GraphBubbleUp
    from langgraph.prebuilt.tool_node import ToolCallRequest, ToolRuntime
    from langgraph.runtime import get_runtime
    from langgraph.types import Command, interrupt
except ImportError as error:
    raise missing_extra("langgraph", error) from error

TESTED: Final = {"langchain": ">=1.4,<1.6", "langgraph": ">=1.2,<1.3"}
"""The versions that the adapter was tested with."""
_COMMAND: Final = "langgraph_command"

Result: TypeAlias = Any
"""A `ToolMessage` or a `Command`."""

check_versions(TESTED)


def host_tool(given: BaseTool | Callable[..., Any]) -> HostTool:
    """Return a tool, or a function that `create_agent` would make one of, as its model sees it."""
    tool = given if isinstance(given, BaseTool) else make_tool(given)
    shown = convert_to_openai_tool(tool)["function"]
    schema = shown.get("parameters") or {"type": "object", "properties": {}}
    return HostTool(tool.name, tool.description or tool.name, schema)


def contract_for(
    tool: BaseTool | Callable[..., Any], *, effect: Effect | str, **options: Any
) -> Contract:
    """Return a contract from a tool's own schema. Takes the options of `@tool`."""
    return contract_of(host_tool(tool), effect=effect, **options)


class Counterseal(AgentMiddleware[Any, Any, Any]):
    """Puts the tool calls of an agent, or of a tool node, under contract."""

    def __init__(
        self,
        runtime: Runtime,
        tools: Iterable[BaseTool | Callable[..., Any]],
        **options: Unpack[HostOptions],
    ) -> None:
        super().__init__()
        self._host = Host(runtime, map(host_tool, tools), **options)

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[Result]],
    ) -> Result:
        """Execute a tool call under contract; pause the graph while a person has to decide."""
        call = self._call(request, handler)
        answer, note = await self._host.submit(call), None
        while answer.pending is not None and not self._host.waits:
            reply = interrupt(_question(request, answer.pending, note))
            note = await self._host.vote(reply, request.runtime)
            call = _edited(call, reply, answer.pending)
            answer = await self._host.submit(call)
        return _message(request, call, answer)

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Result]
    ) -> Result:
        """Execute a tool call of `invoke`, which must not run in the runtime's own thread."""
        host = self._host
        call = replace(self._call(request, handler), threaded=True)
        answer, note = host.from_thread(host.submit(call)), None
        while answer.pending is not None and not host.waits:
            reply = interrupt(_question(request, answer.pending, note))
            note = host.from_thread(host.vote(reply, request.runtime))
            call = _edited(call, reply, answer.pending)
            answer = host.from_thread(host.submit(call))
        return _message(request, call, answer)

    def tool(self, tool: BaseTool) -> BaseTool:
        """Return a tool that is under contract by itself, for graphs without a tool node."""
        return _GovernedTool.around(tool, self)

    def _call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]
    ) -> HostCall:
        called, runtime = request.tool_call, request.runtime
        configurable = (runtime.config or {}).get("configurable") or {}
        thread = configurable.get("thread_id")

        def execute(arguments: dict[str, Any]) -> Any:
            if arguments == called["args"]:
                return handler(request)
            return handler(request.override(tool_call={**called, "args": arguments}))

        return HostCall(
            tool=called["name"],
            arguments=called["args"],
            call_id=called["id"],
            run_id=self._host.run_id(runtime, None if thread is None else str(thread)),
            context=runtime,
            execute=execute,
            to_plain=lambda result: _plain(called["name"], result),
            passes=(GraphBubbleUp,),
        )


# --- the pause ------------------------------------------------------------------------------------


def _question(request: ToolCallRequest, pending: Pending, note: str | None) -> dict[str, Any]:
    """Return the value of the interrupt: LangChain's form of an approval, and ours beside it."""
    called = request.tool_call
    return {
        "type": "tool_approval",
        "tool_call_id": called["id"],
        "name": called["name"],
        "args": called["args"],
        "description": pending.consequence,
        **pending.record(),
        **({"vote_refused": note} if note else {}),
    }


def _edited(call: HostCall, reply: Any, pending: Pending) -> HostCall:
    """Return the call with the arguments that a person wrote: another proposal than before."""
    if not isinstance(reply, Mapping) or reply.get("type") != "edit":
        return call
    action = reply.get("edited_action") or reply
    arguments = action.get("args") if isinstance(action, Mapping) else None
    if reply.get("approval_id") != pending.approval_id or not isinstance(arguments, Mapping):
        return call  # an answer to another question
    return replace(call, arguments=dict(arguments))


# --- results --------------------------------------------------------------------------------------


def _plain(tool: str, result: Any) -> Any:
    """Return a result as plain data, from which it can be made again."""
    if isinstance(result, ToolMessage):
        if result.status == "error":
            raise SpokenError(tool, str(result.text))
        return result.content
    if isinstance(result, Command):
        update = result.update if isinstance(result.update, Mapping) else {}
        kept = {
            name: [message_to_dict(each) for each in value] if name == "messages" else value
            for name, value in update.items()
        }
        names = result.goto if isinstance(result.goto, str) else [*result.goto]
        goto = names if all(isinstance(each, str) for each in names) else ()  # a Send is not kept
        return {_COMMAND: {"update": kept, "goto": goto, "graph": result.graph}}
    return result


def _message(request: ToolCallRequest, call: HostCall, answer: Answer) -> Result:
    """Return the framework's result: its own, the one of an earlier execution, or an error."""
    called = request.tool_call
    if not answer.ok:
        return ToolMessage(
            content=answer.text,
            tool_call_id=called["id"],
            name=called["name"],
            status="error",
            artifact=answer.observation.record(),
        )
    changed = "" if call.arguments == called["args"] else f"\n[{_edited_sentence(call.arguments)}]"
    if answer.native is not None and not changed:
        return answer.native[0]
    value = answer.value
    if isinstance(value, dict) and _COMMAND in value:
        return _command(value[_COMMAND])
    blocks = isinstance(value, list) and not changed
    return ToolMessage(
        content=value if blocks else f"{answer.text}{changed}",
        tool_call_id=called["id"],
        name=called["name"],
    )


def _edited_sentence(arguments: Any) -> str:
    return f"A person changed the arguments to {json.dumps(arguments)}"


def _command(kept: Mapping[str, Any]) -> Command[Any]:
    update = dict(kept["update"])
    if "messages" in update:
        update["messages"] = messages_from_dict(update["messages"])
    return Command(update=update, goto=kept["goto"], graph=kept["graph"])


# --- single tools ---------------------------------------------------------------------------------


class _GovernedTool(BaseTool):
    """A tool whose `invoke` and `ainvoke` go through the contract."""

    inner: BaseTool
    governed: Any

    @classmethod
    def around(cls, inner: BaseTool, governed: Counterseal) -> _GovernedTool:
        return cls(
            name=inner.name,
            description=inner.description,
            args_schema=inner.args_schema,
            return_direct=inner.return_direct,
            inner=inner,
            governed=governed,
        )

    async def ainvoke(
        self,
        input: Any,  # noqa: A002 - the framework's name
        config: RunnableConfig | None = None,
        **more: Any,
    ) -> Any:
        async def handler(changed: ToolCallRequest) -> Any:
            return await self.inner.ainvoke(_with_injected(called, changed), config, **more)

        called, request = self._request(input, config)
        return _bare(input, await self.governed.awrap_tool_call(request, handler))

    def invoke(
        self,
        input: Any,  # noqa: A002 - the framework's name
        config: RunnableConfig | None = None,
        **more: Any,
    ) -> Any:
        def handler(changed: ToolCallRequest) -> Any:
            return self.inner.invoke(_with_injected(called, changed), config, **more)

        called, request = self._request(input, config)
        return _bare(input, self.governed.wrap_tool_call(request, handler))

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("call invoke or ainvoke, which go through the contract")

    def _request(
        self, given: Any, config: RunnableConfig | None
    ) -> tuple[dict[str, Any], ToolCallRequest]:
        """Return the whole call, and the request with only those arguments that a model wrote."""
        called = dict(given) if _is_call(given) else {"name": self.name, "args": given, "id": None}
        shown = host_tool(self.inner).input_schema.get("properties", {})
        if isinstance(called["args"], str):  # a tool of one parameter takes a bare text
            called["args"] = {next(iter(shown), "input"): called["args"]}
        own = {name: value for name, value in called["args"].items() if name in shown}
        try:
            context = get_runtime().context
        except RuntimeError:
            context = None  # outside of a graph
        runtime: Any = ToolRuntime(
            state=None,
            context=context,
            config=ensure_config(config),
            stream_writer=lambda _: None,
            tool_call_id=called["id"],
            store=None,
        )
        request: Any = {**called, "args": own}
        return called, ToolCallRequest(request, self.inner, None, runtime)


def _is_call(given: Any) -> bool:
    return isinstance(given, Mapping) and given.get("type") == "tool_call"


def _with_injected(called: Mapping[str, Any], changed: ToolCallRequest) -> dict[str, Any]:
    """Return the call to execute: injected arguments as they came, the others as decided."""
    arguments = {**called["args"], **changed.tool_call["args"]}
    return {**called, "args": arguments, "type": "tool_call", "id": called["id"] or "direct"}


def _bare(given: Any, result: Any) -> Any:
    """Return the content alone to a caller who gave the arguments alone."""
    return result.content if isinstance(result, ToolMessage) and not _is_call(given) else result
