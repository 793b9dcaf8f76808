"""Microsoft Agent Framework's `Agent`, and a scripted chat client."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import Any

from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    FunctionMiddleware,
    MCPStdioTool,
    Message,
    ResponseStream,
    tool,
)
from cases import MAIL, NOTE, count, has, same
from world import RUN, Turn, World

from counterseal.adapters import agent_framework as adapter

PACKAGES = ("agent-framework-core",)
contract_for = adapter.contract_for


def own_tool(function: Any, *, asks: bool = False) -> Any:
    """The framework's own tool of a plain function, with the framework's own approval or not."""
    return tool(approval_mode="always_require" if asks else "never_require")(function)


class Model(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """Says what the script has at this place of the conversation."""

    def __init__(self, script: list[Any]) -> None:
        super().__init__()
        self.script, self.seen = script, {}

    def _say(self, messages: Any) -> list[Content]:
        contents = [content for message in messages for content in message.contents]
        results = [one for one in contents if one.type == "function_result"]
        self.seen = {one.call_id: str(one.result) for one in results}
        said = sum(message.role == "assistant" and _is_turn(message) for message in messages)
        step = self.script[said]
        if isinstance(step, str):
            return [Content.from_text(step)]
        return [Content.from_function_call(call_id=i, name=n, arguments=a) for n, a, i in step]

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_: Any) -> Any:
        async def whole() -> ChatResponse:
            return ChatResponse(messages=[Message("assistant", self._say(messages))])

        async def parts() -> Any:
            for content in self._say(messages):
                yield ChatResponseUpdate(contents=[content], role="assistant")

        if stream:
            return ResponseStream(parts(), finalizer=ChatResponse.from_updates)
        return whole()


def _is_turn(message: Any) -> bool:
    return any(one.type in ("text", "function_call") for one in message.contents)


class _Retry(FunctionMiddleware):
    """Makes a failed call again, as middleware around others may do."""

    async def process(self, context: Any, call_next: Any) -> None:
        try:
            await call_next()
        except ConnectionError:
            await call_next()


class Session:
    """An agent whose session is kept in a file."""

    def __init__(self, runtime, place, script, tools, *, retry=False, mcp=(), **options):
        place.mkdir(exist_ok=True)
        self.path = place / "session.json"
        self.model = Model(script)
        asking = ("pay", "send_mail") if runtime is None else ()
        own = [own_tool(function, asks=function.__name__ in asking) for function in tools]
        self.tools = own + list(mcp)
        self.governed = runtime is not None
        middleware = [_Retry()] if retry else []
        if runtime is not None:
            known = [one for each in self.tools for one in getattr(each, "functions", [each])]
            middleware.append(adapter.Counterseal(runtime, known, **options))
        self.agent = Agent(client=self.model, tools=self.tools, middleware=middleware)

    async def start(self) -> Turn:
        return await self._run("go", AgentSession(session_id=RUN))

    async def resume(self, reply: Any = True) -> Turn:
        """Go on; `reply` is the host's answer, for each pause or for all alike."""
        kept = json.loads(self.path.read_text())
        answers = []
        for request in map(Content.from_dict, kept["requests"]):
            response = request.to_function_approval_response(True)
            if callable(reply):
                response.additional_properties = reply(request.additional_properties)
            answers.append(response)
        session = AgentSession.from_dict(kept["session"])
        return await self._run(Message("user", answers), session)

    async def resume_with(self, arguments: Any) -> Turn:
        """Go on with arguments that a person wrote in the host's page."""
        if not self.governed:
            return await self.resume()  # the framework itself has no way to change arguments
        return await self.resume(lambda _: {"type": "edit", "args": arguments})

    async def _run(self, given: Any, session: AgentSession) -> Turn:
        response = await self.agent.run(given, session=session)
        return self._kept(response, session)

    async def stream(self) -> tuple[Turn, list[Any]]:
        session = AgentSession(session_id=RUN)
        stream, chunks = self.agent.run("go", session=session, stream=True), []
        async for update in stream:
            chunks += [one.type for one in update.contents]
        return self._kept(await stream.get_final_response(), session), chunks

    async def nested(self) -> Turn:
        """Run inside of another agent's tool."""
        session = AgentSession(session_id="inner")
        return self._turn(await self.agent.run("go", session=session))

    def _kept(self, response: Any, session: AgentSession) -> Turn:
        requests = [request.to_dict() for request in response.user_input_requests]
        state = {"session": session.to_dict(), "requests": requests}
        self.path.write_text(json.dumps(state, default=str))
        return self._turn(response)

    def _turn(self, response: Any) -> Turn:
        contents = [content for message in response.messages for content in message.contents]
        results = [one for one in contents if one.type == "function_result"]
        seen = {**self.model.seen, **{one.call_id: str(one.result) for one in results}}
        pending = [dict(one.additional_properties) for one in response.user_input_requests]
        errors = {call for call, text in seen.items() if _is_refused(text)}
        return Turn(pending, seen, errors, None if pending else response.text)


def _is_refused(text: str) -> bool:
    """The framework does not mark results of middleware as failed."""
    return "next action" in text


@asynccontextmanager
async def mcp_tools(server: list[str]) -> Any:
    """The tools of an MCP server, as the framework's own."""
    async with MCPStdioTool(name="counter", command=server[0], args=server[1:]) as one:
        yield [one]


def check_stream(chunks: list[Any]) -> None:
    """The framework's stream has the calls, their results, and the last words."""
    same(chunks.count("function_result"), 2)
    same(chunks[-1], "text")


# --- cases of this framework alone ----------------------------------------------------------------


async def a_call_that_the_host_declines_is_not_made(world: World) -> None:
    async with world.runtime() as runtime:
        session = world.session(runtime, [[MAIL, NOTE], "done"])
        await session.start()
        kept = json.loads(session.path.read_text())
        (request,) = map(Content.from_dict, kept["requests"])
        answer = Message("user", [request.to_function_approval_response(False)])
        turn = await session._run(answer, AgentSession.from_dict(kept["session"]))
        has(turn.final, "done")
        count(note=1)


CASES = (a_call_that_the_host_declines_is_not_made,)
