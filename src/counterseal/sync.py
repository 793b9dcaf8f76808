"""A synchronous face of the runtime, for scripts and notebooks.

A thread with an event loop of its own does the work, so that it can also be used where a loop
already runs, as in a notebook. Every method passes its call on to the runtime of that thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import Any, Generic, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from counterseal import conversation, runtime
from counterseal.call.call import Preview
from counterseal.config.build import Project
from counterseal.config.project import open_project as _open_project
from counterseal.errors import Problem
from counterseal.observation import Observation
from counterseal.plans import Plan
from counterseal.proposal import Principal, Proposal

__all__ = ["Conversation", "Runtime", "open_project"]

R = TypeVar("R", bound=runtime.Runtime)


class Runtime(Generic[R]):
    """A runtime in a thread of its own, from `open_project` or `Runtime.open`."""

    def __init__(self, portal: BlockingPortal, inner: R) -> None:
        self._portal = portal
        self.runtime = inner
        """The runtime itself; use it through `call`, because it belongs to another thread."""

    @staticmethod
    @contextmanager
    def open(url: str, **options: Any) -> Iterator[Runtime[runtime.Runtime]]:
        """Open a runtime on the store that the URL names, and close it at the end."""
        with _opened(partial(runtime.Runtime.open, url, **options)) as opened:
            yield opened

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function of the runtime in its thread, and return its result, awaited.

        For everything without a method here: `project.call(project.runtime.run, principal)`.
        """

        async def work() -> Any:
            result = function(*args, **options)
            return await result if isawaitable(result) else result

        return self._portal.call(work)

    def register(self, *tools: Any, **settings: Any) -> tuple[Problem, ...]:
        """Register tools and grants, as `Runtime.register`."""
        problems: tuple[Problem, ...] = self.call(self.runtime.register, *tools, **settings)
        return problems

    def submit(self, proposal: Proposal, principal: Principal, **options: Any) -> Observation:
        """Carry out a proposal if every gate allows it, as `Runtime.submit`."""
        observation: Observation = self.call(self.runtime.submit, proposal, principal, **options)
        return observation

    def report_outcome(self, call_id: str, principal: Principal, **report: Any) -> Observation:
        """Settle a call that the client has carried out, as `Runtime.report_outcome`."""
        outcome: Observation = self.call(self.runtime.report_outcome, call_id, principal, **report)
        return outcome

    def preview(self, proposal: Proposal, principal: Principal) -> Preview:
        """Return what the gates decide, as `Runtime.preview`."""
        decided: Preview = self.call(self.runtime.preview, proposal, principal)
        return decided

    def plan(
        self, steps: Iterable[Proposal | Mapping[str, Any]], principal: Principal, **options: Any
    ) -> Plan:
        """Return what would become of a plan, as `Runtime.plan`."""
        plan: Plan = self.call(self.runtime.plan, steps, principal, **options)
        return plan

    def principal(self: Runtime[Project], agent: str, **instead: Any) -> Principal:
        """Return the principal of `[agents.NAME]` of the project."""
        return self.runtime.principal(agent, **instead)

    def conversation(self, principal: Principal, name: str, **options: Any) -> Conversation:
        """Return a conversation of a model, as `counterseal.Conversation`."""
        inner = conversation.Conversation(self.runtime, principal, name, **options)
        return Conversation(self, inner)


class Conversation:
    """A conversation of a model, from `Runtime.conversation`."""

    def __init__(self, outer: Runtime[Any], inner: conversation.Conversation) -> None:
        self._runtime, self._conversation = outer, inner

    def tools(self) -> list[dict[str, Any]]:
        """Return the tools that the model may use, in the provider's form."""
        tools: list[dict[str, Any]] = self._runtime.call(self._conversation.tools)
        return tools

    def answer(self, message: Any) -> list[dict[str, Any]]:
        """Carry out the tool calls of an assistant message, and return the answers to append."""
        answers: list[dict[str, Any]] = self._runtime.call(self._conversation.answer, message)
        return answers


@contextmanager
def open_project(path: str | Path | None = None, **options: Any) -> Iterator[Runtime[Project]]:
    """Open the project of a file or folder, as `counterseal.open_project`, and close it."""
    with _opened(partial(_open_project, path, **options)) as opened:
        yield opened


@contextmanager
def _opened(make: Callable[[], R]) -> Iterator[Runtime[R]]:
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal(name="counterseal"))
        inner = portal.call(make)  # in its own thread, to which a store may be bound
        stack.enter_context(portal.wrap_async_context_manager(inner))
        yield Runtime(portal, inner)
