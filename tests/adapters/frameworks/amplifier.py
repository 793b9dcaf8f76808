"""A session of `amplifier-core`, with modules of its own: a loop, a context, a provider, tools.

Microsoft's modules (`loop-basic`, `tool-filesystem`, `tool-bash`, `tool-web`) are not on PyPI. The
loop here emits the same events in the same order as `loop-basic`, and the tools have the names,
inputs and failures that their READMEs document.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import logging
import sys
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar

import world as w
from amplifier_core import AmplifierSession, ChatRequest, ChatResponse, HookResult, ToolResult
from amplifier_core.message_models import Message, TextBlock, ToolCall
from amplifier_core.testing import MockCoordinator, MockTool
from amplifier_core.validation import ToolValidator
from cases import LOOK, MAIL, NOTE, count, has, same
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from pydantic import Field, create_model
from world import RUN, Turn, World, someone

from counterseal import Grant, Voter, tool
from counterseal.adapters import amplifier as adapter
from counterseal.errors import ContractError, StoreError

PACKAGES = ("amplifier-core",)
contract_for = adapter.contract_for
_NUMBERS = itertools.count()
_HELD = "Held: a person"
_ASKING = ("pay", "send_mail")
_CALL: ContextVar[str | None] = ContextVar("call", default=None)
logging.getLogger("amplifier_core").setLevel(logging.CRITICAL)


# --- modules --------------------------------------------------------------------------------------


def module(name: str, mount: Any) -> str:
    """Offer a module to the loader, which imports it by its name. Returns an id of its own."""
    name = f"{name}-{next(_NUMBERS)}"
    made = ModuleType(f"amplifier_module_{name.replace('-', '_')}")
    made.mount = mount
    sys.modules[made.__name__] = made
    return name


class FunctionTool:
    """The framework's own tool of a plain function."""

    def __init__(self, function: Any) -> None:
        self.name, self.description = function.__name__, function.__doc__
        fields = {
            name: (parameter.annotation, ...)
            for name, parameter in inspect.signature(function, eval_str=True).parameters.items()
        }
        self.input_schema = create_model(self.name, **fields).model_json_schema()
        self._function = function

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        return ToolResult(output=await self._function(**input))


own_tool = FunctionTool


class Loop:
    """Calls the tools of a turn side by side, with the events of `loop-basic`."""

    async def execute(self, prompt, context, providers, tools, hooks, coordinator=None) -> str:
        (provider,) = providers.values()
        await context.add_message({"role": "user", "content": prompt})
        while True:
            messages = [Message(**one) for one in await context.get_messages_for_request()]
            response = await provider.complete(ChatRequest(messages=messages))
            if not response.tool_calls:
                text = response.content[0].text
                await context.add_message({"role": "assistant", "content": text})
                return text
            calls = [call.model_dump() for call in response.tool_calls]
            await context.add_message({"role": "assistant", "content": "", "tool_calls": calls})
            done = [self._call(call, tools, hooks, coordinator) for call in response.tool_calls]
            for call, (ok, text) in zip(calls, await asyncio.gather(*done), strict=True):
                message = {"role": "tool", "tool_call_id": call["id"], "content": text}
                await context.add_message({**message, "metadata": {"ok": ok}})
            if coordinator.cancellation.is_immediate:
                return ""

    async def _call(self, call: Any, tools: Any, hooks: Any, coordinator: Any) -> tuple[bool, str]:
        known = {"tool_name": call.name, "tool_input": call.arguments}
        _CALL.set(call.id)
        try:
            pre = await hooks.emit("tool:pre", known)
            pre = await coordinator.process_hook_result(pre, "tool:pre", call.name)
            if pre.action == "deny":
                return False, f"Denied by hook: {pre.reason}"
            result = await tools[call.name].execute(call.arguments)
            await hooks.emit("tool:post", {**known, "result": result.model_dump(mode="json")})
            return result.success, result.get_serialized_output()
        except Exception as error:  # noqa: BLE001 - as the framework's own loop
            kind = {"type": type(error).__name__, "msg": str(error)}
            await hooks.emit("tool:error", {**known, "error": kind})
            return False, f"Error executing tool: {error}"


