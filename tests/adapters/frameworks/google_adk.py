"""Google ADK's `App` with a runner, and a scripted model."""

from __future__ import annotations

import json
import logging
from contextlib import asynccontextmanager
from typing import Any

from cases import MAIL, NOTE, PAY, count, has, same
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins import ReflectAndRetryToolPlugin
from google.adk.runners import Runner
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools import FunctionTool
from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams
from google.genai import types
from mcp import StdioServerParameters
from pydantic import Field
from world import RUN, Turn, World, approve, effects

from counterseal import Voter
from counterseal.adapters import google_adk as adapter

PACKAGES = ("google-adk",)
contract_for = adapter.contract_for
_ASK = "adk_request_confirmation"
logging.getLogger("google_adk").setLevel(logging.CRITICAL)


def own_tool(function: Any, *, asks: bool = False) -> FunctionTool:
    """The framework's own tool of a plain function, with the framework's own approval or not."""
    return FunctionTool(function, require_confirmation=asks)


def _responses(contents: Any) -> dict[str, Any]:
    parts = [part for content in contents for part in content.parts or ()]
    found = [part.function_response for part in parts if part.function_response]
    return {one.id: one.response for one in found if one.name != _ASK}


class Model(BaseLlm):
    """Says what the script has at this place of the conversation."""

    model: str = "scripted"
    script: list[Any]
    seen: dict[str, Any] = Field(default_factory=dict)

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        self.seen = _responses(llm_request.contents)
        said = [content for content in llm_request.contents if content.role == "model"]
        step = self.script[len(said)]
        if isinstance(step, str):
            parts = [types.Part(text=step)]
        else:
            calls = [types.FunctionCall(name=n, args=a, id=i) for n, a, i in step]
            parts = [types.Part(function_call=call) for call in calls]
        yield LlmResponse(content=types.Content(role="model", parts=parts))


class Session:
    """An app whose sessions are kept in a file."""

    def __init__(self, runtime, place, script, tools, *, retry=False, mcp=(), **options):
        place.mkdir(exist_ok=True)
        self.place = place
        self.model = Model(script=script)
        asking = ("pay", "send_mail") if runtime is None else ()
        own = [own_tool(function, asks=function.__name__ in asking) for function in tools]
        self.tools = own + list(mcp)
        self.plugins = []
        if runtime is not None:
            self.plugins = [adapter.Counterseal(runtime, self.tools, **options)]
        if retry:
            self.plugins.append(ReflectAndRetryToolPlugin(max_retries=2))

    def _runner(self) -> Runner:
        agent = LlmAgent(name="support", model=self.model, tools=self.tools)
        app = App(name="counter", root_agent=agent, plugins=self.plugins)
        return Runner(app=app, session_service=SqliteSessionService(str(self.place / "adk.db")))

    async def start(self, session: str = RUN) -> Turn:
        text = types.Content(role="user", parts=[types.Part(text="go")])
        runner = self._runner()
        key = {"app_name": "counter", "user_id": "u_1", "session_id": session}
        await runner.session_service.create_session(**key)
        return (await self._run(runner, text, session))[0]

    async def stream(self) -> tuple[Turn, list[Any]]:
        text = types.Content(role="user", parts=[types.Part(text="go")])
        runner = self._runner()
        key = {"app_name": "counter", "user_id": "u_1", "session_id": RUN}
        await runner.session_service.create_session(**key)
        return await self._run(runner, text, RUN)

    async def resume(self, reply: Any = True) -> Turn:
        """Go on; `reply` is the host's answer, for each pause or for all alike."""
        parts = []
        for asked, shown in json.loads((self.place / "asked.json").read_text()):
            payload = reply(shown) if callable(reply) else None
            answer = {"confirmed": True, "payload": payload}
            response = types.FunctionResponse(id=asked, name=_ASK, response=answer)
            parts.append(types.Part(function_response=response))
        given = types.Content(role="user", parts=parts)
        return (await self._run(self._runner(), given, RUN))[0]

    async def resume_with(self, arguments: Any) -> Turn:
        """Go on with arguments that a person wrote in the host's page."""
        if not self.plugins:
            return await self.resume()  # the framework itself has no way to change arguments
        return await self.resume(lambda _: {"type": "edit", "args": arguments})

    async def nested(self) -> Turn:
        """Run inside of another agent's tool."""
        return await self.start("inner")

    async def _run(self, runner: Runner, given: Any, session: str) -> tuple[Turn, list[Any]]:
        asked, results, final, events = [], {}, None, []
        where = {"user_id": "u_1", "session_id": session, "new_message": given}
        async for event in runner.run_async(**where):
            events.append(event)
            asked += [
                (call.id, call.args["toolConfirmation"].get("payload"))
                for call in event.get_function_calls()
                if call.name == _ASK
            ]
            results |= _responses([event.content] if event.content else [])
            texts = [part.text for part in (event.content.parts if event.content else ())]
            final = next(filter(None, texts), final)
        (self.place / "asked.json").write_text(json.dumps(asked))
        results = {**self.model.seen, **results}
        errors = {call for call, response in results.items() if "error" in response}
        shown = {call: _text(response) for call, response in results.items()}
        pending = [one for _, one in asked]
        return Turn(pending, shown, errors, None if pending else final), events


