"""`tools/call`: from a request of MCP to a proposal, and from its observation to a result.

Whatever a model got wrong comes back as the tool's error. Who calls is known before this begins;
nothing that a model wrote has a say in it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

import mcp_types as types
from anyio.lowlevel import checkpoint_if_cancelled
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan
from opentelemetry.util.types import AttributeValue

from counterseal.contract.model import Contract
from counterseal.contract.schemas import Validator
from counterseal.contract.tool_context import CLIENT, Context
from counterseal.errors import RegistryError
from counterseal.gateway.answering import result_of
from counterseal.gateway.asking import Fronted, is_modern
from counterseal.gateway.parking import Park, Parked
from counterseal.gateway.waiting import QUESTION, Waiting, needs_person
from counterseal.observation import Observation
from counterseal.proposal import Principal, Proposal
from counterseal.runtime import Runtime
from counterseal.telemetry import SPAN

__all__ = ["KEY", "OPERATION", "RAW", "RUN", "Calling", "run_of"]

Ctx = ServerRequestContext[Any, Any]

RUN: Final = "counterseal/run_id"
KEY: Final = "counterseal/idempotency_key"
OPERATION: Final = "counterseal/operation_id"
"""What a client may say of its call in `_meta`."""
RAW: Final[ContextVar[Any]] = ContextVar("counterseal_raw_arguments", default=None)
"""Arguments that are no object: the first gate's to refuse, not the protocol's."""


class Calling:
    """Carries out the calls of one server."""

    def __init__(
        self,
        runtime: Runtime,
        waiting: Waiting,
        asks: Callable[[Contract], bool],
        log_level: Callable[[Ctx], str],
    ) -> None:
        self._runtime = runtime
        self._waiting = waiting
        self._asks = asks
        self._log_level = log_level
        self._park = Park()
        self.under_way = 0
        """How many calls are being carried out."""
        self._ended = asyncio.Event()

    async def call(
        self, ctx: Ctx, params: types.CallToolRequestParams, who: Principal, session: str | None
    ) -> dict[str, Any]:
        """The result, or what the client has to answer before there is one."""
        raw = RAW.get()
        arguments = (params.arguments or {}) if raw is None else json.dumps(raw)
        given, state = params.input_responses, params.request_state
        return await self.call_tool(ctx, params.name, arguments, who, session, given, state)

    async def call_tool(
        self,
        ctx: Ctx,
        name: str,
        arguments: str | Mapping[str, Any],
        who: Principal,
        session: str | None,
        given: Mapping[str, Any] | None = None,
        state: str | None = None,
    ) -> dict[str, Any]:
        """The same for params that were read elsewhere."""
        proposal = Proposal(
            tool=name,
            arguments=arguments,
            run_id=run_of(ctx, who, session),
            key=_said(ctx, KEY),
            operation_id=_said(ctx, OPERATION),
            trace=_trace(ctx),
        )
        return await self.carry_out(ctx, proposal, who, given, state)

    async def carry_out(
        self,
        ctx: Ctx,
        proposal: Proposal,
        who: Principal,
        given: Mapping[str, Any] | None,
        state: str | None,
    ) -> dict[str, Any]:
        """The same for anything that was made a proposal of, in as many rounds as it takes."""
        self.under_way += 1
        try:
            return await self._round(ctx, proposal, who, given, _state(state))
        except asyncio.CancelledError:
            # The runtime has settled what was under way, and says with an exception of its own that
            # its caller is gone. The SDK knows its cancellations by the exception: have it here.
            await checkpoint_if_cancelled()
            raise
        finally:
            self.under_way -= 1
            self._ended.set()

    async def idle(self) -> None:
        """Wait until no call is being carried out."""
        while self.under_way:
            self._ended.clear()
            await self._ended.wait()

    async def close(self) -> None:
        """End the calls whose clients are away to find answers."""
        await self._park.close()

    # --- inside -----------------------------------------------------------------------------------

    async def _round(
        self,
        ctx: Ctx,
        proposal: Proposal,
        who: Principal,
        given: Mapping[str, Any] | None,
        told: Mapping[str, Any],
    ) -> dict[str, Any]:
        parked = self._park.fetch(told["call"], who) if "call" in told else None
        if parked is not None:
            parked.client.answer(ctx, given)
            return await self._next(parked, proposal, who)
        # What may have to be parked needs a task of its own.
        parks = is_modern(ctx) and self._may_ask(proposal.tool)
        client = Fronted(ctx, self._runtime.redactor, given, log_level=self._log_level, parks=parks)
        asked = told.get("approval")
        if asked is not None and _accepted(given):
            await self._waiting.decided(asked, who)
        work = self._submit(client, proposal, who)
        if parks:
            parked = Parked(client, who, self._runtime.begin(work))
            return await self._next(parked, proposal, who, asked)
        return await self._answered(client, await work, proposal, who, asked)

    def _may_ask(self, tool: str) -> bool:
        """Whether a call of a tool says beforehand that it may ask its client something."""
        line = self._runtime.registry.versions(tool)
        return any(
            self._asks(record.contract)
            if record.contract.mcp is not None
            else record.tool is not None and Context in record.tool.injected.values()
            for record in line
        )

    async def _next(
        self, parked: Parked, proposal: Proposal, who: Principal, asked: str | None = None
    ) -> dict[str, Any]:
        seen = await parked.next()
        while not isinstance(seen, Observation) and self._park.full:
            parked.client.refuse("too many calls wait for answers of their clients")
            seen = await parked.next()
        if isinstance(seen, Observation):
            return await self._answered(parked.client, seen, proposal, who, asked)
        await parked.client.reported()
        return _input_required(seen, {"call": self._park.leave(parked)})

    async def _submit(self, client: Fronted, proposal: Proposal, who: Principal) -> Observation:
        """Carry it out. Who is told how far it is, is told before the end."""
        token = CLIENT.set(client)
        span = SPAN.set(None if client.span is None else _LastSpan(client))
        wait = self._waiting.seconds
        try:
            if "progress_token" not in (client.ctx.meta or {}):
                return await self._runtime.submit(proposal, who, wait=wait)
            telling = asyncio.ensure_future(client.pass_on_reports())
            try:
                seen = await self._runtime.submit(proposal, who, wait=wait, progress=client.report)
                await client.reported()
                return seen
            finally:
                telling.cancel()
        finally:
            CLIENT.reset(token)
            SPAN.reset(span)

    async def _answered(
        self,
        client: Fronted,
        seen: Observation,
        proposal: Proposal,
        who: Principal,
        asked: str | None = None,
    ) -> dict[str, Any]:
        missing = None if seen.ok or not is_modern(client.ctx) else client.missing
        if missing is not None and not client.can(missing):
            raise _lacking(missing)
        if needs_person(seen) and asked is None and client.can("elicitation"):
            if is_modern(client.ctx):
                question = await self._waiting.question(client, seen, who)
                requests = {QUESTION: {"method": "elicitation/create", "params": question}}
                return _input_required(requests, {"approval": seen.approval_id})
            if await self._waiting.pointed_out(client, seen, who):
                seen = await self._submit(client, proposal, who)
        contract, output = self._held(seen)
        link = self._waiting.link(seen) if needs_person(seen) else None
        return result_of(seen, contract, output, link)

    def _held(self, seen: Observation) -> tuple[Contract | None, Validator | None]:
        try:
            record = self._runtime.registry.get(seen.tool, seen.version)
        except RegistryError:
            return None, None
        return record.contract, self._runtime.compiled_for(record).output


def run_of(ctx: Ctx, who: Principal, session: str | None) -> str | None:
    """The run that a request names; else its session's; None where it has neither."""
    named = _said(ctx, RUN)
    if named is not None:
        return named
    if session is None:
        return None
    # Two principals never share a run by chance, whatever their sessions are called.
    text = "\0".join((session, who.tenant, who.agent, who.user or ""))
    return f"run_mcp_{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _said(ctx: Ctx, name: str) -> str | None:
    value = (ctx.meta or {}).get(name)
    if value is not None and not isinstance(value, str):
        raise MCPError(code=types.INVALID_PARAMS, message=f"_meta {name}: takes a text")
    return value