class Context:
    """Messages in a file, so that a session in another process goes on with them."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.messages = json.loads(file.read_text()) if file.exists() else []

    async def add_message(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self.file.write_text(json.dumps(self.messages))

    async def get_messages_for_request(self, token_budget=None, provider=None) -> list[Any]:
        return list(self.messages)


class Provider:
    """A scripted model. A call that is held it makes again in its next turn."""

    name = "scripted"

    def __init__(self, script: list[Any], waits: bool) -> None:
        self.script, self.waits, self.instead = script, waits, None

    async def complete(self, request: ChatRequest, **_: Any) -> ChatResponse:
        place, shown = 0, results_of(request.messages)
        for batch in batches(request.messages):
            held = any(_HELD in text for text in batch) and not self.waits
            place += 0 if held else 1
        step = self.script[min(place, len(self.script) - 1)]
        if isinstance(step, str):
            return ChatResponse(content=[TextBlock(text=step)])
        calls = [call for call in step if _HELD in shown.get(call[2], "")]
        if calls and not self.waits and request.messages[-1].role == "tool":
            return ChatResponse(content=[TextBlock(text="A person has to decide.")])
        return self._calls(calls if calls and not self.waits else step)

    def _calls(self, calls: list[Any]) -> ChatResponse:
        made = [ToolCall(id=i, name=n, arguments=self.instead or a) for n, a, i in calls]
        return ChatResponse(content=[TextBlock(text="")], tool_calls=made)


def batches(messages: Any) -> list[list[str]]:
    """The results of each turn in which the model called tools."""
    found: list[list[str]] = []
    earlier = None
    for one in messages:
        if one.role == "tool" and earlier != "tool":
            found.append([])
        if one.role == "tool":
            found[-1].append(one.content)
        earlier = one.role
    return found


def results_of(messages: Any) -> dict[str, str]:
    """By call: the last result that the model was shown."""
    return {one.tool_call_id: one.content for one in messages if one.role == "tool"}


class Desk:
    """The program's approval system: answers with what the test says."""

    def __init__(self) -> None:
        self.answer = "Allow"
        self.asked: list[str] = []

    async def request_approval(self, prompt: str, *_: Any) -> str:
        self.asked.append(prompt)
        return self.answer


async def ask_first(event: str, data: dict[str, Any]) -> HookResult:
    """The framework's own approval: the approval system is asked, and its answer decides."""
    if data["tool_name"] in _ASKING:
        return HookResult(action="ask_user", approval_prompt=f"Call {data['tool_name']}?")
    return HookResult(action="continue")


# --- sessions -------------------------------------------------------------------------------------


