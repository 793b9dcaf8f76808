"""CrewAI: the tools of a crew or an agent under contract.

    under_contract(crew, runtime, principal=..., effects={"pay": "irreversible"})
    await crew.kickoff_async()

A crew has no pause: a call that needs a person waits, and then the model is told that it is held.
The framework passes no call id to tools, so equal calls of a run are one operation. Its hooks can't
execute a tool or explain a refusal; here they only stop calls that went past a contract.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, Final, TypeVar, Unpack

from counterseal.adapters.host import (
    Answer,
    Host,
    HostCall,
    HostOptions,
    HostTool,
    NotRecordedError,
    check_versions,
    contract_of,
    missing_extra,
)
from counterseal.contract.effects import Effect
from counterseal.contract.model import Contract
from counterseal.errors import SpokenError
from counterseal.runtime import Runtime

try:
    from crewai import Agent, Crew, Process
    from crewai.hooks import HookAborted, InterceptionPoint, ToolCallHookContext, register_hook
    from crewai.tools import BaseTool
    from crewai.tools.tool_failure import ToolFailure
    from crewai.utilities.string_utils import sanitize_tool_name
    from pydantic import PrivateAttr
except ImportError as error:
    raise missing_extra("crewai", error) from error

T = TypeVar("T", bound="Agent | Crew")
TESTED: Final = {"crewai": ">=1.15.30,<1.16"}
"""The versions that the adapter was tested with."""
_NO_PAUSE: Final = (
    "a crew can't pause, and has no answers that could be votes; leave pause and voter out. "
    "A held call waits for `wait` seconds, and then the model is told"
)
_HIERARCHICAL: Final = (
    "the manager of a hierarchical crew gets its tools only when the crew starts, so they can't be "
    "under contract; use a sequential crew whose agents may delegate"
)

check_versions(TESTED)

_CALL: ContextVar[ToolCallHookContext | None] = ContextVar("counterseal_crew_call", default=None)
"""The call that the framework makes now, as its hooks see it: with agent, task and crew."""


def host_tool(tool: BaseTool) -> HostTool:
    """Return a tool as its model sees it."""
    schema = tool.args_schema.model_json_schema()
    return HostTool(sanitize_tool_name(tool.name), tool.description, schema)


def contract_for(tool: BaseTool, *, effect: Effect | str, **options: Any) -> Contract:
    """Return a contract from a tool's own schema. Takes the options of `@tool`."""
    return contract_of(host_tool(tool), effect=effect, **options)


class ContractTool(BaseTool):
    """A tool under contract. It has no cache: a cached answer would go past the gates."""

    _host: Host = PrivateAttr()
    _own: BaseTool = PrivateAttr()

    def __init__(self, host: Host, own: BaseTool) -> None:
        super().__init__(
            name=own.name,
            description=own.description,
            args_schema=own.args_schema,
            result_schema=own.result_schema,
            result_as_answer=own.result_as_answer,
            tool_failure_policy=own.tool_failure_policy,
            cache_function=_never,
        )
        self._host, self._own = host, own

    def run(self, *_: Any, **arguments: Any) -> Any:
        return self._run(**arguments)

    async def arun(self, *_: Any, **arguments: Any) -> Any:
        return await self._arun(**arguments)

    def _run(self, **arguments: Any) -> Any:
        return self._host.from_thread(self._arun(**arguments))

    async def _arun(self, **arguments: Any) -> Any:
        name, context = sanitize_tool_name(self.name), _CALL.get()
        crew = None if context is None or context.crew is None else f"crewai-{context.crew.id}"
        is_async = inspect.iscoroutinefunction(getattr(self._own, "func", None))
        own = self._own.arun if is_async else self._own.run
        call = HostCall(
            tool=name,
            arguments=arguments,
            call_id=None,
            run_id=self._host.run_id(context, crew),
            context=context,
            execute=lambda corrected: own(**corrected),
            to_plain=_plain,
            threaded=not is_async,
        )
        try:
            return _result(await self._host.submit(call))
        except NotRecordedError as error:
            return _Unrecorded(message=str(error))