class _LastSpan(NonRecordingSpan):
    """The span of the request that a call is answered with: its last, where it takes several."""

    def __init__(self, client: Fronted) -> None:
        super().__init__(INVALID_SPAN_CONTEXT)
        self._client = client

    def is_recording(self) -> bool:
        return self._client.span is not None and self._client.span.is_recording()

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        if self._client.span is not None:
            self._client.span.set_attributes(attributes)


def _trace(ctx: Ctx) -> str | None:
    value = (ctx.meta or {}).get("traceparent")
    return value if isinstance(value, str) else None


def _state(sealed: str | None) -> dict[str, Any]:
    """What this server said of the round before. It comes here opened, and was sealed by us."""
    if sealed is None:
        return {}
    try:
        found = json.loads(sealed)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _accepted(given: Mapping[str, Any] | None) -> bool:
    answer = (given or {}).get(QUESTION)
    return getattr(answer, "action", None) == "accept"


def _input_required(requests: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "resultType": "input_required",
        "inputRequests": dict(requests),
        "requestState": json.dumps(state),
    }


def _lacking(capability: str) -> MCPError:
    """What 2026-07-28 says to a client that has not declared what a call needs of it."""
    whole, _, part = capability.partition(".")
    return MCPError(
        code=types.MISSING_REQUIRED_CLIENT_CAPABILITY,
        message=f"this call needs a client that does {capability}",
        data={"requiredCapabilities": {whole: {part: {}} if part else {}}},
    )
