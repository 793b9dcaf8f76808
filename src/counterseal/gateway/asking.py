"""The client in front of a call, asked in the middle of it: for a person's answer, or a model's.

A client of 2025-11-25 is sent a request and answers it. One of 2026-07-28 can't be sent any: the
call waits where it stands (see `parking`) until its client calls again with the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, Final, TypeVar, get_args

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from opentelemetry import trace
from opentelemetry.trace import Span
from pydantic import ValidationError

from counterseal.contract.tool_context import ASKER, CLIENT, RefusedError
from counterseal.execution.attempt import Progress
from counterseal.observation import Redactor
from counterseal.telemetry import listening

__all__ = ["LEVELS", "Fronted", "is_modern", "lacks"]

Ctx = ServerRequestContext[Any, Any]
T = TypeVar("T")

LEVELS: Final[tuple[str, ...]] = get_args(types.LoggingLevel)
_REQUESTS: Final[Mapping[str, tuple[type[Any], type[Any], str]]] = {
    "elicitation/create": (types.ElicitRequest, types.ElicitResult, "elicitation"),
    "sampling/createMessage": (
        types.CreateMessageRequest,
        types.CreateMessageResultWithTools,
        "sampling",
    ),
    "roots/list": (types.ListRootsRequest, types.ListRootsResult, "roots"),
}
_MOST_REPORTS: Final = 1000
_REPORTING: Final = 5.0
"""Seconds that a client is given to take in what it is told of a call, before its end."""


def is_modern(ctx: Ctx) -> bool:
    """Whether the client speaks the revision in which servers send no requests."""
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


class Fronted:
    """The client of one call. `contract.tool_context.Client` says what tools may ask of it."""

    def __init__(
        self,
        ctx: Ctx,
        redactor: Redactor,
        given: Mapping[str, Any] | None = None,
        *,
        log_level: Callable[[Ctx], str],
        parks: bool = False,
    ) -> None:
        self.ctx = ctx
        self._log_level = log_level
        self.span: Span | None = _span()
        """Of the request that the client waits for."""
        self.missing: str | None = None
        """A capability that was needed, and that it does not have or may not be asked for."""
        self.asked: dict[str, tuple[str, dict[str, Any], asyncio.Future[dict[str, Any]]]] = {}
        """What it has not answered yet: method, params, and where the answer goes."""
        self._parks = parks
        """Whether the call can be left where it stands, until answers come."""
        self._redactor = redactor
        self._given = dict(given or {})
        self._count = 0
        self._loop = asyncio.get_running_loop()

    @cached_property
    def _reports(self) -> asyncio.Queue[Progress]:
        """What a tool says of its progress, on the way to the client. Few want to hear of it."""
        return asyncio.Queue(_MOST_REPORTS)

    @cached_property
    def stirred(self) -> asyncio.Event:
        """Set when there is something to ask."""
        return asyncio.Event()

    @property
    def traceparent(self) -> str | None:
        found = (self.ctx.meta or {}).get("traceparent")
        return found if isinstance(found, str) else None

    def can(self, capability: str) -> bool:
        have = self.ctx.session.client_capabilities
        if have is None:
            return False
        found = have.elicitation
        if capability == "elicitation.url":
            return found is not None and found.url is not None
        if capability == "elicitation.form":  # who names no mode means this one
            return found is not None and (found.form is not None or found.url is None)
        return getattr(have, capability, None) is not None

    async def ask(
        self, method: str, params: Mapping[str, Any], *, name: str = ""
    ) -> dict[str, Any]:
        return await self._here(self._ask(method, dict(params), name))

    async def _ask(self, method: str, params: dict[str, Any], name: str) -> dict[str, Any]:
        _, _, capability = _REQUESTS[method]
        if capability == "elicitation":
            capability = f"elicitation.{'url' if params.get('mode') == 'url' else 'form'}"
        if not self.can(capability):
            self.missing = capability
            raise RefusedError(f"the client does not do {capability}", missing=capability)
        params = self._redactor.redact(params)[0]
        if ASKER.get() and isinstance(params.get("message"), str):
            params["message"] = f"{ASKER.get()} asks: {params['message']}"
        self._count += 1
        if not name or name in self.asked:
            name = f"{name or 'ask'}-{self._count}"
        if is_modern(self.ctx):
            return await self._parked(method, params, name)
        return await self._sent(method, params)

    async def log(self, level: str, data: Any, logger: str | None = None) -> None:
        if level in self._wanted():
            await self._here(self._log(level, data, logger))

    async def _log(self, level: str, data: Any, logger: str | None) -> None:
        clean, _ = self._redactor.redact(data)
        told = types.LoggingMessageNotificationParams.model_validate(
            {"level": level, "data": clean, "logger": logger}
        )
        note = types.LoggingMessageNotification(params=told)
        await self.ctx.session.send_notification(note, related_request_id=self.ctx.request_id)

    async def _here(self, work: Coroutine[Any, Any, T]) -> T:
        """A tool may run in a thread, on an event loop of its own; the client is on this one."""
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _wanted(self) -> tuple[str, ...]:
        """The levels that the client wants to hear of."""
        if is_modern(self.ctx):
            least = (self.ctx.meta or {}).get(types.LOG_LEVEL_META_KEY)
            return LEVELS[LEVELS.index(least) :] if least in LEVELS else ()
        return LEVELS[LEVELS.index(self._log_level(self.ctx)) :]

    async def _sent(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        request_type, result_type, _ = _REQUESTS[method]
        try:
            request = request_type.model_validate({"method": method, "params": dict(params)})
            related = ServerMessageMetadata(related_request_id=self.ctx.request_id)
            answer = await self.ctx.session.send_request(request, result_type, metadata=related)
        except NoBackChannelError:
            raise RefusedError("the client can't be reached from here") from None
        except MCPError as error:
            raise RefusedError(f"the client refused ({error.error.code})") from error
        except ValidationError:
            raise RefusedError("the question, or the answer, makes no sense") from None
        dumped: dict[str, Any] = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
        return dumped

    async def _parked(self, method: str, params: dict[str, Any], name: str) -> dict[str, Any]:
        early = self._usable(method, self._given.pop(name, None))
        if early is not None:
            return early
        if not self._parks:
            raise RefusedError("this call can't wait for an answer of its client's")
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.asked[name] = (method, params, answer)
        self.stirred.set()
        try:
            return await answer
        finally:
            self.asked.pop(name, None)

    def answer(self, ctx: Ctx, given: Mapping[str, Any] | None) -> None:
        """The client is back: with answers to what was asked, some of it, or none."""
        self.ctx, self.span = ctx, _span()
        for name, value in (given or {}).items():
            waiting = self.asked.get(name)
            usable = None if waiting is None else self._usable(waiting[0], value)
            if waiting is not None and usable is not None and not waiting[2].done():
                waiting[2].set_result(usable)

    def refuse(self, why: str) -> None:
        """Nobody is going to answer what is asked."""
        for _, _, answer in list(self.asked.values()):
            if not answer.done():
                answer.set_exception(RefusedError(why))

    def questions(self) -> dict[str, Any]:
        """What is still to be answered, as `inputRequests`."""
        return {
            name: {"method": method, "params": params}
            for name, (method, params, future) in self.asked.items()
            if not future.done()
        }

    def _usable(self, method: str, value: Any) -> dict[str, Any] | None:
        """An answer, if it is one to this kind of question."""
        if hasattr(value, "model_dump"):
            value = value.model_dump(by_alias=True, mode="json", exclude_none=True)
        if not isinstance(value, Mapping):
            return None
        try:
            _REQUESTS[method][1].model_validate(dict(value), by_name=False)
        except ValidationError:
            return None
        return dict(value)

    # --- how far it is ----------------------------------------------------------------------------

    def report(self, report: Progress) -> None:
        """Take down what a tool says of its progress. Too much of it is dropped."""
        if not self._reports.full():
            self._reports.put_nowait(report)

    async def pass_on_reports(self) -> None:
        """Send them, in order, as long as the call runs."""
        while True:
            report = await self._reports.get()
            with suppress(Exception):  # a client that is gone takes no reports
                words = self._redactor.redact(report.message)[0] or None
                await self.ctx.session.report_progress(report.done, report.total, words)
            self._reports.task_done()

    async def reported(self) -> None:
        """Wait until all of them are out: none may come after the answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_REPORTING):
                await self._reports.join()


def _span() -> Span | None:
    """What the SDK has made of the request that is being handled."""
    return trace.get_current_span() if listening() else None


def lacks(refusal: RefusedError) -> None:
    """An upstream could not be given what it needs of the client in front of this call."""
    client = CLIENT.get()
    if isinstance(client, Fronted) and refusal.missing is not None:
        client.missing = refusal.missing
