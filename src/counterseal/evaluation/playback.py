"""Playback: answers a live agent from a recorded run. Same call, same observation.

Nothing is decided, executed or written. The first call that is not the next one of the recording is
reported: from there on, the agent has left the recorded run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from counterseal.call.events import refused_observation
from counterseal.canonical import canonical
from counterseal.contract.formats import mcp
from counterseal.evaluation.recording import RecordedCall, read_calls
from counterseal.evaluation.replay import Rules, judge
from counterseal.evaluation.trajectories import OK
from counterseal.ledger.requests import EventFilter
from counterseal.runtime import Runtime
from counterseal.views.call_page import ModelInput, last_event

_UNKNOWN: Final = "This call is not in the recording."


class PlayedCall(NamedTuple):
    """A recorded call with the text that the model read."""

    call_id: str
    tool: str
    arguments: Any
    text: str | None
    """None if the observation is not kept."""
    ok: bool
    why: str = ""


class PlaybackAnswer(NamedTuple):
    """The answer to a live call."""

    text: str
    ok: bool


class Playback:
    """Answers live calls from a recorded run. Each recorded call is used once."""

    def __init__(
        self, calls: Sequence[PlayedCall], report: Callable[[str], None] = lambda _: None
    ) -> None:
        self.calls = calls
        self.divergence: str | None = None
        """The first call that was not the next one of the recording."""
        self._left = list(calls)
        self._report = report

    def answer(self, tool: str, arguments: Mapping[str, Any]) -> PlaybackAnswer:
        """Return the recorded observation of a call, or an error text if the recording has none."""
        wanted = _fingerprint(tool, arguments)
        match = next(
            (one for one in self._left if _fingerprint(one.tool, one.arguments) == wanted), None
        )
        expected = self._left[0] if self._left else None
        if match is None or match is not expected:
            self._diverge(tool, expected, known=match is not None)
        if match is None:
            return PlaybackAnswer(_UNKNOWN, ok=False)
        self._left.remove(match)
        if match.text is None:
            return PlaybackAnswer(f"The recording does not have the answer: {match.why}", ok=False)
        return PlaybackAnswer(match.text, match.ok)

    def _diverge(self, tool: str, expected: PlayedCall | None, *, known: bool) -> None:
        if self.divergence is not None:
            return
        place = len(self.calls) - len(self._left) + 1
        then = "nothing more" if expected is None else f"{expected.tool} ({expected.call_id})"
        how = "which came later" if known else "with arguments that are not in the recording"
        if all(one.tool != tool for one in self.calls):
            how = "which the run never called"
        self.divergence = f"call {place}: the recording has {then}, the agent called {tool}, {how}"
        self._report(self.divergence)


def _fingerprint(tool: str, arguments: Any) -> bytes:
    try:
        return canonical([tool, arguments])
    except (ValueError, TypeError):
        return repr((tool, arguments)).encode()


async def recorded_run(
    runtime: Runtime, tenant: str, run_id: str, rules: Rules
) -> Sequence[PlayedCall]:
    """Return the calls of a run in their order, each with the text that the model read."""
    calls = []
    async for batch in read_calls(runtime.store, runtime.vault, tenant, EventFilter(run_id=run_id)):
        calls += [await _played(runtime, tenant, call, rules) for call in batch]
    return calls


async def _played(runtime: Runtime, tenant: str, call: RecordedCall, rules: Rules) -> PlayedCall:
    arguments = None if call.capture is None else call.capture.arguments
    known = PlayedCall(call.call_id, call.tool, arguments, None, ok=False, why=call.lacks)
    if call.capture is None:
        return known
    if call.outcome.verdict in ("deny", "ask"):
        judged = judge(call, rules)
        if judged.made is None or judged.decision is None:
            return known._replace(why=judged.why or "the refusal can't be made again")
        approval = call.event.body.get("approval_id")
        answer = refused_observation(judged.made, judged.decision, approval_id=approval)
        return known._replace(text=answer.for_model(), why="")
    executed = str(call.event.body.get("of", call.call_id))
    events = await runtime.store.events(tenant, call_id=executed)
    entries = await runtime.store.look_up_call(tenant, executed)
    end = last_event(events)
    seen = await ModelInput.of_call(runtime, tenant, end, entries[0] if entries else None)
    ok = end.decision in OK
    return known._replace(text=seen.text, ok=ok, why=seen.not_kept)


# --- over MCP -------------------------------------------------------------------------------------


async def serve_playback(playback: Playback, runtime: Runtime) -> None:
    """Serve an MCP client on standard input and output until it closes them.

    The server lists the tools of the recording, and answers from it.
    """
    import mcp_types as types  # noqa: PLC0415 - the MCP library is an extra
    from mcp.server.lowlevel.server import Server  # noqa: PLC0415
    from mcp.server.stdio import stdio_server  # noqa: PLC0415

    names = {call.tool for call in playback.calls}
    newest = {record.name: record for record in reversed(runtime.registry.records)}
    tools = [mcp(newest[name].contract).tool for name in sorted(names & newest.keys())]
    for tool in tools:
        tool.pop("outputSchema", None)  # the recording has the text that the model read

    async def list_tools(_ctx: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult.model_validate({"tools": tools})

    async def call_tool(_ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        answer = playback.answer(params.name, params.arguments or {})
        text = types.TextContent(type="text", text=answer.text)
        return types.CallToolResult(content=[text], is_error=not answer.ok)

    server: Server[Any] = Server("counterseal-playback")
    server.add_request_handler("tools/list", types.PaginatedRequestParams, list_tools)
    server.add_request_handler("tools/call", types.CallToolRequestParams, call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())
