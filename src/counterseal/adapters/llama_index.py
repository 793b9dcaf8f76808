"""LlamaIndex: an agent whose tool calls go through the contract.

    governed = Counterseal(runtime, tools, principal=..., effects={"pay": "irreversible"})
    ContractFunctionAgent(llm=llm, tools=tools, governed=governed)

The framework passes no call id to tools, so the agent's own step is what calls the tool here. The
conversation is the context's, also after `Context.from_dict`; pass `run_id` to name it yourself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final, Unpack
from uuid import uuid4

from counterseal.adapters.host import (
    Answer,
    Host,
    HostCall,
    HostOptions,
    HostTool,
    check_versions,
    contract_of,
    missing_extra,
)
from counterseal.contract.effects import Effect
from counterseal.contract.model import Contract
from counterseal.errors import SpokenError
from counterseal.runtime import Runtime

try:
    from llama_index.core.agent.workflow import (
        AgentWorkflow,
        FunctionAgent,
        ReActAgent,
        ToolCall,
        ToolCallResult,
    )
    from llama_index.core.bridge.pydantic import Field
    from llama_index.core.tools import AsyncBaseTool, BaseTool, FunctionTool, ToolOutput
    from llama_index.core.tools.types import adapt_to_async_tool
    from llama_index.core.workflow import Context, HumanResponseEvent, InputRequiredEvent, step
except ImportError as error:
    raise missing_extra("llama-index", error) from error

TESTED: Final = {"llama-index-core": ">=0.14.25,<0.15"}
"""The versions that the adapter was tested with."""
_RUN: Final = "counterseal_run"
"""Where a context keeps the name of its run."""
_WAITING: Final = "counterseal_waiting"
"""Where a context keeps, by call, what it waits for."""
_AGENTS: Final = "agents"
"""Where the framework keeps the names of a workflow's agents."""
_ELSEWHERE: Final = (
    "an AgentWorkflow calls the tools of its agents itself, past their contracts; "
    "give plain agents to ContractAgentWorkflow instead"
)

check_versions(TESTED)


def host_tool(tool: BaseTool) -> HostTool:
    """Return a tool as its model sees it."""
    about = tool.metadata
    return HostTool(about.get_name(), about.description, about.get_parameters_dict())


def contract_for(tool: BaseTool, *, effect: Effect | str, **options: Any) -> Contract:
    """Return a contract from a tool's own schema. Takes the options of `@tool`."""
    return contract_of(host_tool(tool), effect=effect, **options)


class Counterseal:
    """Puts the tool calls of agents under contract."""

    def __init__(
        self, runtime: Runtime, tools: Iterable[BaseTool], **options: Unpack[HostOptions]
    ) -> None:
        self._host = Host(runtime, map(host_tool, tools), **options)
        self._writing = asyncio.Lock()

    async def call(self, ctx: Context, event: ToolCall, tool: AsyncBaseTool | None) -> ToolOutput:
        """Execute a tool call under contract; wait for an event while a person has to decide.

        The framework runs the whole step again when the event comes, and once more when a context
        is restored. So the context keeps what a call waits for, and such a call waits first.
        """
        run_id = self._host.run_id(ctx, await self._conversation(ctx))
        waits = (await ctx.store.get(_WAITING, default={})).get(event.tool_id)
        arguments, number = (
            (waits["arguments"], waits["number"]) if waits else (event.tool_kwargs, 0)
        )
        while True:
            if waits is None:
                answer = await self._host.submit(_call(ctx, event, tool, arguments, run_id))
                if answer.pending is None or self._host.waits:
                    await self._keep(ctx, event.tool_id, None)
                    return _output(event, answer)
                shown = answer.pending.record()
                waits = {"shown": shown, "number": number, "arguments": arguments}
                await self._keep(ctx, event.tool_id, waits)
            said = await _reply(ctx, waits["shown"], number)
            await self._host.vote(said, ctx)
            if said.get("type") == "edit" and isinstance(said.get("args"), Mapping):
                arguments = dict(said["args"])
            waits, number = None, number + 1

    async def _conversation(self, ctx: Context) -> str:
        """Return the name of a context's run, which stays with the context."""
        async with self._writing:
            known = await ctx.store.get(_RUN, default=None)
            if known is None:
                known = f"llama-index-{uuid4().hex}"
                await ctx.store.set(_RUN, known)
        return str(known)

    async def _keep(self, ctx: Context, call_id: str, waits: dict[str, Any] | None) -> None:
        """Keep what a call waits for in its context, or that it waits no more."""
        async with self._writing:
            others = dict(await ctx.store.get(_WAITING, default={}))
            known = others.pop(call_id, None)
            if waits is not known:
                kept = others if waits is None else {**others, call_id: waits}
                await ctx.store.set(_WAITING, kept)


