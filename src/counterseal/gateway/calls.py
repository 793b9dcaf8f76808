"""`tools/call`: from an MCP request to a proposal, and from its observation to a result.

A refused call is an error of the tool: the model reads what is wrong and what to do next, and a
program finds the same under `_meta`. Only a malformed `_meta`, or a client that lacks a needed
capability, is an error of the protocol. The principal is known before this begins; nothing that a
model wrote can change it.

A call that a person has to approve waits for a while. The client is shown a link to the request for
approval; its answer means "go on", never "approved". The approver signs in at the link, or uses the
command line. The same call made later finds the decision, and is executed once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final, cast

import mcp_types as types
from anyio.lowlevel import checkpoint_if_cancelled
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan
from opentelemetry.util.types import AttributeValue

from counterseal.call.handover import CARRY_OUT
from counterseal.canonical import thaw
from counterseal.codes import RESPONSES, Code
from counterseal.contract.model import Contract
from counterseal.contract.outputs import is_blocks
from counterseal.contract.schemas import Validator
from counterseal.contract.tool_context import CLIENT, Context, RefusedError
from counterseal.errors import RegistryError
from counterseal.gates.parse import CALLER_IDS
from counterseal.gateway.questions import (
    CallClient,
    ParkedCall,
    ParkedCalls,
    is_modern,
    traceparent,
)
from counterseal.observation import Observation
from counterseal.observation.envelope import fence
from counterseal.operations.approver import ApprovalError
from counterseal.proposal import Principal, Proposal
from counterseal.runtime import Runtime
from counterseal.telemetry import SPAN

Ctx = ServerRequestContext[Any, Any]

RUN: Final = "counterseal/run_id"
KEY: Final = "counterseal/idempotency_key"
OPERATION: Final = "counterseal/operation_id"
TOKENS: Final = "counterseal/tokens"
"""Keys of `_meta` with which a client can describe its call. The caller's own ids have further
keys: `counterseal/NAME` for each of `CALLER_IDS`."""
RAW_ARGUMENTS: Final[ContextVar[Any]] = ContextVar("counterseal_raw_arguments", default=None)
"""Arguments that are no object: the first gate refuses them, not the protocol."""
_QUESTION: Final = "approval"
"""The name of the question that points the client to a request for approval."""
_AWAITING_DECISION: Final = RESPONSES[Code.CONFIRMATION_MISSING].next_action
"""The next action of a model while an approval waits. After a rejection it is another one."""


class RunningCalls:
    """Counts the calls that are being carried out, each within `with`."""

    def __init__(self) -> None:
        self.count = 0
        self._ended = asyncio.Event()

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *exc: object) -> None:
        self.count -= 1
        self._ended.set()

    async def idle(self) -> None:
        """Wait until there is none."""
        while self.count:
            self._ended.clear()
            await self._ended.wait()


class ToolCalls:
    """Carries out the calls of one MCP server."""

    def __init__(
        self,
        runtime: Runtime,
        approvals: ApprovalWait,
        relays_questions: Callable[[Contract], bool],
        log_level: Callable[[Ctx], str],
    ) -> None:
        self._runtime = runtime
        self._approvals = approvals
        self._relays_questions = relays_questions
        self._log_level = log_level
        self._parked = ParkedCalls()
        self.running = RunningCalls()

    async def call(
        self, ctx: Ctx, params: types.CallToolRequestParams, principal: Principal, run: str | None
    ) -> dict[str, Any]:
        """Return the result of a call, or what the client has to answer first."""
        raw = RAW_ARGUMENTS.get()
        own: dict[str, Any] = {name: _meta_text(ctx, f"counterseal/{name}") for name in CALLER_IDS}
        proposal = Proposal(
            tool=params.name,
            arguments=(params.arguments or {}) if raw is None else json.dumps(raw),
            run_id=run,
            key=_meta_text(ctx, KEY),
            operation_id=_meta_text(ctx, OPERATION),
            tokens=cast("int | None", (ctx.meta or {}).get(TOKENS)),
            **own,
            trace=traceparent(ctx),
        )
        return await self.carry_out(ctx, params, proposal, principal)

    async def carry_out(
        self,
        ctx: Ctx,
        params: types.InputResponseRequestParams,
        proposal: Proposal,
        principal: Principal,
    ) -> dict[str, Any]:
        """Carry out a proposal, or one round of it if its client has to answer questions."""
        with self.running:
            try:
                # The state of the round before, which this server had sealed and the SDK opened.
                state = {} if params.request_state is None else json.loads(params.request_state)
                return await self._round(ctx, proposal, principal, params.input_responses, state)
            except asyncio.CancelledError:
                # The runtime has settled the call and raised a cancellation of its own. The SDK
                # recognizes its cancellations by the exception, so raise the SDK's if there is one.
                await checkpoint_if_cancelled()
                raise

    async def close(self) -> None:
        """Cancel parked calls."""
        await self._parked.close()

    # --- rounds -----------------------------------------------------------------------------------

    async def _round(
        self,
        ctx: Ctx,
        proposal: Proposal,
        principal: Principal,
        answers: Mapping[str, Any] | None,
        state: Mapping[str, Any],
    ) -> dict[str, Any]:
        parked = self._parked.take(state["call"], principal) if "call" in state else None
        if parked is not None:
            parked.client.answer(ctx, answers)
            return await self._next(parked, proposal, principal)
        # A tool declares whether it may ask its client something.
        can_park = is_modern(ctx) and any(
            self._relays_questions(record.contract)
            if record.contract.mcp is not None
            else record.tool is not None and Context in record.tool.injected.values()
            for record in self._runtime.registry.versions(proposal.tool)
        )
        client = CallClient(
            ctx, self._runtime.redactor, answers, log_level=self._log_level, can_park=can_park
        )
        approval_id, answer = state.get("approval"), (answers or {}).get(_QUESTION)
        if approval_id is not None and getattr(answer, "action", None) == "accept":
            await self._approvals.wait_for_decision(approval_id, principal)
        work = self._submit(client, proposal, principal)
        if can_park:  # a call that may be parked needs a task of its own
            parked = ParkedCall(client, principal, self._runtime.begin(work))
            return await self._next(parked, proposal, principal, approval_id)
        return await self._result(client, await work, proposal, principal, approval_id)

    async def _next(
        self,
        parked: ParkedCall,
        proposal: Proposal,
        principal: Principal,
        approval_id: str | None = None,
    ) -> dict[str, Any]:
        """Return the result of a call, or park it and return its questions."""
        outcome = await parked.next()
        while not isinstance(outcome, Observation) and self._parked.full:
            parked.client.refuse("too many calls wait for answers of their clients")
            outcome = await parked.next()
        if isinstance(outcome, Observation):
            return await self._result(parked.client, outcome, proposal, principal, approval_id)
        await parked.client.flush_reports()
        return _input_required(outcome, {"call": self._parked.park(parked)})

    async def _submit(
        self, client: CallClient, proposal: Proposal, principal: Principal
    ) -> Observation:
        """Submit a proposal. All its progress reports are sent before it returns."""
        token = CLIENT.set(client)
        span = SPAN.set(None if client.span is None else _LatestSpan(client))
        wait = self._approvals.seconds
        try:
            if "progress_token" not in (client.ctx.meta or {}):
                return await self._runtime.submit(proposal, principal, wait=wait)
            sending = asyncio.ensure_future(client.send_reports())
            try:
                observation = await self._runtime.submit(
                    proposal, principal, wait=wait, progress=client.report
                )
                await client.flush_reports()
                return observation
            finally:
                sending.cancel()
        finally:
            CLIENT.reset(token)
            SPAN.reset(span)

    async def _result(
        self,
        client: CallClient,
        observation: Observation,
        proposal: Proposal,
        principal: Principal,
        approval_id: str | None = None,
    ) -> dict[str, Any]:
        missing = None if observation.ok or not is_modern(client.ctx) else client.missing
        if missing is not None and not client.can(missing):
            name, _, part = missing.partition(".")
            raise MCPError(
                code=types.MISSING_REQUIRED_CLIENT_CAPABILITY,
                message=f"this call needs a client that supports {missing}",
                data={"requiredCapabilities": {name: {part: {}} if part else {}}},
            )
        waits = awaits_approval(observation)
        if waits and approval_id is None and client.can("elicitation"):
            if is_modern(client.ctx):
                question = await self._approvals.question(client, observation, principal)
                requests = {_QUESTION: {"method": "elicitation/create", "params": question}}
                return _input_required(requests, {"approval": observation.approval_id})
            if await self._approvals.show_question(client, observation, principal):
                observation = await self._submit(client, proposal, principal)
        link = self._approvals.link(observation) if awaits_approval(observation) else None
        try:
            record = self._runtime.registry.get(observation.tool, observation.version)
        except RegistryError:
            return tool_result(observation, None, None, link)
        output = self._runtime.compiled_for(record).output
        return tool_result(observation, record.contract, output, link)


# --- the request ----------------------------------------------------------------------------------


def run_of(ctx: Ctx, principal: Principal, session: str | None) -> str | None:
    """Return the run that a request names, else the run of its session, else None."""
    named = _meta_text(ctx, RUN)
    if named is not None:
        return named
    if session is None:
        return None
    # The principal is part of the hash, so that two principals never share a run by chance.
    text = "\0".join((session, principal.tenant, principal.agent, principal.user or ""))
    return f"run_mcp_{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _meta_text(ctx: Ctx, name: str) -> str | None:
    value = (ctx.meta or {}).get(name)
    if value is not None and not isinstance(value, str):
        kind = type(value).__name__
        raise MCPError(
            code=types.INVALID_PARAMS, message=f"_meta {name}: expected a string, got {kind}"
        )
    return value


class _LatestSpan(NonRecordingSpan):
    """The span of the request that a call is answered with: the last of several rounds."""

    def __init__(self, client: CallClient) -> None:
        super().__init__(INVALID_SPAN_CONTEXT)
        self._client = client

    def is_recording(self) -> bool:
        return self._client.span is not None and self._client.span.is_recording()

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        if self._client.span is not None:
            self._client.span.set_attributes(attributes)


# --- the answer -----------------------------------------------------------------------------------


def _input_required(requests: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "resultType": "input_required",
        "inputRequests": dict(requests),
        "requestState": json.dumps(state),
    }


def awaits_approval(observation: Observation) -> bool:
    """Return True if a person has to decide on a call, and has not yet."""
    return observation.next_action == _AWAITING_DECISION and observation.approval_id is not None


# --- approvals ------------------------------------------------------------------------------------


class ApprovalWait:
    """Shows clients where a person decides on their calls, and waits for the decisions."""

    def __init__(self, runtime: Runtime, *, console: str, seconds: float) -> None:
        self._runtime = runtime
        self._console = console.rstrip("/")
        self.seconds = seconds
        """How long a call waits for a person, or for another call with its key."""

    def link(self, observation: Observation) -> dict[str, Any]:
        """Return the id of the approval that a call needs, and the page where to decide."""
        url = f"{self._console}/approvals/{observation.approval_id}"
        return {"id": observation.approval_id, "url": url}

    async def question(
        self, client: CallClient, observation: Observation, principal: Principal
    ) -> dict[str, Any]:
        """Return what the client is to show, as the params of `elicitation/create`."""
        url = self.link(observation)["url"]
        try:
            packet = await self._runtime.approvals.get(
                principal.tenant, observation.approval_id or ""
            )
            message = f"A person has to approve this: {packet.consequence}"
        except ApprovalError:
            message = f"A person has to approve this call of {observation.tool}."
        if client.can("elicitation.url"):
            return {"mode": "url", "message": message, "url": url}
        text = f"{message}\nDecide at {url}, then go on here."
        empty_form = {"type": "object", "properties": {}}
        return {"mode": "form", "message": text, "requestedSchema": empty_form}

    async def show_question(
        self, client: CallClient, observation: Observation, principal: Principal
    ) -> bool:
        """Show the question to an MCP 2025-11-25 client. Return True if a decision may be there."""
        params = dict(await self.question(client, observation, principal))
        if params["mode"] == "url":
            params["elicitationId"] = observation.approval_id
        else:
            del params["mode"]  # clients that know no modes expect a form
        asking = asyncio.ensure_future(client.ask("elicitation/create", params, name=_QUESTION))
        deciding = asyncio.ensure_future(self.wait_for_decision(observation.approval_id, principal))
        try:
            await asyncio.wait({asking, deciding}, return_when=asyncio.FIRST_COMPLETED)
            if deciding.done():
                return await deciding
            with suppress(RefusedError):  # a refusal to answer means nothing
                if (await asking).get("action") == "accept":
                    return await deciding
            return await self.wait_for_decision(observation.approval_id, principal, 0.0)
        finally:
            asking.cancel()
            deciding.cancel()

    async def wait_for_decision(
        self, approval_id: str | None, principal: Principal, seconds: float | None = None
    ) -> bool:
        """Wait for a decision. Return False if there is none after `seconds`."""
        limit = self.seconds if seconds is None else seconds
        try:
            packet = await self._runtime.approvals.wait(principal.tenant, approval_id or "", limit)
        except ApprovalError:
            return True  # submitting the call again reports what is wrong with the approval
        return packet.status != "waiting"


# --- results --------------------------------------------------------------------------------------


FACTS: Final = "counterseal/observation"
"""The key in a result's `_meta` under which a program finds the facts of its call."""
COMPLETE: Final = {"resultType": "complete"}
"""Part of every result in MCP 2026-07-28; the SDK removes it for older clients."""


