"""Strands Agents: a hook provider.

    governed = Counterseal(runtime, tools, principal=..., effects={"pay": "irreversible"})
    Agent(tools=tools, hooks=[governed])

A hook is where an exception ends the run, and where a call can pause. So the tool is executed
there, and what the framework calls afterwards only answers. The conversation is the agent's state,
also after a session was restored; pass `run_id` to name it yourself.
"""

from __future__ import annotations

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
    from strands.hooks import BeforeToolCallEvent, HookProvider, HookRegistry
    from strands.interrupt import InterruptException
    from strands.types.tools import AgentTool
except ImportError as error:
    raise missing_extra("strands", error) from error

TESTED: Final = {"strands-agents": ">=1.62,<1.63"}
"""The versions that the adapter was tested with."""
_RUN: Final = "counterseal_run"
"""Where an agent's state keeps the name of its run."""
_WAITING: Final = "counterseal_waiting"
"""Where an agent's state keeps, by call, what it waits for."""

check_versions(TESTED)


def host_tool(tool: AgentTool) -> HostTool:
    """Return a tool as its model sees it."""
    spec = tool.tool_spec
    return HostTool(tool.tool_name, spec["description"], spec["inputSchema"]["json"])


def contract_for(tool: AgentTool, *, effect: Effect | str, **options: Any) -> Contract:
    """Return a contract from a tool's own schema. Takes the options of `@tool`."""
    return contract_of(host_tool(tool), effect=effect, **options)


class Counterseal(HookProvider):
    """Puts the tool calls of an agent under contract."""

    def __init__(
        self, runtime: Runtime, tools: Iterable[AgentTool], **options: Unpack[HostOptions]
    ) -> None:
        self._host = Host(runtime, map(host_tool, tools), **options)

    def register_hooks(self, registry: HookRegistry, **_: Any) -> None:
        registry.add_callback(BeforeToolCallEvent, self._before)

    async def _before(self, event: BeforeToolCallEvent) -> None:
        """Execute a tool call under contract; interrupt the run while a person has to decide.

        The framework enters the hook again with the host's answer. The agent's state keeps what a
        call waits for, so that an answer is heard before the call is submitted again.
        """
        if event.cancel_tool:
            return
        call_id = event.tool_use["toolUseId"]
        run_id = self._host.run_id(event, _conversation(event.agent))
        waits = (event.agent.state.get(_WAITING) or {}).get(call_id)
        arguments = waits["arguments"] if waits else event.tool_use["input"]
        number = waits["number"] if waits else 0
        while True:
            if waits is None:
                answer = await self._host.submit(_call(event, arguments, run_id))
                if answer.pending is None or self._host.waits:
                    _keep(event.agent, call_id, None)
                    event.selected_tool = _Answering(event, _result(call_id, answer))
                    return
                shown = answer.pending.record()
                waits = {"shown": shown, "number": number, "arguments": arguments}
                _keep(event.agent, call_id, waits)
            name = f"{waits['shown']['approval_id']}/{number}"
            said = event.interrupt(name, reason=waits["shown"])
            await self._host.vote(said, event)
            if isinstance(said, Mapping) and said.get("type") == "edit":
                arguments = dict(said.get("args") or {})
            waits, number = None, number + 1


class _Answering(AgentTool):
    """Stands for a tool that was executed, and gives its result to the framework."""

    def __init__(self, event: BeforeToolCallEvent, result: dict[str, Any]) -> None:
        super().__init__()
        own = event.selected_tool
        self._name = event.tool_use["name"]
        self._spec = {"name": self._name, "description": "", "inputSchema": {"json": {}}}
        if own is not None:
            self._spec = own.tool_spec
        self._result = result

    @property
    def tool_name(self) -> str:
        return str(self._name)

    @property
    def tool_spec(self) -> Any:
        return self._spec

    @property
    def tool_type(self) -> str:
        return "counterseal"

    async def stream(self, *_: Any, **__: Any) -> Any:
        yield self._result


def _conversation(agent: Any) -> str:
    """Return the name of an agent's run, which stays with its state."""
    known = agent.state.get(_RUN)
    if known is None:
        known = f"strands-{uuid4().hex}"
        agent.state.set(_RUN, known)
    return str(known)


def _keep(agent: Any, call_id: str, waits: dict[str, Any] | None) -> None:
    """Keep what a call waits for in its agent's state, or that it waits no more."""
    known = agent.state.get(_WAITING) or {}
    others = {name: value for name, value in known.items() if name != call_id}
    if waits is not None or call_id in known:
        agent.state.set(_WAITING, others if waits is None else {**others, call_id: waits})


def _call(event: BeforeToolCallEvent, arguments: Any, run_id: str | None) -> HostCall:
    tool, use = event.selected_tool, event.tool_use

    async def execute(corrected: dict[str, Any]) -> Any:
        if tool is None:
            raise SpokenError(use["name"], "this agent has no such tool")
        given = {**use, "input": corrected}
        last: Any = [each async for each in tool.stream(given, event.invocation_state)][-1]
        for interrupt in getattr(last, "interrupts", ()):
            raise InterruptException(interrupt)
        if getattr(last, "exception", None) is not None:
            raise last.exception
        return getattr(last, "tool_result", last)

    return HostCall(
        tool=use["name"],
        arguments=arguments,
        call_id=use["toolUseId"],
        run_id=run_id,
        context=event,
        execute=execute,
        to_plain=_plain,
        passes=(InterruptException,),
    )


def _plain(result: Any) -> Any:
    texts = [block.get("text") for block in result["content"]]
    plain = result["content"] if None in texts else "\n".join(texts)
    if result["status"] == "error":
        raise SpokenError("tool", str(plain))
    return plain


def _result(call_id: str, answer: Answer) -> dict[str, Any]:
    """Return the framework's result: its own, the one of an earlier execution, or an error."""
    if answer.native is not None:
        return {**answer.native[0], "toolUseId": call_id}
    status = "success" if answer.ok else "error"
    return {"toolUseId": call_id, "status": status, "content": [{"text": answer.text}]}
