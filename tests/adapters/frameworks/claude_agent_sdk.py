"""The SDK and its real CLI, with a scripted model: a local server that speaks the Messages API.

No key is needed, because the CLI talks to that server only.
"""

from __future__ import annotations

import inspect
import json
import threading
from contextlib import aclosing, asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import claude_agent_sdk
import world as w
from cases import MAIL, NOTE, PAY, count, has, same
from claude_agent_sdk import (
    ClaudeAgentOptions,
    HookMatcher,
    ResultMessage,
    SdkMcpTool,
    create_sdk_mcp_server,
    query,
)
from mcp import Client
from pydantic import create_model
from world import RUN, Turn, World, approve

from counterseal.adapters import claude_agent_sdk as adapter
from counterseal.adapters.host import HostTool
from counterseal.errors import StoreError

PACKAGES = ("claude-agent-sdk",)
LACKS = {
    "a_vote_in_the_hosts_own_page": "The CLI carries no answer; people decide at the desk.",
    "approved_with_other_arguments": "The CLI has no edit of a deferred call.",
    "three_in_one_turn": "the CLI defers one call of a turn; the model makes the other again later",
    "a_tool_of_an_mcp_server": "Tools of other servers run in the CLI; see the cases of claims.",
}
contract_for = adapter.contract_for
SERVER = "desk"
_ASKING = ("pay", "send_mail")


def own_tool(function: Any) -> SdkMcpTool[Any]:
    """A tool of the SDK's in-process server, of a plain function."""
    parameters = inspect.signature(function, eval_str=True).parameters
    fields = {name: (one.annotation, ...) for name, one in parameters.items()}
    schema = create_model(function.__name__, **fields).model_json_schema()

    async def handler(arguments: dict[str, Any]) -> dict[str, Any]:
        text = await function(**arguments)
        return {"content": [{"type": "text", "text": text}]}

    return SdkMcpTool(function.__name__, function.__doc__, schema, handler)


# --- the model ------------------------------------------------------------------------------------


