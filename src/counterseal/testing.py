"""For your own tests: a clock that you move, approvers, tools that fail or hang.

Everything runs through the real runtime and the real gates; only the outside world is faked.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from anyio.from_thread import start_blocking_portal

from counterseal.approvals.packet import Packet
from counterseal.approvals.terms import Choice, Voter
from counterseal.config import project
from counterseal.contract.declare import Tool, ToolOptions, set_option
from counterseal.contract.egress import Egress
from counterseal.contract.model import Contract
from counterseal.contract.tool_context import Context
from counterseal.errors import ContractError, Severity
from counterseal.execution.attempt import AttemptRequest, LocalServices, Provision
from counterseal.execution.executor import Executor
from counterseal.execution.secrets import Secrets
from counterseal.operations.approver import Approver
from counterseal.proposal import Principal
from counterseal.registry import Grant
from counterseal.runtime import Runtime
from counterseal.storage.memory import MemoryStore
from counterseal.storage.store import Store

__all__ = [
    "HANG",
    "FakeClock",
    "FakeTool",
    "MemoryStore",
    "MockTool",
    "TestCoordinator",
    "ToolResult",
    "approver",
    "check_project",
    "context",
    "fake_tool",
    "runtime_for",
    "someone",
]

HANG = object()
"""An answer that never returns."""
_NO_INPUT = {"type": "object", "properties": {}, "additionalProperties": False}


class FakeClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now: float = 1_767_225_600.0) -> None:
        self.now = now
        self._stepped = 0.0

    def __call__(self) -> float:
        return self.now

    def steady(self) -> float:
        """Return what a monotonic clock shows beside it, for `Runtime(steady=…)`."""
        return self.now - self._stepped

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def step(self, seconds: float) -> None:
        """Set the clock forward or back, while no time passes."""
        self.now += seconds
        self._stepped += seconds


class FakeTool:
    """A tool with prepared answers. `calls` holds the arguments that it was called with.

    An exception is raised, `HANG` never returns, a function is called with the arguments, and
    anything else is returned. The last answer repeats.
    """

    def __init__(self, contract: Contract, answers: Iterable[Any]) -> None:
        self._answers = list(answers)
        self.calls: list[dict[str, Any]] = []
        self.tool: Tool[..., Any] = Tool(contract=contract, function=self._answer)

    @property
    def contract(self) -> Contract:
        return self.tool.contract

    async def _answer(self, **arguments: Any) -> Any:
        self.calls.append(arguments)
        answer = self._answers[min(len(self.calls), len(self._answers)) - 1]
        if answer is HANG:
            await asyncio.Event().wait()
        if isinstance(answer, BaseException):
            raise answer
        return answer(**arguments) if callable(answer) else answer


def fake_tool(
    called: str = "look_up",
    *answers: Any,
    input_schema: dict[str, Any] | None = None,
    output_schema: dict[str, Any] | None = None,
    **declared: Unpack[ToolOptions],
) -> FakeTool:
    """Return a declared tool without code. Takes the options of `@tool`, and the two schemas."""
    affordance: dict[str, Any] = {
        "model_description": f"{called}, made up for a test.",
        "input_schema": input_schema or _NO_INPUT,
        "output_schema": output_schema or {"type": "object"},
    }
    data: dict[str, Any] = {
        "effect": "read_only",
        "usage": "In tests.",
        "identity": {"name": called, "version": "1.0.0", "owner": "tests"},
        "affordance": affordance,
    }
    for key, value in declared.items():
        set_option(data, key, value)
    return FakeTool(Contract.model_validate(data), answers or ({"ok": True},))


def someone(agent: str = "agent", tenant: str = "acme", **more: Any) -> Principal:
    """Return a principal without roles or scopes."""
    return Principal(tenant=tenant, agent=agent, user=more.pop("user", "u_1"), **more)


def approver(
    user: str = "boss",
    roles: Iterable[str] = (),
    decision: Choice | str = Choice.APPROVE,
    comment: str = "",
) -> Approver:
    """Return an approver for `runtime.approvals.answer` that decides every request alike."""
    choice, held = Choice(decision), frozenset(roles)

    def answer(packet: Packet) -> tuple[Voter, Choice, str]:
        return Voter(user=user, tenant=packet.tenant, roles=held), choice, comment

    return answer


def context(
    tool: Tool[..., Any] | FakeTool,
    *,
    principal: Principal | None = None,
    executor: Executor | None = None,
    **fields: Any,
) -> Context:
    """Return a context for calling a tool's function directly.

    Its clients respect the tool's egress, and its files are in a directory of the executor.
    """
    contract, executor = tool.contract, executor or Executor()
    about = Context(
        principal=principal or someone(), **{"run_id": "run_1", "call_id": "call_1", **fields}
    )
    work = AttemptRequest({}, lambda: about, contract.runtime.timeout_ms / 1000)
    provision = Provision(contract.name, Egress.of(contract), executor.clients, executor.directory)
    return replace(about, services=LocalServices(work, provision))


def check_project(path: str | Path | None = None, *, secrets: Secrets | None = None) -> None:
    """Fail with every error that `counterseal check` finds in a project: one line of a test.

    `secrets` stands for the real ones, which a test machine does not have.
    """
    with start_blocking_portal() as portal:  # a test may have a running event loop
        problems = portal.call(lambda: project.check_project(path, secrets=secrets))
    errors = [problem for problem in problems if problem.severity is Severity.ERROR]
    if errors:
        raise AssertionError(str(ContractError(errors)))


async def _no_pause(_seconds: float) -> None:
    """Make the next attempt without waiting."""


def runtime_for(
    *tools: FakeTool | Tool[..., Any],
    agent: str = "agent",
    store: Store | None = None,
    **options: Any,
) -> Runtime:
    """Return a runtime with these tools, each granted to the agent; in memory by default."""
    options.setdefault("pause", _no_pause)
    clock = options.get("clock")
    if isinstance(clock, FakeClock):
        options.setdefault("steady", clock.steady)
    runtime = Runtime(store or MemoryStore(), **options)
    declared = [tool.tool if isinstance(tool, FakeTool) else tool for tool in tools]
    grants = [
        Grant(agent=agent, tool=tool.contract.name) for tool in declared if tool.contract.exposed
    ]
    runtime.register(*declared, grants=grants)
    return runtime


# --- modules of Amplifier, without it -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a plain tool, in the form that Amplifier's tools have."""

    success: bool = True
    output: Any = None
    error: dict[str, Any] | None = None