class _Unrecorded(ToolFailure):
    """The failure of a call that could not be recorded. It ends the run."""


def under_contract(target: T, runtime: Runtime, **options: Unpack[HostOptions]) -> T:
    """Put all tools of a crew or an agent under contract: its own, of tasks, MCP, delegation.

    Changes the crew or agent, and returns it. Call it where the runtime's event loop runs.
    """
    if options.get("pause", "wait") != "wait" or "voter" in options:
        raise ValueError(_NO_PAUSE)
    crew = target if isinstance(target, Crew) else None
    if crew is not None and crew.process is Process.hierarchical:
        raise ValueError(_HIERARCHICAL)
    agents = [target] if crew is None else crew.agents
    owned = [(agent, [*(agent.tools or ()), *_made_at_start(agent, agents)]) for agent in agents]
    if crew is not None:
        owned += [(task, list(task.tools or ())) for task in crew.tasks]
    if any(isinstance(tool, ContractTool) for _, tools in owned for tool in tools):
        raise ValueError("some of these tools are under contract already")
    named = {sanitize_tool_name(tool.name): tool for _, tools in owned for tool in tools}
    options["pause"] = "wait"
    host = Host(runtime, map(host_tool, named.values()), **options)
    for owner, tools in owned:
        owner.tools = [ContractTool(host, tool) for tool in tools]
    for agent in agents:
        agent.mcps, agent.allow_delegation = None, False  # these tools are among its own now
    return target


def _made_at_start(agent: Any, agents: Iterable[Any]) -> list[BaseTool]:
    """Return the tools that the framework would make when the crew starts."""
    made = list(agent.get_mcp_tools(agent.mcps)) if agent.mcps else []
    others = [one for one in agents if one is not agent]
    if agent.allow_delegation and others:
        made += agent.get_delegation_tools(others)
    return made


def _never(*_: Any) -> bool:
    return False


def _plain(result: Any) -> Any:
    if isinstance(result, ToolFailure):
        raise SpokenError("tool", result.message)
    return result


def _result(answer: Answer) -> Any:
    """Return the tool's own result, the one of an earlier execution, or a failure."""
    if answer.ok:
        return answer.value if answer.native is None else answer.native[0]
    held = answer.pending.record() if answer.pending is not None else {}
    code = getattr(answer.observation.code, "value", None)
    return ToolFailure(message=answer.text, code=code, details=held)


# --- hooks ----------------------------------------------------------------------------------------


def _before(context: ToolCallHookContext) -> None:
    """Remember the call for its contract. Stops tools without one beside tools that have one."""
    _CALL.set(None)
    try:
        is_ours = _is_contract_tool(context.tool)
        stop = not is_ours and any(map(_has_contract_tools, _owners(context)))
    except Exception as error:  # any other exception than this would let the tool run
        raise HookAborted("it is not known whether this tool is under contract") from error
    if stop:
        raise HookAborted(f"{context.tool_name} is not under contract")
    if is_ours:
        _CALL.set(context)


def _after(context: ToolCallHookContext) -> None:
    """End the run after a call that could not be recorded."""
    _CALL.set(None)
    if isinstance(context.raw_tool_result, _Unrecorded):
        message = context.raw_tool_result.message
        raise HookAborted(message) from NotRecordedError(message)


def _owners(context: ToolCallHookContext) -> Iterable[Any]:
    crew = context.crew
    return [context.agent, context.task, *(crew.agents if crew else ())]


def _has_contract_tools(owner: Any) -> bool:
    return any(isinstance(tool, ContractTool) for tool in getattr(owner, "tools", None) or ())


def _is_contract_tool(tool: Any) -> bool:
    return isinstance(getattr(getattr(tool, "func", None), "__self__", None), ContractTool)


register_hook(InterceptionPoint.PRE_TOOL_CALL, _before)
register_hook(InterceptionPoint.POST_TOOL_CALL, _after)