class _ContractStep:
    """The step of an agent that calls a tool: through the contract."""

    governed: Any

    @step  # type: ignore[untyped-decorator]  # not installed beside the tests
    async def call_tool(self, ctx: Context, ev: ToolCall) -> ToolCallResult:
        called = {"tool_name": ev.tool_name, "tool_kwargs": ev.tool_kwargs, "tool_id": ev.tool_id}
        ctx.write_event_to_stream(ToolCall(**called))
        named = [t for t in await self._tools(ctx, ev) if t.metadata.get_name() == ev.tool_name]
        tool = adapt_to_async_tool(named[-1]) if named else None
        output = await self.governed.call(ctx, ev, tool)
        direct = tool is not None and tool.metadata.return_direct
        result = ToolCallResult(**called, tool_output=output, return_direct=direct)
        ctx.write_event_to_stream(result)
        return result

    async def _tools(self, _ctx: Context, ev: ToolCall) -> Any:
        return await self.get_tools(ev.tool_name)  # type: ignore[attr-defined]

    async def take_step(self, ctx: Context, *more: Any, **options: Any) -> Any:
        if await ctx.store.get(_AGENTS, default=None) is not None:
            raise TypeError(_ELSEWHERE)
        return await super().take_step(ctx, *more, **options)  # type: ignore[misc]


class ContractFunctionAgent(_ContractStep, FunctionAgent):
    """A `FunctionAgent` whose tool calls are under contract."""

    governed: Any = Field(exclude=True)


class ContractReActAgent(_ContractStep, ReActAgent):
    """A `ReActAgent` whose tool calls are under contract."""

    governed: Any = Field(exclude=True)


class ContractAgentWorkflow(AgentWorkflow):
    """An `AgentWorkflow` of plain agents whose tool calls are under contract, `handoff` too."""

    def __init__(self, agents: Any, *, governed: Counterseal, **options: Any) -> None:
        super().__init__(agents, **options)
        self.governed = governed

    call_tool = _ContractStep.call_tool

    async def _tools(self, ctx: Context, ev: ToolCall) -> Any:
        return await self.get_tools(await ctx.store.get("current_agent_name"), ev.tool_name)


async def _reply(ctx: Context, shown: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the host's answer to a question; ends the step until there is one."""
    reply = await ctx.wait_for_event(
        HumanResponseEvent,
        waiter_id=f"{shown['approval_id']}/{number}",
        waiter_event=InputRequiredEvent(prefix=shown["consequence"], **shown),
        requirements={"approval_id": shown["approval_id"]},
        timeout=None,
    )
    return dict(reply.items())


def _call(
    ctx: Context,
    event: ToolCall,
    tool: AsyncBaseTool | None,
    arguments: Mapping[str, Any],
    run_id: str | None,
) -> HostCall:
    async def execute(corrected: dict[str, Any]) -> Any:
        if tool is None:
            raise SpokenError(event.tool_name, "this agent has no such tool")
        if isinstance(tool, FunctionTool) and tool.requires_context and tool.ctx_param_name:
            corrected = {**corrected, tool.ctx_param_name: ctx}
        return await tool.acall(**corrected)

    return HostCall(
        tool=event.tool_name,
        arguments=arguments,
        call_id=event.tool_id,
        run_id=run_id,
        context=ctx,
        execute=execute,
        to_plain=_plain,
    )


def _plain(output: Any) -> Any:
    if output.is_error:
        raise SpokenError(output.tool_name, output.content)
    return output.content


def _output(event: ToolCall, answer: Answer) -> ToolOutput:
    """Return the framework's output: its own, the one of an earlier execution, or an error."""
    if answer.native is not None:
        return answer.native[0]
    return ToolOutput(
        content=answer.text,
        tool_name=event.tool_name,
        raw_input=event.tool_kwargs,
        raw_output=answer.value if answer.ok else answer.observation.record(),
        is_error=not answer.ok,
    )