class Session:
    """A session whose messages are kept in a file. Resuming is another prompt."""

    def __init__(self, runtime, place, script, tools, *, retry=False, mcp=(), ids=False, **options):
        place.mkdir(exist_ok=True)
        self.place, self.runtime, self.desk = place, runtime, Desk()
        self.pending: list[dict[str, Any]] = []
        self.events: list[str] = []
        self.tools = [*map(own_tool, tools), *mcp]
        self.provider = Provider(script, options.get("pause") == "wait")
        self.options = {**options, "call_id": lambda _: _CALL.get()} if ids else options
        if runtime is not None:  # what is wrong with the options shows before a session is made
            adapter.Host(runtime, map(adapter.host_tool, self.tools), **options)

    async def start(self, session: str = RUN, prompt: str = "go") -> Turn:
        file = self.place / f"{session}.json"
        made = AmplifierSession(self._plan(file), session_id=session, approval_system=self.desk)
        await made.initialize()
        coordinator = made.coordinator
        self.pending, self.events = [], []
        for event in ("counterseal:held", "tool:post", "tool:error", "tool:pre"):
            coordinator.hooks.register(event, self._observe, priority=5, name=f"test {event}")
        if self.runtime is not None:
            await adapter.govern(coordinator, self.runtime, **self.options)
        else:
            coordinator.hooks.register("tool:pre", ask_first, priority=0, name="approvals")
        try:
            final = await made.execute(prompt)
            if coordinator.cancellation.is_cancelled:
                raise RuntimeError("the run was cancelled")
        finally:
            await made.cleanup()
        messages = [Message(**one) for one in json.loads(file.read_text())]
        told = {one.tool_call_id: one.metadata["ok"] for one in messages if one.role == "tool"}
        errors = {call for call, ok in told.items() if not ok}
        return Turn(self.pending, results_of(messages), errors, None if self.pending else final)

    def _plan(self, file: Path) -> dict[str, Any]:
        async def loop(coordinator: Any, config: Any) -> None:
            await coordinator.mount("orchestrator", Loop())

        async def context(coordinator: Any, config: Any) -> None:
            await coordinator.mount("context", Context(file))

        async def provider(coordinator: Any, config: Any) -> None:
            await coordinator.mount("providers", self.provider, name="scripted")

        async def tools(coordinator: Any, config: Any) -> None:
            for one in self.tools:
                await coordinator.mount("tools", one, name=one.name)

        return {
            "session": {
                "orchestrator": module("loop-test", loop),
                "context": module("context-test", context),
            },
            "providers": [{"module": module("provider-test", provider)}],
            "tools": [{"module": module("tool-test", tools)}],
        }

    async def _observe(self, event: str, data: dict[str, Any]) -> HookResult:
        self.events.append(event)
        if event == "counterseal:held" and not self.provider.waits:
            fields = ("approval_id", "consequence", "packet", "link")
            self.pending.append({name: data[name] for name in fields})
        return HookResult(action="continue")

    async def resume(self, reply: Any = True) -> Turn:
        return await self.start(prompt="go on")

    async def resume_with(self, arguments: Any) -> Turn:
        """Go on; the model makes the held call with other arguments."""
        self.provider.instead = arguments
        try:
            return await self.resume()
        finally:
            self.provider.instead = None

    async def stream(self) -> tuple[Turn, list[Any]]:
        turn = await self.start()
        return turn, self.events

    async def nested(self) -> Turn:
        """Run inside of another agent's tool."""
        return await self.start("inner")


class McpTool:
    """A tool of an MCP server, as Microsoft's `tool-mcp` mounts one."""

    def __init__(self, client: Client, listed: Any) -> None:
        self.name, self.description = listed.name, listed.description
        self.input_schema, self._client = listed.input_schema, client

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        result = await self._client.call_tool(self.name, input)
        text = "\n".join(block.text for block in result.content)
        if result.is_error:
            return ToolResult(success=False, error={"message": text})
        return ToolResult(output=text)


@asynccontextmanager
async def mcp_tools(server: list[str]) -> Any:
    """The tools of an MCP server, as the framework's own."""
    parameters = StdioServerParameters(command=server[0], args=server[1:])
    async with Client(stdio_client(parameters)) as client:
        listed = await client.list_tools()
        yield [McpTool(client, one) for one in listed.tools]


def check_stream(chunks: list[Any]) -> None:
    """The orchestrator's events are those of a session without us."""
    same(sorted(chunks), ["tool:post", "tool:post", "tool:pre", "tool:pre"])


# --- cases of this framework alone ----------------------------------------------------------------


async def the_store_is_down(world: World) -> None:
    """The loop makes text of exceptions, so the adapter cancels the run: no model turn follows."""
    async with world.runtime() as runtime:
        session = world.session(runtime, [[NOTE], "done"])

        async def down(*_: Any, **__: Any) -> None:
            raise StoreError("disk gone")

        runtime.store.admit = down
        try:
            turn = await session.start()
        except RuntimeError as error:
            has(str(error), "cancelled")
        else:
            raise AssertionError(f"the run went on: {turn}")
        same("tool:error" in session.events, True)
        messages = json.loads((world.place / "state" / f"{RUN}.json").read_text())
        same(messages[-1]["role"], "tool")
        count()