def tool_result(
    observation: Observation,
    contract: Contract | None,
    output: Validator | None,
    approval: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the result of `tools/call` as JSON. `approval` says where a person can decide."""
    facts = _facts(observation, approval)
    result = {**COMPLETE, "isError": not observation.ok, "_meta": {FACTS: facts}}
    if contract is not None and observation.ok and is_blocks(contract.affordance.output_schema):
        structured = (observation.data or {}).get("structuredContent")
        more = {} if structured is None else {"structuredContent": thaw(structured)}
        return {**result, "content": _blocks(observation), **more}
    text = observation.for_model()
    if approval is not None:
        url = approval["url"]
        text = f"{text}\nA person decides at {url}; make the same call again after that."
    result["content"] = [{"type": "text", "text": text}]
    data = thaw(observation.data) if observation.ok else facts
    published = publishes_output(contract)
    # Clients check results against the published schema, errors included.
    if data is not None and (not published or (output is not None and output.is_valid(data))):
        result["structuredContent"] = data
    elif observation.ok and published:
        # The output was shortened or redacted, and does not fit its published schema any more. A
        # client would refuse such a result; as an error, the model still reads what there is.
        result["isError"] = True
    return result


def publishes_output(contract: Contract | None) -> bool:
    """Return True if clients know the output schema, and check results against it."""
    if contract is None:
        return False
    schema = contract.affordance.output_schema
    return schema.get("type") == "object" and len(schema) > 1 and not is_blocks(schema)


def _facts(observation: Observation, approval: Mapping[str, Any] | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "call_id": observation.call_id,
        "trace_id": observation.trace_id,
        "code": observation.code.value,
        "replayed": observation.idempotency_hit,
    }
    if observation.next_action == CARRY_OUT:
        facts["handed_over"] = thaw(observation.data)
    if observation.caller_call_id is not None:
        facts["caller_call_id"] = observation.caller_call_id
    if observation.ok:
        return facts
    facts |= {
        "response": {**observation.response.vector(), "next_action": observation.next_action},
        "path": observation.path.value if observation.path else None,
        "errors": [error.record() for error in observation.errors],
    }
    if observation.retry_after is not None:
        facts["retry_after"] = observation.retry_after
    if observation.approval_id is not None:
        facts["approval"] = dict(approval) if approval else {"id": observation.approval_id}
    return facts


def _blocks(observation: Observation) -> list[dict[str, Any]]:
    """Return content blocks: all texts in one, marked as data, and then the other blocks."""
    content = (observation.data or {}).get("content", ())
    blocks = [block for block in content if isinstance(block, Mapping)]
    lines = [observation._replace(data=None).for_model()]
    others = []
    for block in blocks:
        text = block.get("text")
        if block.get("type") == "text" and isinstance(text, str):
            lines.extend(fence(text, observation.call_id, observation.trust))
        elif block.get("type") in ("image", "audio", "resource_link", "resource"):
            others.append(thaw(block))
            resource = others[-1].get("resource")
            # The model reads the text of an embedded resource, too.
            if isinstance(resource, dict) and isinstance(resource.get("text"), str):
                marked = fence(resource["text"], observation.call_id, observation.trust)
                resource["text"] = "\n".join(marked)
    structured = (observation.data or {}).get("structuredContent")
    if structured is not None and not any("text" in block for block in blocks):
        text = json.dumps(thaw(structured), ensure_ascii=False)
        lines.extend(fence(text, observation.call_id, observation.trust))
    elif not blocks and observation.data:  # too large to be shown: a summary stands for it
        lines = [observation.for_model()]
    return [{"type": "text", "text": "\n".join(lines)}, *others]
