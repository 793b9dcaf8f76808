"""For your own tests: a clock that you move, approvers, tools that fail or hang.

Everything runs through the real runtime and the real gates; only the outside world is faked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
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