async def a_second_call_that_is_meant(world: World) -> None:
    """Tools get no call id, so the same arguments are one operation; `call_id` tells them apart."""
    again = ("note", NOTE[1], "c_again")
    async with world.runtime() as runtime:
        turn = await world.session(runtime, [[NOTE], [again], "done"]).start()
        has(turn.results["c_again"], "noted x")
        count(note=1)
    (world.place / "state" / f"{RUN}.json").unlink()
    async with world.runtime() as runtime:
        turn = await world.session(runtime, [[NOTE], [again], "done"], ids=True).start()
        has(turn.results["c_again"], "noted x")
        count(note=3)


async def a_vote_in_the_hosts_own_page(world: World) -> None:
    """With `voter` the session's approval system is asked, for the person whom the host knows."""
    who = ["u_1"]

    def voter(_coordinator: Any, _answer: Any) -> Voter:
        return Voter(user=who[0], tenant="acme")

    async with world.runtime() as runtime:
        session = world.session(runtime, [[MAIL], "done"], voter=voter)
        session.desk.answer = "Approve"
        turn = await session.start()
        same(len(turn.pending), 1)
        has(session.desk.asked[0], "a@example.org")
        count()
        who[0] = "ann"
        turn = await session.resume()
        has(turn.results["c_mail"], "sent to")
        count(send_mail=1)


async def cancelled_while_the_tool_runs(world: World) -> None:
    """The framework does not stop the tool of a cancelled session: its call is still under way."""
    w.FAULTS["note"] = "hang"
    w.ACTED.clear()
    async with world.runtime() as runtime:
        running = asyncio.ensure_future(world.session(runtime, [[NOTE], "done"]).start())
        await w.ACTED.wait()
        running.cancel()
        await asyncio.wait([running])
        del w.FAULTS["note"]
        (world.place / "state" / f"{RUN}.json").unlink()
        turn = await world.session(runtime, [[NOTE], "done"]).start()
        has(turn.results["c_note"], "under way")
        same(turn.errors, {"c_note"})
        count(note=1)


class FilesTool:
    """`write_file` of `tool-filesystem`, in one folder."""

    name, description = "write_file", "Writes a file to the local filesystem."
    input_schema: ClassVar = {
        "type": "object",
        "properties": {
            "file_path": {"type": "string", "description": "The path."},
            "content": {"type": "string", "description": "The content to write."},
        },
        "required": ["file_path", "content"],
    }

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        return self._act(input)

    def _act(self, input: dict[str, Any]) -> ToolResult:
        path = Path(input["file_path"]).resolve()
        if self.folder not in path.parents:
            text = f"Access denied: {path} is not within allowed write paths"
            return ToolResult(success=False, error={"message": text})
        try:
            path.write_text(input["content"])
        except OSError as error:
            details = {"message": f"OS error writing file: {error}", "type": "OSError"}
            return ToolResult(success=False, error={**details, "errno": error.errno})
        return ToolResult(output={"file_path": str(path), "bytes": len(input["content"])})


class ReadTool(FilesTool):
    """`read_file` of `tool-filesystem`. Its schema is behind `get_schema()`."""

    name, description, input_schema = "read_file", "Reads a file.", {}

    def get_schema(self) -> dict[str, Any]:
        properties = {"file_path": FilesTool.input_schema["properties"]["file_path"]}
        return {"type": "object", "properties": properties, "required": ["file_path"]}

    def _act(self, input: dict[str, Any]) -> ToolResult:
        path = Path(input["file_path"])
        if not path.exists():
            return ToolResult(success=False, error={"message": f"File not found: {path}"})
        return ToolResult(output={"content": path.read_text()})


class BashTool:
    """`bash` of `tool-bash`."""

    name, description = "bash", "Executes a shell command and returns its output."
    input_schema: ClassVar = {
        "type": "object",
        "properties": {"command": {"type": "string", "description": "The command to execute."}},
        "required": ["command"],
    }

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        raise AssertionError("never called")


