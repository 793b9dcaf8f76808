"""Claude Agent SDK: hooks, and an in-process MCP server.

    governed = Counterseal(runtime, tools, principal=..., effects={"note": "draft"}, server="desk")
    ClaudeAgentOptions(mcp_servers={"desk": governed.server}, hooks=governed.hooks)

The hooks see every tool call of a session, and refuse tools that have no contract here. Tools of
the server are executed under contract. Built-in tools and those of other servers run in the CLI:
a call is judged and claimed before it, and settled with what the CLI reports after it. If that
report never comes, the outcome is unknown.

One object is for one session at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Unpack

from pydantic import TypeAdapter, create_model

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
from counterseal.errors import NotSentError, SpokenError
from counterseal.runtime import Runtime

try:
    from claude_agent_sdk import HookMatcher, SdkMcpTool, create_sdk_mcp_server
except ImportError as error:
    raise missing_extra("claude-agent-sdk", error) from error

TESTED: Final = {"claude-agent-sdk": ">=0.2.183,<0.3"}
"""The versions that the adapter was tested with."""
_PATIENCE: Final = 30.0
"""Seconds until a call of our own server, which was allowed, has to come."""
_HOOK_SECONDS: Final = 120.0
_UNGOVERNED: Final = "{} is not under contract here, so it is not called."
_UNANNOUNCED: Final = "The session's hooks do not know this call, so it is not made."
_BEFORE: Final = "This call was made before, and is not made again. Its result was:\n{}"

check_versions(TESTED)

Json = dict[str, Any]


def host_tool(tool: SdkMcpTool[Any] | HostTool) -> HostTool:
    """Return a tool as its model sees it. Tools that run in the CLI are given as a `HostTool`."""
    if isinstance(tool, HostTool):
        return tool
    schema = tool.input_schema
    if not isinstance(schema, dict):
        schema = TypeAdapter(schema).json_schema()
    elif not isinstance(schema.get("type"), str):
        types: Any = {name: (kind, ...) for name, kind in schema.items()}
        schema = create_model(tool.name, **types).model_json_schema()
    return HostTool(tool.name, tool.description, schema)


def contract_for(
    tool: SdkMcpTool[Any] | HostTool, *, effect: Effect | str, **options: Any
) -> Contract:
    """Return a contract from a tool's own schema. Takes the options of `@tool`."""
    return contract_of(host_tool(tool), effect=effect, **options)


@dataclass(eq=False, slots=True)
class _Claim:
    """One call between the hook before it and the hook after it."""

    tool: str
    handler: Any
    """The function of our own server's tool; None if the CLI carries the call out."""
    allowed: asyncio.Future[Json] = field(default_factory=asyncio.Future)
    """The arguments after corrections, once the call is admitted."""
    called: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: asyncio.Future[Any] = field(default_factory=asyncio.Future)
    answer: asyncio.Task[Answer] | None = None

    async def execute(self, arguments: Json) -> Any:
        if not self.allowed.done():  # another attempt of the same call
            self.allowed.set_result(arguments)
        if self.handler is None:
            return await self.outcome
        try:
            await asyncio.wait_for(self.called.wait(), _PATIENCE)
        except TimeoutError:
            raise NotSentError("The CLI was allowed to make this call, and did not.") from None
        return await self.handler(arguments)