class MockTool:
    """A plain tool that returns a prepared value and keeps what it was called with."""

    def __init__(
        self, name: str = "mock_tool", description: str = "", return_value: Any = "Success"
    ) -> None:
        self.name = name
        self.description = description or f"Mock tool: {name}"
        self.input_schema: dict[str, Any] = {"type": "object", "properties": {}}
        self.return_value = return_value
        self.call_count = 0
        self.last_input: dict[str, Any] | None = None

    def get_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the input."""
        return self.input_schema

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 - the protocol's word
        """Return the prepared value; a `ToolResult` is returned as it is."""
        self.call_count += 1
        self.last_input = input
        value = self.return_value
        return value if isinstance(value, ToolResult) else ToolResult(output=value)


class TestCoordinator:
    """A coordinator for the `mount()` of an Amplifier module, which keeps what the module does.

    It is its own registry of hooks: `coordinator.hooks.register(event, handler)`, `emit`.
    """

    __test__ = False  # pytest takes classes with such names for tests

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        self.session_id = "test-session"
        self.parent_id: str | None = None
        self.config = config or {}
        self.mount_points: dict[str, Any] = {"tools": {}, "providers": {}}
        self.mount_history: list[dict[str, Any]] = []
        self.capabilities: dict[str, Any] = {}
        self.channels: dict[str, list[tuple[str, Callable[[], Any]]]] = {}
        self.handlers: dict[str, list[Callable[..., Any]]] = {}
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.cancelled = False
        self.approval_system: Any = None
        self._cleanups: list[Callable[[], Any]] = []

    @property
    def hooks(self) -> TestCoordinator:
        return self

    async def mount(self, mount_point: str, module: Any, name: str | None = None) -> None:
        """Mount a module; tools and providers by name."""
        self.mount_history.append({"mount_point": mount_point, "module": module, "name": name})
        place = self.mount_points.get(mount_point)
        if isinstance(place, dict):
            place[name or module.name] = module
        else:
            self.mount_points[mount_point] = module

    async def unmount(self, mount_point: str, name: str | None = None) -> None:
        """Take a module away."""
        place = self.mount_points.get(mount_point)
        if isinstance(place, dict):
            place.pop(name, None)
        else:
            self.mount_points.pop(mount_point, None)

    def get(self, mount_point: str, name: str | None = None) -> Any:
        """Return what is mounted, or None."""
        place = self.mount_points.get(mount_point)
        return place.get(name) if name is not None and isinstance(place, dict) else place

    def register_capability(self, name: str, value: Any) -> None:
        self.capabilities[name] = value

    def get_capability(self, name: str) -> Any:
        return self.capabilities.get(name)

    def register_contributor(self, channel: str, name: str, callback: Callable[[], Any]) -> None:
        self.channels.setdefault(channel, []).append((name, callback))

    async def collect_contributions(self, channel: str) -> list[Any]:
        """Return what the contributors of a channel say."""
        return [await _awaited(callback()) for _, callback in self.channels.get(channel, ())]

    def register(
        self, event: str, handler: Callable[..., Any], priority: int = 0, name: str | None = None
    ) -> Callable[[], None]:
        """Register a handler of an event. Returns what takes it back."""
        handlers = self.handlers.setdefault(event, [])
        handlers.append(handler)
        return lambda: handlers.remove(handler)

    async def emit(self, event: str, data: dict[str, Any]) -> Any:
        """Keep an event, and return the first answer that does not say `continue`."""
        self.events.append((event, data))
        answer = None
        for handler in list(self.handlers.get(event, ())):
            answer = await _awaited(handler(event, data))
            if getattr(answer, "action", "continue") != "continue":
                break
        return answer

    async def request_cancel(self, immediate: bool = False) -> None:  # noqa: FBT001, FBT002
        self.cancelled = True

    def register_cleanup(self, cleanup: Callable[[], Any]) -> None:
        self._cleanups.append(cleanup)

    async def cleanup(self) -> None:
        """Call the registered cleanups, the last one first."""
        while self._cleanups:
            await _awaited(self._cleanups.pop()())


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