class FetchTool:
    """`web_fetch` of `tool-web`, without the network."""

    name, description = "web_fetch", "Fetches a web page."
    input_schema: ClassVar = {
        "type": "object",
        "properties": {"url": {"type": "string", "description": "The address."}},
        "required": ["url"],
    }

    def __init__(self) -> None:
        self.fetched: list[str] = []
        self.error: dict[str, Any] | None = None

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        self.fetched.append(input["url"])
        if self.error is not None:
            return ToolResult(success=False, error=self.error)
        return ToolResult(output={"url": input["url"], "content": "a page"})


async def governed(runtime: Any, *guests: Any, **options: Any) -> Any:
    """A coordinator with guests under contract; the agent may use them all."""
    coordinator = MockCoordinator()
    for guest in guests:
        await coordinator.mount("tools", guest, name=guest.name)
    options = {"principal": someone, "grants": w.AGENT, **options}
    await adapter.govern(coordinator, runtime, **options)
    return coordinator


async def execute(coordinator: Any, name: str, **arguments: Any) -> ToolResult:
    return await coordinator.get("tools")[name].execute(arguments)


async def a_filesystem_tool_is_a_guest(world: World) -> None:
    guests = [FilesTool(world.place), ReadTool(world.place)]
    write = contract_for(guests[0], effect="draft", not_done_errors=["Access denied*"])
    async with world.runtime() as runtime:
        declared = {"contracts": [write], "effects": {"read_file": "read_only"}}
        coordinator = await governed(runtime, *guests, **declared)
        path = str(world.place / "a.txt")
        done = await execute(coordinator, "write_file", file_path=path, content="hello")
        same((done.success, done.output["bytes"]), (True, 5))
        read = await execute(coordinator, "read_file", file_path=path)
        same(read.output, {"content": "hello"})
        refused = await execute(coordinator, "write_file", file_path="/etc/x", content="")
        same((refused.success, refused.error["code"]), (False, "SEMANTIC_INVALIDITY"))
        has(refused.output, "Access denied: /etc/x")
        path = str(world.place / "b" / "c")
        folder = await execute(coordinator, "write_file", file_path=path, content="")
        same(folder.error["code"], "DEPENDENCY_UNAVAILABLE")
        again = await execute(coordinator, "write_file", file_path=path, content="")
        has(again.output, "not known")  # it may have written a part, so it is not called again
        missing = await execute(coordinator, "read_file", file_path="/nowhere")
        same(missing.error["code"], "SEMANTIC_INVALIDITY")
        has(missing.output, "File not found: /nowhere")
        wrong = await execute(coordinator, "read_file", path="/nowhere")
        same(wrong.error["code"], "STRUCTURAL_VIOLATION")


async def a_bash_tool_is_refused_without_a_sandbox(world: World) -> None:
    async with world.runtime() as runtime:
        try:
            await governed(runtime, BashTool(), effects={"bash": "irreversible"})
        except ContractError as error:
            same({problem.rule for problem in error.problems} >= {"code-unsandboxed"}, True)
        else:
            raise AssertionError("no error")
        try:
            sandboxed = contract_for(BashTool(), effect="irreversible", isolation="sandbox")
            await governed(runtime, BashTool(), contracts=[sandboxed])
        except ContractError as error:
            same([problem.rule for problem in error.problems], ["host-isolation"])
        else:
            raise AssertionError("no error")


async def a_web_tool_is_held_to_the_egress_allowlist(world: World) -> None:
    fetch = FetchTool()
    listed = contract_for(fetch, effect="retrieve", egress=["docs.example.org"])
    async with world.runtime() as runtime:
        coordinator = await governed(runtime, fetch, contracts=[listed])
        done = await execute(coordinator, "web_fetch", url="https://docs.example.org/a")
        same(done.output["content"], "a page")
        for url in ("https://evil.example/", "http://169.254.169.254/", "file:///etc/passwd", "x"):
            refused = await execute(coordinator, "web_fetch", url=url)
            same((refused.success, refused.error["code"]), (False, "POLICY_VIOLATION"), url)
        same(fetch.fetched, ["https://docs.example.org/a"])