class Counterseal:
    """The tools of one session under contract."""

    def __init__(
        self,
        runtime: Runtime,
        tools: Iterable[SdkMcpTool[Any] | HostTool],
        *,
        server: str = "counterseal",
        **options: Unpack[HostOptions],
    ) -> None:
        # The model makes a held call again under another id.
        options.setdefault("same", "intent")
        given = list(tools)
        own = [tool for tool in given if not isinstance(tool, HostTool)]
        self._host = Host(runtime, map(host_tool, given), **options)
        self._own = {f"mcp__{server}__{tool.name}": tool for tool in own}
        self._names = {name: tool.name for name, tool in self._own.items()}
        self._names |= {tool.name: tool.name for tool in given if isinstance(tool, HostTool)}
        self._claims: dict[str, _Claim] = {}
        self.pending: dict[str, Pending] = {}
        """By id of the deferred call: what a person decides on."""
        self.server = create_sdk_mcp_server(server, tools=[self._governed(tool) for tool in own])
        """For `ClaudeAgentOptions.mcp_servers`, under the name that was given as `server`."""

    @property
    def hooks(self) -> dict[str, list[HookMatcher]]:
        """For `ClaudeAgentOptions.hooks`. A hook that fails blocks the call."""
        seconds = _HOOK_SECONDS + (self._host.seconds if self._host.waits else 0.0)
        functions = {
            "PreToolUse": self.before,
            "PostToolUse": self.after,
            "PostToolUseFailure": self.after,
        }
        return {
            event: [HookMatcher(hooks=[function], timeout=seconds, on_failure="block")]
            for event, function in functions.items()
        }

    async def before(self, call: Any, tool_use_id: str | None, context: Any) -> Json:
        """Judge and claim a call; defer it while a person has to decide."""
        full, key = call["tool_name"], call["tool_use_id"]
        name = self._names.get(full)
        if name is None:
            return _decision("deny", _UNGOVERNED.format(full))
        own = self._own.get(full)
        claim = _Claim(name, None if own is None else own.handler)
        claim.answer = asyncio.ensure_future(self._host.submit(self._call(name, call, claim)))
        either: list[asyncio.Future[Any]] = [claim.answer, claim.allowed]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        self.pending.pop(key, None)
        if claim.allowed.done():
            self._claims[key] = claim
            return _decision("allow", updatedInput=claim.allowed.result())
        try:
            answer = claim.answer.result()
        except NotRecordedError as error:
            return {**_decision("deny", str(error)), "continue_": False, "stopReason": str(error)}
        if answer.ok and own is not None:
            self._claims[key] = claim  # our own server answers from the ledger
            claim.allowed.set_result(call["tool_input"])
            return _decision("allow")
        if answer.ok:
            return _decision("deny", _BEFORE.format(answer.text))
        # The CLI resumes one deferred call of a turn, and forgets the others.
        if answer.pending is not None and not self._host.waits and not self.pending:
            self.pending[key] = answer.pending
            return _decision("defer", answer.text)
        return _decision("deny", answer.text)

    async def after(self, call: Any, tool_use_id: str | None, context: Any) -> Json:
        """Settle a call with what the CLI reports."""
        claim = self._claims.pop(call["tool_use_id"], None)
        if claim is None or claim.handler is not None or claim.answer is None:
            return {}
        if call["hook_event_name"] == "PostToolUse":
            claim.outcome.set_result(call["tool_response"])
        else:
            claim.outcome.set_exception(SpokenError(claim.tool, str(call["error"])))
        answer = await claim.answer
        if answer.ok:
            return {}
        event = {"hookEventName": call["hook_event_name"], "additionalContext": answer.text}
        return {"hookSpecificOutput": event}

    def _call(self, name: str, call: Any, claim: _Claim) -> HostCall:
        return HostCall(
            tool=name,
            arguments=call["tool_input"],
            call_id=call["tool_use_id"],
            run_id=self._host.run_id(call, call["session_id"]),
            context=call,
            execute=claim.execute,
            to_plain=lambda result: _plain(name, result),
        )

    def _governed(self, tool: SdkMcpTool[Any]) -> SdkMcpTool[Any]:
        """Return a tool of our server: it executes the call that the hook has admitted."""

        async def handler(arguments: Json) -> Json:
            for claim in self._claims.values():
                waiting = claim.tool == tool.name and not claim.called.is_set()
                if waiting and claim.answer is not None and claim.allowed.result() == arguments:
                    claim.called.set()
                    return _result(await claim.answer)
            return _error(_UNANNOUNCED)

        return replace(tool, handler=handler)


def _decision(verdict: str, reason: str = "", **more: Any) -> Json:
    output = {"hookEventName": "PreToolUse", "permissionDecision": verdict, **more}
    if reason:
        output["permissionDecisionReason"] = reason
    return {"hookSpecificOutput": output}


def _error(text: str) -> Json:
    return {"content": [{"type": "text", "text": text}], "is_error": True}


def _result(answer: Answer) -> Json:
    """Return the tool's own result, the one of an earlier execution, or an error."""
    if not answer.ok:
        return _error(answer.text)
    if answer.native is not None:
        return dict(answer.native[0])
    return {"content": [{"type": "text", "text": answer.text}]}


def _plain(tool: str, result: Any) -> Any:
    """Return a result as plain data. SpokenError: the tool reports a failure."""
    content = result.get("content") if isinstance(result, Mapping) else None
    if not isinstance(content, list):
        return result
    texts = [block.get("text", "") for block in content if block.get("type") == "text"]
    if result.get("is_error"):
        raise SpokenError(tool, "\n".join(texts))
    return "\n".join(texts) if len(texts) == len(content) else result