def _text(response: Any) -> str:
    return "\n".join(str(value) for value in response.values())


@asynccontextmanager
async def mcp_tools(server: list[str]) -> Any:
    """The tools of an MCP server, as the framework's own."""
    parameters = StdioServerParameters(command=server[0], args=server[1:])
    toolset = McpToolset(connection_params=StdioConnectionParams(server_params=parameters))
    try:
        yield await toolset.get_tools()
    finally:
        await toolset.close()


def check_stream(chunks: list[Any]) -> None:
    """The framework's events have the calls, their results, and the last words."""
    kinds = [bool(event.get_function_responses()) for event in chunks]
    same(any(kinds), True)
    same(chunks[-1].content.parts[0].text, "done")


# --- cases of this framework alone ----------------------------------------------------------------


async def a_call_that_the_host_declines_is_not_made(world: World) -> None:
    async with world.runtime() as runtime:
        session = world.session(runtime, [[MAIL, NOTE], "done"])
        await session.start()
        ((asked, _),) = json.loads((session.place / "asked.json").read_text())
        response = types.FunctionResponse(id=asked, name=_ASK, response={"confirmed": False})
        given = types.Content(role="user", parts=[types.Part(function_response=response)])
        turn, _ = await session._run(session._runner(), given, RUN)
        has(turn.results["c_mail"], "declined")
        count(note=1)


async def approved_with_other_arguments(world: World) -> None:
    """The framework asks once for a call, so the model makes the edited call itself."""
    other = {"to": "acct_2", "amount": 7}
    async with world.runtime() as runtime:
        session = world.session(runtime, [[PAY], [("pay", other, "c_again")], "done"])
        await session.start()
        turn = await session.resume_with(other)
        has(turn.results["c_pay"], "Held: a person decides")
        count()
        same([one["packet"]["arguments"] for one in turn.pending], [other])
        await approve(runtime, turn)
        turn = await session.resume()
        has(turn.results["c_again"], "paid 7 to acct_2")
        same(effects("pay"), [["pay", "acct_2"]])


async def a_vote_in_the_hosts_own_page(world: World) -> None:
    """The requester can't approve their own call; the framework asks again for the next one."""

    def voter(_context: Any, answer: Any) -> Voter:
        return Voter(user=answer["by"], tenant="acme")

    def said(by: str) -> Any:
        return lambda shown: {"type": "approve", "approval_id": shown["approval_id"], "by": by}

    async with world.runtime() as runtime:
        script = [[MAIL], [("send_mail", MAIL[1], "c_again")], "done"]
        session = world.session(runtime, script, voter=voter)
        await session.start()
        turn = await session.resume(said("u_1"))
        count()
        same(len(turn.pending), 1)
        turn = await session.resume(said("ann"))
        has(turn.results["c_again"], "sent to")
        count(send_mail=1)


CASES = (
    a_call_that_the_host_declines_is_not_made,
    approved_with_other_arguments,
    a_vote_in_the_hosts_own_page,
)