async def a_failure_that_a_tool_reports_has_a_code(world: World) -> None:
    fetch = FetchTool()
    listed = contract_for(fetch, effect="retrieve", egress=["docs.example.org"])
    expected = {
        "RATE_LIMITED": {"message": "slow down", "code": "search_rate_limited"},
        "TIMEOUT": {"message": "no answer", "code": "search_timeout", "retryable": True},
        "PERMISSION_DENIED": {"message": "not you", "type": "PermissionError"},
        "DEPENDENCY_UNAVAILABLE": {"message": "later", "code": "search_failed", "retryable": True},
        "SEMANTIC_INVALIDITY": {"message": "url is required"},
    }
    async with world.runtime() as runtime:
        coordinator = await governed(runtime, fetch, contracts=[listed])
        for code, fetch.error in expected.items():
            result = await execute(coordinator, "web_fetch", url="https://docs.example.org/a")
            same((result.success, result.error["code"]), (False, code))
            has(result.output, fetch.error["message"])


async def a_failure_keeps_all_fields_of_its_error(world: World) -> None:
    """Redacted and bounded, beside its message and its code."""
    fetch = FetchTool()
    listed = contract_for(fetch, effect="retrieve", egress=["docs.example.org"])
    fetch.error = {
        "message": "slow down",
        "code": "search_rate_limited",
        "limits": {"per_minute": 5, "key": "AKIAIOSFODNN7EXAMPLE"},
        "page": "x y " * 50_000,
        "cause": object(),
    }
    async with world.runtime() as runtime:
        coordinator = await governed(runtime, fetch, contracts=[listed])
        long = await execute(coordinator, "web_fetch", url="https://docs.example.org/a")
        same((long.success, long.error["code"]), (False, "RATE_LIMITED"))
        same(long.error["details"]["truncated"], True)
        same(len(json.dumps(long.error)) < 20_000, True)
        del fetch.error["page"]
        kept = await execute(coordinator, "web_fetch", url="https://docs.example.org/b")
        details = kept.error["details"]
        same((details["code"], details["limits"]["per_minute"]), ("search_rate_limited", 5))
        same(sorted(details), ["code", "limits"])  # an object that is no JSON is left out
        same("AKIA" in json.dumps([long.error, kept.error, kept.output]), False)
        has(kept.output, "slow down", "per_minute", "untrusted")


async def a_tool_that_is_not_under_contract_is_refused(world: World) -> None:
    """Also one that was mounted later, and one whose call can't be understood."""
    async with world.runtime() as runtime:
        coordinator = await governed(runtime, own_tool(w.note), effects={"note": "draft"})
        late = MockTool("late")
        await coordinator.mount("tools", late, name="late")
        for data in ({"tool_name": "late"}, {"tool_name": "unknown"}, {}):
            answer = await coordinator.hooks.emit("tool:pre", data)
            same(answer.action, "deny", data)
            has(answer.reason, "not under contract")
        same((await coordinator.hooks.emit("tool:pre", {"tool_name": "note"})).action, "continue")
        collected = await coordinator.collect_contributions("observability.events")
        same(collected, [[*adapter.EVENTS]])


PROJECT = """
[tools]
paths = ["tools.py"]

[store]
url = "sqlite:///project.db"

[agents.support]
tenant = "acme"
user = "u_1"

[[grants]]
agent = "support"
tool = "greet"
"""
TOOLS = '''from typing import Annotated
from pydantic import BaseModel, Field
from counterseal import tool

class Greeting(BaseModel):
    text: str = Field(max_length=100)

@tool(effect="compute", version="1.0.0", owner="tests", usage="To greet.")
async def greet(name: Annotated[str, Field(max_length=50, description="Whom.")]) -> Greeting:
    """Return a greeting."""
    return Greeting(text=f"Hello {name}")
'''


async def in_a_session(world: World, script: list[Any], tools: Any, config: Any) -> dict[str, str]:
    """Run a session whose mount plan has our module, and return the results by call."""
    (world.place / "counterseal.toml").write_text(PROJECT)
    (world.place / "tools.py").write_text(TOOLS)
    file = world.place / "messages.json"
    file.unlink(missing_ok=True)
    plan = world.session(None, script, tools=tools)._plan(file)
    plan["tools"].append({"module": "tool-counterseal", "config": config})
    session = AmplifierSession(plan, session_id=RUN)
    await session.initialize()
    await session.execute("go")
    await session.cleanup()
    return results_of([Message(**one) for one in json.loads(file.read_text())])


