"""Microsoft Agent Framework: function middleware.

    governed = Counterseal(runtime, tools, principal=..., effects={"pay": "irreversible"})
    Agent(client=client, tools=tools, middleware=[governed])

Put it last in the list of middleware, closest to the tool. A refusal is text in the tool's result:
the framework gives middleware no way to mark one as failed. A call that the host declines never
comes here, so the request for approval stays at the desk until it expires.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Unpack

from counterseal.adapters.host import (
    Answer,
    Host,
    HostCall,
    HostOptions,
    HostTool,
    NotRecordedError,
    Pending,
    check_versions,
    contract_of,
    missing_extra,
)
from counterseal.contract.effects import Effect
from counterseal.contract.model import Contract
from counterseal.runtime import Runtime

try:
    from agent_framework import (
        Content,
        FunctionInvocationContext,
        FunctionMiddleware,
        FunctionTool,
        MiddlewareFailure,
        MiddlewareTermination,
    )
    from agent_framework.exceptions import UserInputRequiredException
except ImportError as error:
    raise missing_extra("agent-framework", error) from error

TESTED: Final = {"agent-framework-core": ">=1.23,<1.24"}
"""The versions that the adapter was tested with."""
_CONTENTS: Final = "agent_framework_contents"

check_versions(TESTED)


def host_tool(tool: FunctionTool) -> HostTool:
    """Return a tool as its model sees it."""
    return HostTool(tool.name, tool.description or tool.name, tool.parameters())


def contract_for(tool: FunctionTool, *, effect: Effect | str, **options: Any) -> Contract:
    """Return a contract from a tool's own schema. Takes the options of `@tool`."""
    return contract_of(host_tool(tool), effect=effect, **options)


class Counterseal(FunctionMiddleware):
    """Puts the tool calls of an agent under contract."""

    def __init__(
        self, runtime: Runtime, tools: Iterable[FunctionTool], **options: Unpack[HostOptions]
    ) -> None:
        self._host = Host(runtime, map(host_tool, tools), **options)

    async def process(
        self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]
    ) -> None:
        """Execute a tool call under contract; pause the run while a person has to decide."""
        host, reply = self._host, _reply(context)
        note = await host.vote(reply, context)
        edited = reply.get("args") if reply.get("type") == "edit" else None
        arguments = dict(edited if isinstance(edited, Mapping) else context.arguments)
        try:
            answer = await host.submit(self._call(context, arguments, call_next))
        except NotRecordedError as error:
            raise MiddlewareFailure(str(error)) from error
        if answer.pending is None or host.waits:
            context.result = _result(answer)
            return
        context.result = _question(context, arguments, answer.pending, note)
        raise MiddlewareTermination("A person has to decide on this call.")

    def _call(
        self,
        context: FunctionInvocationContext,
        arguments: dict[str, Any],
        call_next: Callable[[], Awaitable[None]],
    ) -> HostCall:
        async def execute(corrected: dict[str, Any]) -> Any:
            if corrected != context.arguments:
                context.arguments = corrected
            await call_next()
            return context.result

        session = context.session
        return HostCall(
            tool=context.function.name,
            arguments=arguments,
            call_id=context.metadata["call_id"],
            run_id=self._host.run_id(context, None if session is None else session.session_id),
            context=context,
            execute=execute,
            to_plain=_plain,
            passes=(UserInputRequiredException, MiddlewareTermination),
        )


def _reply(context: FunctionInvocationContext) -> Mapping[str, Any]:
    """Return what the host added to its answer: who decided, or other arguments."""
    response = context.metadata.get("approval_response")
    return {} if response is None else dict(response.additional_properties or {})


def _question(
    context: FunctionInvocationContext,
    arguments: dict[str, Any],
    pending: Pending,
    note: str | None,
) -> Content:
    """Return the framework's request for approval, with ours in its additional properties."""
    known = context.metadata
    # The framework binds answers to its own id of the call, not to the provider's.
    occurrence = str(known.get("function_call_occurrence_id") or known["call_id"])
    call = Content.from_function_call(
        call_id=known["call_id"], name=context.function.name, arguments=arguments
    )
    call.id = occurrence
    shown = {**pending.record(), **({"vote_refused": note} if note else {})}
    return Content.from_function_approval_request(
        id=occurrence, function_call=call, additional_properties=shown
    )


def _plain(result: Any) -> Any:
    """Return a result as plain data, from which it can be made again."""
    if not isinstance(result, list) or not all(isinstance(one, Content) for one in result):
        return result
    if all(one.type == "text" for one in result):
        return "\n".join(one.text or "" for one in result)
    return {_CONTENTS: [one.to_dict() for one in result]}


def _result(answer: Answer) -> Any:
    """Return the framework's result: its own, the one of an earlier execution, or a refusal."""
    if answer.native is not None:
        return answer.native[0]
    value = answer.value if answer.ok else None
    if isinstance(value, dict) and _CONTENTS in value:
        return [Content.from_dict(one) for one in value[_CONTENTS]]
    return answer.text
