"""Questions to the client in front of a call, and calls that wait for the answers.

An MCP 2025-11-25 client is sent a request and answers it. An MCP 2026-07-28 client can't be sent
any: its call is parked, the client gets the questions as a result, and calls again with the
answers. A parked call is held by this process, for the principal that made it, and at most until
its deadline.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar, get_args

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from opentelemetry import trace
from opentelemetry.trace import Span
from pydantic import ValidationError

from counterseal.contract.tool_context import ASKER, CLIENT, AgentClient, RefusedError
from counterseal.execution.attempt import Progress
from counterseal.observation import Observation, Redactor
from counterseal.proposal import Principal
from counterseal.telemetry import listening

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
_MAX_REPORTS: Final = 1000
_REPORT_SECONDS: Final = 5.0
"""Seconds that a client has to accept progress reports before its call is answered."""


def is_modern(ctx: Ctx) -> bool:
    """Return True if the client's revision does not let servers send requests."""
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def traceparent(ctx: Ctx) -> str | None:
    """Return the trace context that a request names."""
    value = (ctx.meta or {}).get("traceparent")
    return value if isinstance(value, str) else None


class CallClient(AgentClient):
    """The client in front of one call: an `AgentClient`, which tools can ask."""

    def __init__(
        self,
        ctx: Ctx,
        redactor: Redactor,
        answers: Mapping[str, Any] | None = None,
        *,
        log_level: Callable[[Ctx], str],
        can_park: bool = False,
    ) -> None:
        self.ctx = ctx
        self._log_level = log_level
        self.span: Span | None = _current_span()
        """The span of the request that the client waits for."""
        self.missing: str | None = None
        """A capability that was needed, and that the client lacks or may not be asked for."""
        self.open: dict[str, tuple[str, dict[str, Any], asyncio.Future[dict[str, Any]]]] = {}
        """Questions without an answer, by name: method, params, and the future answer."""
        self._can_park = can_park
        self._redactor = redactor
        self._answers = dict(answers or {})
        self._count = 0
        self._loop = asyncio.get_running_loop()

    @cached_property
    def _reports(self) -> asyncio.Queue[Progress]:
        """Progress reports on their way to the client. Few clients ask for them."""
        return asyncio.Queue(_MAX_REPORTS)

    @cached_property
    def question_added(self) -> asyncio.Event:
        """Set when there is a new question."""
        return asyncio.Event()

    @property
    def traceparent(self) -> str | None:
        return traceparent(self.ctx)

    @property
    def protocol_version(self) -> str:
        return self.ctx.protocol_version

    def can(self, capability: str) -> bool:
        capabilities = self.ctx.session.client_capabilities
        if capabilities is None:
            return False
        elicitation = capabilities.elicitation
        if capability == "elicitation.url":
            return elicitation is not None and elicitation.url is not None
        if capability == "elicitation.form":  # a client that names no mode means this one
            return elicitation is not None and (
                elicitation.form is not None or elicitation.url is None
            )
        return getattr(capabilities, capability, None) is not None

    # --- questions --------------------------------------------------------------------------------

    async def ask(
        self, method: str, params: Mapping[str, Any], *, name: str = ""
    ) -> dict[str, Any]:
        return await self._on_own_loop(self._ask(method, dict(params), name))

    async def _ask(self, method: str, params: dict[str, Any], name: str) -> dict[str, Any]:
        _, _, capability = _REQUESTS[method]
        if capability == "elicitation":
            capability = f"elicitation.{'url' if params.get('mode') == 'url' else 'form'}"
        if not self.can(capability):
            self.missing = capability
            raise RefusedError(f"the client does not support {capability}", missing=capability)
        params = self._redactor.redact(params)[0]
        if ASKER.get() and isinstance(params.get("message"), str):
            params["message"] = f"{ASKER.get()} asks: {params['message']}"
        self._count += 1
        if not name or name in self.open:
            name = f"{name or 'ask'}-{self._count}"
        if is_modern(self.ctx):
            return await self._wait_for_answer(method, params, name)
        return await self._send(method, params)

    async def _send(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a question as a request (2025-11-25)."""
        request_type, result_type, _ = _REQUESTS[method]
        try:
            request = request_type.model_validate({"method": method, "params": dict(params)})
            related = ServerMessageMetadata(related_request_id=self.ctx.request_id)
            answer = await self.ctx.session.send_request(request, result_type, metadata=related)
        except NoBackChannelError:
            raise RefusedError("the client can't be asked over this connection") from None
        except MCPError as error:
            raise RefusedError(f"the client refused to answer ({error.error.code})") from error
        except ValidationError:
            raise RefusedError("the question or its answer is invalid") from None
        dumped: dict[str, Any] = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
        return dumped

    async def _wait_for_answer(
        self, method: str, params: dict[str, Any], name: str
    ) -> dict[str, Any]:
        """Wait until the client has called again with the answer (2026-07-28)."""
        early = self._valid(method, self._answers.pop(name, None))
        if early is not None:
            return early
        if not self._can_park:
            raise RefusedError("this call can't wait for an answer of its client")
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.open[name] = (method, params, answer)
        self.question_added.set()
        try:
            return await answer
        finally:
            self.open.pop(name, None)

    def answer(self, ctx: Ctx, answers: Mapping[str, Any] | None) -> None:
        """Take the answers with which the client has called again: all, some, or none."""
        self.ctx, self.span = ctx, _current_span()
        for name, value in (answers or {}).items():
            question = self.open.get(name)
            valid = None if question is None else self._valid(question[0], value)
            if question is not None and valid is not None and not question[2].done():
                question[2].set_result(valid)

    def refuse(self, reason: str) -> None:
        """Let every open question fail."""
        for _, _, answer in list(self.open.values()):
            if not answer.done():
                answer.set_exception(RefusedError(reason))

    def questions(self) -> dict[str, Any]:
        """Return the open questions as `inputRequests`."""
        return {
            name: {"method": method, "params": params}
            for name, (method, params, answer) in self.open.items()
            if not answer.done()
        }

    def _valid(self, method: str, value: Any) -> dict[str, Any] | None:
        """Return an answer if it is valid for this kind of question."""
        if hasattr(value, "model_dump"):
            value = value.model_dump(by_alias=True, mode="json", exclude_none=True)
        if not isinstance(value, Mapping):
            return None
        try:
            _REQUESTS[method][1].model_validate(dict(value), by_name=False)
        except ValidationError:
            return None
        return dict(value)

    async def _on_own_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the client's event loop; a tool may run in a thread with another one."""
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    # --- log and progress -------------------------------------------------------------------------

    async def log(self, level: str, data: Any, logger: str | None = None) -> None:
        least: Any = self._log_level(self.ctx)
        if is_modern(self.ctx):
            least = (self.ctx.meta or {}).get(types.LOG_LEVEL_META_KEY)
        if least not in LEVELS or level not in LEVELS[LEVELS.index(least) :]:
            return
        redacted, _ = self._redactor.redact(data)
        params = types.LoggingMessageNotificationParams.model_validate(
            {"level": level, "data": redacted, "logger": logger}
        )
        notification = types.LoggingMessageNotification(params=params)
        related = self.ctx.request_id
        send = self.ctx.session.send_notification(notification, related_request_id=related)
        await self._on_own_loop(send)

    def report(self, report: Progress) -> None:
        """Take a progress report of a tool. Reports beyond a limit are dropped."""
        if not self._reports.full():
            self._reports.put_nowait(report)

    async def send_reports(self) -> None:
        """Send progress reports in order, until cancelled."""
        while True:
            report = await self._reports.get()
            with suppress(Exception):  # the client may have disconnected
                message = self._redactor.redact(report.message)[0] or None
                await self.ctx.session.report_progress(report.done, report.total, message)
            self._reports.task_done()

    async def flush_reports(self) -> None:
        """Wait until all reports are sent: none may follow the answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_REPORT_SECONDS):
                await self._reports.join()


def _current_span() -> Span | None:
    """Return the span that the SDK has made for the present request."""
    return trace.get_current_span() if listening() else None


def note_missing_capability(refusal: RefusedError) -> None:
    """Record on the present call's client which capability an upstream would have needed."""
    client = CLIENT.get()
    if isinstance(client, CallClient) and refusal.missing is not None:
        client.missing = refusal.missing


# --- parked calls ---------------------------------------------------------------------------------


class ParkedCall(NamedTuple):
    """A call that goes on while its client looks for answers."""

    client: CallClient
    principal: Principal
    task: asyncio.Future[Observation]

    async def next(self) -> Observation | dict[str, Any]:
        """Return the outcome of the call, or its open questions. Cancelling cancels the call."""
        question_added = self.client.question_added
        while not self.task.done():
            questions = self.client.questions()
            if questions:
                return questions
            question_added.clear()
            waking = asyncio.ensure_future(question_added.wait())
            both: set[asyncio.Future[Any]] = {self.task, waking}
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                self.task.cancel()
                raise
            finally:
                waking.cancel()
        return self.task.result()


class ParkedCalls:
    """The parked calls of this process. A call that is not taken again ends by its deadline."""

    def __init__(self, limit: int = 1000) -> None:
        self.limit = limit
        self._calls: dict[str, ParkedCall] = {}

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def full(self) -> bool:
        return len(self._calls) >= self.limit

    def park(self, call: ParkedCall) -> str:
        """Keep a call until its client calls again; return the name under which it is kept."""
        name = secrets.token_urlsafe(18)
        self._calls[name] = call
        call.task.add_done_callback(lambda _: self._calls.pop(name, None))
        return name

    def take(self, name: str, principal: Principal) -> ParkedCall | None:
        """Return a parked call of this principal, if it is here."""
        call = self._calls.get(name)
        if call is None or call.principal != principal:
            return None
        return self._calls.pop(name)

    async def close(self) -> None:
        """Cancel all parked calls, and wait until their outcome is written."""
        tasks = [call.task for call in self._calls.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