class Model(BaseHTTPRequestHandler):
    """Answers each request with the step of the script at this place of the conversation."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = [one for one in body.get("messages", ()) if one["role"] == "assistant"]
        script = self.server.script
        step = script[min(len(said), len(script) - 1)]
        blocks = [{"type": "text", "text": step}]
        if not isinstance(step, str):
            blocks = [{"type": "tool_use", "id": i, "name": n, "input": a} for n, a, i in step]
        self.server.count += 1
        events = "".join(
            f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
            for event in stream_of(blocks, f"msg_{self.server.count}")
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(events)))
        self.end_headers()
        self.wfile.write(events)


def stream_of(blocks: list[dict[str, Any]], name: str) -> Any:
    """The events of a streamed message."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": name, "type": "message", "role": "assistant", "model": "scripted"}
    rest = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    yield {"type": "message_start", "message": {**message, **rest}}
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            start, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            text = json.dumps(block["input"])
            start = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": text}
        yield {"type": "content_block_start", "index": index, "content_block": start}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    reason = "end_turn" if blocks[0]["type"] == "text" else "tool_use"
    ended = {"stop_reason": reason, "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 1}}
    yield {"type": "message_stop"}


@asynccontextmanager
async def model(script: list[Any]) -> Any:
    """A scripted model; yields its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    server.script, server.count, server.daemon_threads = script, 0, True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


# --- sessions -------------------------------------------------------------------------------------


class Session:
    """A session of the CLI, whose files are in a folder."""

    def __init__(self, runtime, place, script, tools, *, retry=False, builtin=(), **options):
        place.mkdir(exist_ok=True)
        self.place, self.tools = place, [own_tool(function) for function in tools]
        names = {one.name: f"mcp__{SERVER}__{one.name}" for one in self.tools}
        self.script = [
            step if isinstance(step, str) else [(names.get(n, n), a, i) for n, a, i in step]
            for step in script
        ]
        self.governed = None
        if runtime is not None:
            given = [*self.tools, *builtin]
            options.setdefault("run_id", lambda _: RUN)
            self.governed = adapter.Counterseal(runtime, given, server=SERVER, **options)

    async def start(self, prompt: str = "go", **more: Any) -> Turn:
        return (await self._run(prompt, **more))[0]

    async def resume(self, reply: Any = True) -> Turn:
        session = (self.place / "session").read_text()
        return await self.start("go on", resume=session)

    async def resume_with(self, arguments: Any) -> Turn:
        return await self.resume()  # the CLI has no way to change arguments

    async def stream(self) -> tuple[Turn, list[Any]]:
        return await self._run("go")

    async def nested(self) -> Turn:
        """Run inside of another agent's tool."""
        self.place = self.place / "inner"
        self.place.mkdir()
        return await self.start()

    async def _run(self, prompt: str, **more: Any) -> tuple[Turn, list[Any]]:
        async with model(self.script) as address:
            options = self._options(address, **more)
            async with aclosing(query(prompt=prompt, options=options)) as stream:
                messages = [one async for one in stream]
        last = [one for one in messages if isinstance(one, ResultMessage)][-1]
        (self.place / "session").write_text(last.session_id)
        shown, errors = {}, set()
        for line in self._transcript(last.session_id):
            for block in line:
                shown[block["tool_use_id"]] = _text(block["content"])
                if block.get("is_error"):
                    errors.add(block["tool_use_id"])
                else:
                    errors.discard(block["tool_use_id"])
        pending = []
        if self.governed is not None:
            pending = [one.record() for one in self.governed.pending.values()]
        if not pending and not last.result:
            raise RuntimeError(f"the run was stopped: {shown}")
        return Turn(pending, shown, errors, None if pending else last.result), messages

    def _transcript(self, session: str) -> Any:
        """The results of all tool calls that the model was shown, as the CLI keeps them."""
        (file,) = self.place.glob(f".claude/projects/*/{session}.jsonl")
        for line in file.read_text().splitlines():
            content = json.loads(line).get("message", {}).get("content")
            if isinstance(content, list):
                yield [block for block in content if block.get("type") == "tool_result"]

    def _cli(self) -> Path:
        """The SDK's CLI, which ends with the process that started it, also if that is killed."""
        bundled = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
        script = self.place / "claude"
        script.write_text(f'#!/bin/sh\nexec setpriv --pdeathsig KILL {bundled} "$@"\n')
        script.chmod(0o700)
        return script

    def _options(self, address: str, **more: Any) -> ClaudeAgentOptions:
        if self.governed is not None:
            servers, hooks = {SERVER: self.governed.server}, self.governed.hooks
        else:
            servers = {SERVER: create_sdk_mcp_server(SERVER, tools=self.tools)}
            hooks = {"PreToolUse": [HookMatcher(hooks=[allow])]}
        settings = {
            "ANTHROPIC_BASE_URL": address,
            "ANTHROPIC_API_KEY": "none",
            "HOME": str(self.place),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "NO_PROXY": "127.0.0.1",
        }
        return ClaudeAgentOptions(
            mcp_servers=servers,
            hooks=hooks,
            cwd=self.place,
            cli_path=self._cli(),
            stderr=lambda _: None,  # its own pipe: the tests wait for the end of ours
            env=settings,
            setting_sources=[],
            model="claude-sonnet-4-5",
            **more,
        )


async def allow(*_: Any) -> dict[str, Any]:
    """The host's own hook, which says yes."""
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow"}}


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(one["text"] for one in content)


def check_stream(chunks: list[Any]) -> None:
    """The messages of the SDK have the calls, their results, and the last words."""
    kinds = [type(one).__name__ for one in chunks]
    same({"AssistantMessage", "UserMessage", "ResultMessage"} <= set(kinds), True)
    same(chunks[-1].result, "done")


# --- cases of this framework alone ----------------------------------------------------------------


async def the_store_is_down(world: World) -> None:
    """The hook stops the run: the model is not asked again."""
    async with world.runtime() as runtime:
        session = world.session(runtime, [[NOTE], "done"])

        async def down(*_: Any, **__: Any) -> None:
            raise StoreError("disk gone")

        runtime.store.admit = down
        try:
            turn = await session.start()
        except RuntimeError as error:
            has(str(error), "the run was stopped", "the store is down, so nothing was executed")
        else:
            raise AssertionError(f"the run went on: {turn}")
        count()


async def parallel_gated_and_ungated_calls(world: World) -> None:
    """The CLI can resume one call of a turn: the second that waits is told so, and made again."""
    again = ("send_mail", MAIL[1], "c_again")
    async with world.runtime() as runtime:
        session = world.session(runtime, [[NOTE, PAY, MAIL], [again], "done"])
        turn = await session.start()
        same(len(turn.pending), 1)
        has(turn.results["c_mail"], "Held: a person decides")
        count(note=1)
        every = await runtime.approvals.list("acme")
        pending = [{"approval_id": one.approval_id} for one in every]
        await approve(runtime, Turn(pending, {}, set(), None))
        turn = await session.resume()
        has(turn.results["c_pay"], "paid 5 to acct_1")
        has(turn.results["c_again"], "sent to")
        same(turn.final, "done")
        count(note=1, pay=1, send_mail=1)


async def a_second_call_that_is_meant(world: World) -> None:
    """The arguments alone count, because a held call is made again under another id."""
    again = ("note", NOTE[1], "c_again")
    async with world.runtime() as runtime:
        turn = await world.session(runtime, [[NOTE], [again], "done"]).start()
        has(turn.results["c_again"], "noted x")
        count(note=1)
        place = World(world.framework, world.place / "other")
        place.place.mkdir()
        turn = await place.session(runtime, [[NOTE], [again], "done"], same="call").start()
        has(turn.results["c_again"], "noted x")
        count(note=3)


WRITE = HostTool(
    "Write",
    "Writes a file to the local filesystem.",
    {
        "type": "object",
        "properties": {
            "file_path": {"type": "string", "description": "The absolute path."},
            "content": {"type": "string", "description": "The content."},
        },
        "required": ["file_path", "content"],
    },
)
READ = HostTool(
    "Read",
    "Reads a file.",
    {
        "type": "object",
        "properties": {"file_path": {"type": "string", "description": "The absolute path."}},
        "required": ["file_path"],
    },
)


def builtin_session(world: World, runtime: Any, script: list[Any], **more: Any) -> Any:
    options = {"effects": {"Write": "draft", "Read": "read_only"}, "grants": w.AGENT, **more}
    return world.session(runtime, script, tools=(), builtin=[WRITE, READ], **options)


def writes(path: Path, text: str, call: str) -> Any:
    return ("Write", {"file_path": str(path), "content": text}, call)


async def events_of(runtime: Any) -> list[tuple[str, str]]:
    found = [event for _, event in await runtime.store.events("acme")]
    return [(event.caller.tool, event.type.value) for event in found]


async def a_builtin_tool_is_claimed_and_then_settled(world: World) -> None:
    """The CLI writes the file; a repeat of the call is refused with the earlier result."""
    path = world.place / "state" / "a.txt"
    script = [[writes(path, "one", "c_1")], [writes(path, "one", "c_2")], "done"]
    async with world.runtime() as runtime:
        turn = await builtin_session(world, runtime, script).start()
        same(path.read_text(), "one")
        same(turn.errors, {"c_2"})
        has(turn.results["c_2"], "This call was made before", "filePath")
        events = await events_of(runtime)
        same(events.count(("Write", "tool.succeeded")), 1, events)


async def a_builtin_tool_that_fails_is_settled_as_failed(world: World) -> None:
    missing = str(world.place / "nothing")
    async with world.runtime() as runtime:
        script = [[("Read", {"file_path": missing}, "c_1")], "done"]
        turn = await builtin_session(world, runtime, script).start()
        has(turn.results["c_1"], "does not exist")
        same(
            [kind for _, kind in await events_of(runtime) if kind == "tool.failed"], ["tool.failed"]
        )


async def a_builtin_tool_waits_for_a_person(world: World) -> None:
    path = world.place / "state" / "a.txt"
    async with world.runtime() as runtime:
        effects = {"Write": "external_notification", "Read": "read_only"}
        script = [[writes(path, "one", "c_1")], "done"]
        session = builtin_session(world, runtime, script, effects=effects)
        turn = await session.start()
        same((len(turn.pending), path.exists()), (1, False))
        await approve(runtime, turn)
        turn = await session.resume()
        same((turn.final, path.read_text()), ("done", "one"))


async def a_tool_without_a_contract_is_refused(world: World) -> None:
    path = world.place / "state" / "bad"
    call = ("Bash", {"command": f"touch {path}", "description": "x"}, "c_1")
    async with world.runtime() as runtime:
        turn = await builtin_session(world, runtime, [[call], "done"]).start()
        has(turn.results["c_1"], "Bash is not under contract here")
        same((turn.errors, path.exists()), ({"c_1"}, False))


async def a_hook_that_fails_blocks_the_call(world: World) -> None:
    async with world.runtime() as runtime:
        session = world.session(runtime, [[NOTE], "done"])

        async def broken(*_: Any) -> Any:
            raise RuntimeError("boom")

        session.governed._host.submit = broken
        turn = await session.start()
        same(turn.errors, {"c_note"})
        count()


async def a_call_that_no_hook_has_seen_is_not_made(world: World) -> None:
    """A real `tools/call` to the server; without the hooks in the options it does nothing."""
    async with world.runtime() as runtime:
        governed = world.session(runtime, ["done"]).governed
        async with Client(governed.server["instance"]) as client:
            listed = await client.list_tools()
            same({one.name for one in listed.tools}, set(w.EFFECTS))
            result = await client.call_tool("note", {"text": "x"})
            same((result.is_error, result.content[0].text), (True, adapter._UNANNOUNCED))
            count()
            call = {"tool_name": "mcp__desk__note", "tool_input": {"text": "x"}}
            more = {"tool_use_id": "c_1", "session_id": "s", "hook_event_name": "PreToolUse"}
            decided = await governed.before({**call, **more}, "c_1", {})
            same(decided["hookSpecificOutput"]["permissionDecision"], "allow")
            result = await client.call_tool("note", {"text": "x"})
            same((result.is_error, result.content[0].text), (False, "noted x"))
            count(note=1)


CASES = (
    the_store_is_down,
    parallel_gated_and_ungated_calls,
    a_second_call_that_is_meant,
    a_builtin_tool_is_claimed_and_then_settled,
    a_builtin_tool_that_fails_is_settled_as_failed,
    a_builtin_tool_waits_for_a_person,
    a_tool_without_a_contract_is_refused,
    a_hook_that_fails_blocks_the_call,
    a_call_that_no_hook_has_seen_is_not_made,
)
