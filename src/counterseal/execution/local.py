"""Running a function of this process, within a deadline: async inline, sync in a thread."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Generator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from counterseal.codes import FAILURES, Code
from counterseal.contract.declare import Tool
from counterseal.contract.model import Contract, Isolation
from counterseal.contract.surroundings import Config, Context, Secret
from counterseal.errors import SecretUnavailableError, ToolFailedError

__all__ = ["Outcome", "Secrets", "Work", "call_function", "execute"]

Secrets = Mapping[str, str] | Callable[[str, str], str]
"""Values by name, or a function of (tenant, name)."""


class Work(NamedTuple):
    """An admitted call, as the executor sees it."""

    contract: Contract
    tool: Tool[..., Any]
    arguments: Mapping[str, Any]
    context: Callable[[], Context]
    """Made only for a tool that asks for it."""
    secrets: Secrets


class Outcome(NamedTuple):
    """What came of it. `code` is SUCCESS when the function returned."""

    code: Code
    value: Any = None
    error: BaseException | None = None
    """For the operator's log; never for a model."""
    began: bool = True
    """False when the tool's own code was never reached, so nothing can have happened."""


async def call_function(
    function: Callable[..., Any], arguments: Mapping[str, Any], *, inline: bool = False
) -> Any:
    """The function's result. A sync function runs in a thread unless it was declared inline."""
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    result = (
        function(**arguments)
        if inline
        else await asyncio.to_thread(_contained, function, arguments)
    )
    # A callable object or a lambda may hide that it is async.
    return await result if inspect.isawaitable(result) else result


def _contained(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    try:
        return function(**arguments)
    except StopIteration as error:
        # A future can't carry this one: whoever waits would wait until the deadline.
        raise RuntimeError("the tool raised StopIteration") from error


async def execute(work: Work) -> Outcome:
    """Run the tool once, within its deadline. Never raises for what the tool does."""
    tool, isolation = work.tool, work.contract.isolation
    if isolation is Isolation.PROCESS or isolation is Isolation.SANDBOX:
        # This version has neither, and running without would break a promise.
        missing = RuntimeError(f"isolation {isolation} is not to be had here")
        return Outcome(Code.DEPENDENCY_UNAVAILABLE, error=missing, began=False)
    try:
        arguments = tool.binder(work.arguments)
        if tool.injected:
            arguments.update(_injected(work, work.context()))
    # Binding runs the tool's own types, and resolving a secret the operator's code.
    except Exception as error:  # noqa: BLE001 - nothing has begun, whatever it was
        return Outcome(code_of(error), error=error, began=False)
    try:
        running = _begin(work, arguments)
        # Many tools never wait, and for those a timer would cost more than all the gates do.
        try:
            waits_for = running.send(None)
        except StopIteration as done:
            return Outcome(Code.SUCCESS, done.value)
        async with asyncio.timeout(work.contract.runtime.timeout_ms / 1000):
            return Outcome(Code.SUCCESS, await _Rest(running, waits_for))
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # the caller gave up; a tool that raises it by itself has just failed
        return Outcome(Code.UNKNOWN_ERROR, error=error)
    # The boundary to code that is not ours: whatever it raises becomes a code.
    except BaseException as error:  # noqa: BLE001 - a tool may raise anything, sys.exit() too
        return Outcome(code_of(error, work.contract), error=error)


def _begin(work: Work, arguments: dict[str, Any]) -> Coroutine[Any, Any, Any]:
    """The tool's own coroutine, or one that runs it where its contract wants it to run."""
    function, isolation = work.tool.function, work.contract.isolation
    if not work.tool.is_async:
        # A sync tool that changes something never blocks the event loop, whatever it declares.
        inline = isolation is Isolation.INLINE and not work.contract.mutates
        return call_function(function, arguments, inline=inline)
    if isolation is Isolation.THREAD:
        return asyncio.to_thread(lambda: asyncio.run(function(**arguments)))
    running: Coroutine[Any, Any, Any] = function(**arguments)
    return running


class _Rest:
    """A coroutine that was run up to its first wait: the rest of it, in the same task."""

    __slots__ = ("_coroutine", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, Any]:
        while True:
            try:
                sent = yield self._waits_for
            except BaseException as error:  # noqa: BLE001 - cancellation must reach the tool
                step = partial(self._coroutine.throw, error)
            else:
                step = partial(self._coroutine.send, sent)
            try:
                self._waits_for = step()
            except StopIteration as done:
                return done.value


def _injected(work: Work, context: Context) -> dict[str, Any]:
    """What the marked parameters receive."""
    values: dict[str, Any] = {}
    for name, mark in work.tool.injected.items():
        if mark is Context:
            values[name] = context
        elif isinstance(mark, Secret):
            values[name] = _secret(work, context.tenant, mark.name)
        elif isinstance(mark, Config):
            values[name] = context.config.get(mark.key)
        else:
            values[name] = context.state.get(getattr(mark, "key", ""))
    return values


def _secret(work: Work, tenant: str, name: str) -> str:
    try:
        return work.secrets(tenant, name) if callable(work.secrets) else work.secrets[name]
    except SecretUnavailableError:
        raise
    # A resolver is the operator's own code, and may fail in its own way.
    except Exception as error:
        raise SecretUnavailableError(f"the secret {name} is not available") from error


def deadline(now: float, timeout_ms: int) -> datetime:
    """When a call that begins now must be over."""
    return datetime.fromtimestamp(now + timeout_ms / 1000, UTC)


_CODES: tuple[tuple[type[BaseException], Code], ...] = (
    (TimeoutError, Code.TIMEOUT),
    (SecretUnavailableError, Code.DEPENDENCY_UNAVAILABLE),
    (ToolFailedError, Code.UNKNOWN_ERROR),
    (ConnectionError, Code.DEPENDENCY_UNAVAILABLE),
    (OSError, Code.DEPENDENCY_UNAVAILABLE),
)


def code_of(error: BaseException, contract: Contract | None = None) -> Code:
    """The code of an exception: the contract's own word for it, else the table's.

    UNKNOWN_ERROR stands for all that neither names.
    """
    if contract is not None:
        own = contract.observability.error_taxonomy_mapping.get(type(error).__name__, "")
        if own in FAILURES:
            return Code(own)
    return next((code for kind, code in _CODES if isinstance(error, kind)), Code.UNKNOWN_ERROR)