async def the_tools_of_a_project_are_a_module(world: World) -> None:
    """From a mount plan, through the real entry point; other tools are governed afterwards."""
    script = [[("greet", {"name": "Ann"}, "c_greet"), NOTE, LOOK], "done"]
    config = {"project": str(world.place), "agent": "support", "effects": {"note": "draft"}}
    results = await in_a_session(world, script, (w.note, w.look_up), config)
    # look_up has no declared effect: the framework only logs that, so all guests stay refused.
    has(results["c_greet"], "Hello Ann")
    has(results["c_note"], "note is not under contract")
    has(results["c_look"], "look_up is not under contract")
    count()
    config["effects"]["look_up"] = "read_only"
    results = await in_a_session(world, script, (w.note, w.look_up), config)
    has(results["c_note"], "noted x")
    has(results["c_look"], "about y")
    count(note=1, look_up=1)


async def a_module_that_cannot_be_set_up_refuses_all_tools(world: World) -> None:
    """Amplifier goes on without a module that fails; its hook stays."""
    for config in ({"project": "/nowhere", "agent": "support"}, {"agent": "nobody"}, {}):
        given = {"project": str(world.place), **config}
        results = await in_a_session(world, [[NOTE], "done"], (w.note,), given)
        has(results["c_note"], "note is not under contract")
    count()


async def the_frameworks_validator_accepts_the_module(world: World) -> None:
    (world.place / "counterseal.toml").write_text(PROJECT)
    (world.place / "tools.py").write_text(TOOLS)
    config = {"project": str(world.place), "agent": "support"}
    result = await ToolValidator().validate("counterseal.adapters.amplifier", config=config)
    same([(one.name, one.message) for one in result.checks if not one.passed], [])
    empty = {**config, "agent": "nobody"}
    failed = await ToolValidator().validate("counterseal.adapters.amplifier", config=empty)
    same(failed.passed, False)


async def a_tool_of_the_runtime_is_offered(world: World) -> None:
    """As the mount() of an author's own module does, which returns the tool."""
    calls = []

    @tool(effect="external_notification", usage="To tell a customer.")
    async def tell(
        text: Annotated[str, Field(max_length=9, description="What.")],
    ) -> dict[str, str]:
        """Tell a customer something."""
        calls.append(text)
        return {"told": text}

    coordinator = MockCoordinator()
    async with world.runtime() as runtime:
        runtime.register(tell, grants=[Grant(agent=w.AGENT, tool="tell")])
        (mounted,) = await adapter.offer(coordinator, runtime, ["tell"], principal=someone)
        same(mounted.get_schema()["required"], ["text"])
        has(mounted.description, "Tell a customer something.")
        held = await mounted.execute({"text": "hi"})
        same((held.success, held.error["code"]), (False, "CONFIRMATION_MISSING"))
        voter = Voter(user="ann", tenant="acme")
        await runtime.approvals.decide(held.error["approval_id"], voter, "approve")
        for _ in range(2):
            same((await mounted.execute({"text": "hi"})).output, {"told": "hi"})
        same(calls, ["hi"])


CASES = (
    the_store_is_down,
    a_second_call_that_is_meant,
    a_vote_in_the_hosts_own_page,
    cancelled_while_the_tool_runs,
    a_filesystem_tool_is_a_guest,
    a_bash_tool_is_refused_without_a_sandbox,
    a_web_tool_is_held_to_the_egress_allowlist,
    a_failure_that_a_tool_reports_has_a_code,
    a_failure_keeps_all_fields_of_its_error,
    a_tool_that_is_not_under_contract_is_refused,
    the_tools_of_a_project_are_a_module,
    a_module_that_cannot_be_set_up_refuses_all_tools,
    the_frameworks_validator_accepts_the_module,
    a_tool_of_the_runtime_is_offered,
)
