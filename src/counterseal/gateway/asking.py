"""The client in front of a call, asked in the middle of it: for a person's answer, or a model's.

A client of 2025-11-25 is sent a request and answers it. One of 2026-07-28 can't be sent any: the
call is parked where it stands, the client is told what is asked, and calls again with the answers.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Mapping
from typing import Any, Final, get_args

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from counterseal.contract.client import CLIENT, RefusedError
from counterseal.observation import Observation, Redactor
from counterseal.proposal import Principal

__all__ = ["Fronted", "Park", "Parked", "connection_state", "is_modern", "lacks"]

Ctx = ServerRequestContext[Any, Any]

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
_LOG_LEVEL: Final = "log_level"


def is_modern(ctx: Ctx) -> bool:
    """Whether the client speaks the revision in which servers send no requests."""
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def connection_state(ctx: Ctx) -> dict[str, Any]:
    """What is kept of one connection, as long as it lasts."""
    return ctx.session._connection.state  # noqa: SLF001 - the SDK has no other way to it yet


class Fronted:
    """The client of one call. `contract.client.Client` says what tools may ask of it."""

    def __init__(
        self, ctx: Ctx, redactor: Redactor, given: Mapping[str, Any] | None = None
    ) -> None:
        self.ctx = ctx
        self.missing: str | None = None
        """A capability that was needed, and that it does not have or may not be asked for."""
        self.asked: dict[str, tuple[str, dict[str, Any], asyncio.Future[dict[str, Any]]]] = {}
        """What it has not answered yet: method, params, and where the answer goes."""
        self.stirred = asyncio.Event()
        """Set when there is something to ask."""
        self._redactor = redactor
        self._given = dict(given or {})
        self._count = 0

    @property
    def traceparent(self) -> str | None:
        found = (self.ctx.meta or {}).get("traceparent")
        return found if isinstance(found, str) else None

    def can(self, capability: str) -> bool:
        have = self.ctx.session.client_capabilities
        if have is None:
            return False
        if capability == "elicitation.url":
            return have.elicitation is not None and have.elicitation.url is not None
        return getattr(have, capability, None) is not None

    async def ask(
        self, method: str, params: Mapping[str, Any], *, name: str = ""
    ) -> dict[str, Any]:
        _, _, capability = _REQUESTS[method]
        if not self.can(capability):
            self.missing = capability
            raise RefusedError(f"the client does not do {capability}", missing=capability)
        self._count += 1
        name = name or f"ask-{self._count}"
        if is_modern(self.ctx):
            return await self._parked(method, dict(params), name)
        return await self._sent(method, params)

    async def log(self, level: str, data: Any, logger: str | None = None) -> None:
        if level not in self._wanted():
            return
        clean, _ = self._redactor.redact(data)
        told = types.LoggingMessageNotificationParams.model_validate(
            {"level": level, "data": clean, "logger": logger}
        )
        note = types.LoggingMessageNotification(params=told)
        await self.ctx.session.send_notification(note, related_request_id=self.ctx.request_id)

    def _wanted(self) -> tuple[str, ...]:
        """The levels that the client wants to hear of."""
        if is_modern(self.ctx):
            least = (self.ctx.meta or {}).get(types.LOG_LEVEL_META_KEY)
            return LEVELS[LEVELS.index(least) :] if least in LEVELS else ()
        least = connection_state(self.ctx).get(_LOG_LEVEL, LEVELS[0])
        return LEVELS[LEVELS.index(least) :]

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
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.asked[name] = (method, params, answer)
        self.stirred.set()
        try:
            return await answer
        finally:
            self.asked.pop(name, None)

    def answer(self, ctx: Ctx, given: Mapping[str, Any] | None) -> None:
        """The client is back: with answers to what was asked, some of it, or none."""
        self.ctx = ctx
        for name, value in (given or {}).items():
            waiting = self.asked.get(name)
            usable = None if waiting is None else self._usable(waiting[0], value)
            if waiting is not None and usable is not None and not waiting[2].done():
                waiting[2].set_result(usable)

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


def lacks(refusal: RefusedError) -> None:
    """An upstream could not be given what it needs of the client in front of this call."""
    client = CLIENT.get()
    if isinstance(client, Fronted) and refusal.missing is not None:
        client.missing = refusal.missing


class Parked:
    """A call that goes on while its client is away to find answers."""

    def __init__(
        self, client: Fronted, principal: Principal, work: Coroutine[Any, Any, Observation]
    ) -> None:
        self.client = client
        self.principal = principal
        self.task = asyncio.ensure_future(work)

    async def next(self) -> Observation | dict[str, Any]:
        """What became of the call, or what its client is asked. Leaves with the caller."""
        stirred = self.client.stirred
        while not self.task.done():
            questions = self.client.questions()
            if questions:
                return questions
            stirred.clear()
            waking = asyncio.ensure_future(stirred.wait())
            try:
                await asyncio.wait({self.task, waking}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                self.task.cancel()
                await asyncio.wait({self.task})
                raise
            finally:
                waking.cancel()
        return self.task.result()


class Park:
    """The parked calls of this process. What is not fetched ends by its own deadline."""

    def __init__(self, most: int = 1000) -> None:
        self._most = most
        self._calls: dict[str, Parked] = {}

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def full(self) -> bool:
        return len(self._calls) >= self._most

    def leave(self, call: Parked) -> str:
        """Keep a call until its client is back; under which name."""
        name = secrets.token_urlsafe(18)
        self._calls[name] = call
        call.task.add_done_callback(lambda _: self._calls.pop(name, None))
        return name

    def fetch(self, name: str, principal: Principal) -> Parked | None:
        """A call of this principal's, if it is here."""
        call = self._calls.get(name)
        if call is None or call.principal != principal:
            return None
        return self._calls.pop(name)
