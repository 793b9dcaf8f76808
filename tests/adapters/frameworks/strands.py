"""Strands' `Agent` with a session in files, and a scripted model."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import Any

from cases import NOTE, count, has, same
from mcp import StdioServerParameters, stdio_client
from strands import Agent, tool
from strands.hooks import AfterToolCallEvent, BeforeToolCallEvent, HookProvider
from strands.models import Model as BaseModel
from strands.session.file_session_manager import FileSessionManager
from strands.tools.mcp import MCPClient
from world import RUN, Turn, World

from counterseal.adapters import strands as adapter

PACKAGES = ("strands-agents",)
contract_for = adapter.contract_for
own_tool = tool


class Model(BaseModel):
    """Says what the script has at this place of the conversation."""

    def __init__(self, script: Any) -> None:
        self.script, self.seen = script, {}

    def update_config(self, **_: Any) -> None: ...

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *_: Any, **__: Any) -> Any:
        blocks = [block for message in messages for block in message["content"]]
        results = [block["toolResult"] for block in blocks if "toolResult" in block]
        self.seen = {one["toolUseId"]: one for one in results}
        step = self.script[sum(message["role"] == "assistant" for message in messages)]
        yield {"messageStart": {"role": "assistant"}}
        if isinstance(step, str):
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": step}}}
            yield {"contentBlockStop": {}}
        for name, arguments, call_id in () if isinstance(step, str) else step:
            yield {
                "contentBlockStart": {"start": {"toolUse": {"name": name, "toolUseId": call_id}}}
            }
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if isinstance(step, str) else "tool_use"}}


class OwnApproval(HookProvider):
    """The framework's own way: a hook that interrupts the run."""

    def register_hooks(self, registry: Any, **_: Any) -> None:
        registry.add_callback(BeforeToolCallEvent, self.ask)

    def ask(self, event: Any) -> None:
        if event.tool_use["name"] in ("pay", "send_mail"):
            event.interrupt("approval", reason={"approval_id": "own"})


class Retry(HookProvider):
    """The framework's own retry of failed tools."""

    def __init__(self) -> None:
        self.left = 2

    def register_hooks(self, registry: Any, **_: Any) -> None:
        registry.add_callback(AfterToolCallEvent, self.again)

    def again(self, event: Any) -> None:
        if event.result["status"] == "error" and self.left:
            self.left -= 1
            event.retry = True


class Session:
    """An agent whose session is kept in files."""

    def __init__(self, runtime, place, script, tools, *, retry=False, mcp=(), **options):
        place.mkdir(exist_ok=True)
        self.place, self.model = place, Model(script)
        self.tools = [*map(own_tool, tools), *mcp]
        self.hooks = [Retry()] if retry else []
        if runtime is None:
            self.hooks.append(OwnApproval())
        else:
            options = {"run_id": lambda _: RUN, **options}
            self.hooks.append(adapter.Counterseal(runtime, self.tools, **options))

    def _agent(self, session: str = RUN) -> Agent:
        kept = FileSessionManager(session_id=session, storage_dir=str(self.place))
        about = {"callback_handler": None, "session_manager": kept}
        return Agent(model=self.model, tools=self.tools, hooks=self.hooks, **about)

    async def start(self) -> Turn:
        return self._turn(await self._agent().invoke_async("go"))

    async def stream(self) -> tuple[Turn, list[Any]]:
        chunks = [chunk async for chunk in self._agent().stream_async("go")]
        return self._turn(chunks[-1]["result"]), chunks

    async def resume(self, reply: Any = True) -> Turn:
        """Go on; `reply` is the host's answer, for each pause or for all alike."""
        answers = []
        for asked, shown in json.loads((self.place / "asked.json").read_text()):
            said = reply(shown) if callable(reply) else reply
            answers.append({"interruptResponse": {"interruptId": asked, "response": said}})
        return self._turn(await self._agent().invoke_async(answers))

    async def resume_with(self, arguments: Any) -> Turn:
        """Go on with arguments that a person wrote in the host's page."""
        return await self.resume(lambda _: {"type": "edit", "args": arguments})

    async def nested(self) -> Turn:
        """Run inside of another agent's tool."""
        return self._turn(await self._agent("inner").invoke_async("go"), keep=False)

    def _turn(self, result: Any, *, keep: bool = True) -> Turn:
        asked = [(one.id, one.reason) for one in result.interrupts or ()]
        if keep:
            (self.place / "asked.json").write_text(json.dumps(asked))
        shown = {i: one["content"][0]["text"] for i, one in self.model.seen.items()}
        errors = {i for i, one in self.model.seen.items() if one["status"] == "error"}
        final = None if asked else str(result).strip()
        return Turn([reason for _, reason in asked], shown, errors, final)


@asynccontextmanager
async def mcp_tools(server: list[str]) -> Any:
    """The tools of an MCP server, as the framework's own."""
    parameters = StdioServerParameters(command=server[0], args=server[1:])
    with MCPClient(lambda: stdio_client(parameters)) as client:
        yield client.list_tools_sync()


def check_stream(chunks: list[Any]) -> None:
    """The framework's stream has the results of the calls."""
    blocks = [b for c in chunks if "message" in c for b in c["message"]["content"]]
    same(sum("toolResult" in block for block in blocks), 2)


# --- cases of this framework alone ----------------------------------------------------------------


async def the_agents_state_names_the_run(world: World) -> None:
    """Without `run_id`, calls of one agent are one run, also in a restored session."""
    async with world.runtime() as runtime:
        again = ("note", NOTE[1], "c_again")
        options = {"run_id": None, "same": "intent"}
        session = world.session(runtime, [[NOTE], "done", [again], "done"], **options)
        await session.start()
        turn = await session.start()
        has(turn.results["c_again"], "noted x")
        count(note=1)
        await world.session(runtime, [[NOTE], "done"], **options).nested()
        count(note=2)


class Cancelling(HookProvider):
    """Another hook of the host, which cancels every call."""

    def register_hooks(self, registry: Any, **_: Any) -> None:
        registry.add_callback(BeforeToolCallEvent, self.cancel)

    def cancel(self, event: Any) -> None:
        event.cancel_tool = "not today"


async def a_call_that_another_hook_cancels_is_not_made(world: World) -> None:
    async with world.runtime() as runtime:
        session = world.session(runtime, [[NOTE], "done"])
        session.hooks.insert(0, Cancelling())
        has((await session.start()).results["c_note"], "not today")
        count()


CASES = (the_agents_state_names_the_run, a_call_that_another_hook_cancels_is_not_made)
