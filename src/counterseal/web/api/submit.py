"""`POST /v1/calls`: from a request to a proposal, and from its observation to a response.

The `Idempotency-Key` is the proposal's key. Without one, the contract's business key is used, or
one that is derived from the run and the arguments. Only a tool whose same call may be meant twice
needs a key for each; a request without one is refused before anything is done.

A refused call is a problem that carries the observation. A call that needs approval is accepted
with 202, and the response says where its approval is.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Mapping
from time import monotonic
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, ValidationError
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from counterseal.canonical import json_default
from counterseal.codes import Code
from counterseal.gateway.calls import awaits_approval
from counterseal.observation import Observation
from counterseal.observation.render import sentence_for
from counterseal.operations.approver import ApprovalError
from counterseal.proposal import Principal, Proposal
from counterseal.runtime import Runtime
from counterseal.views.base import JsonObject
from counterseal.views.call_page import FieldProblem, without_decisions
from counterseal.web.api.middleware import (
    AgentCaller,
    ApiCaller,
    context_of,
    malformed_json,
    strict_json,
)
from counterseal.web.api.problems import (
    MEDIA_TYPE,
    WHOLE,
    RequestBody,
    RequestProblemError,
    invalid_request,
    problem_body,
    refuse_unknown_parameters,
)

CALLS: Final = "/v1/calls"
MAX_WAIT: Final = 30.0
"""Seconds that a request waits at most for an approval, or for another call with the same key."""
_QUOTED: Final = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_BARE: Final = re.compile(r"[!#-+\--~]+")
"""Printable ASCII without spaces, commas and quotes."""
_WAIT: Final = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?(\d{1,6})\"?\s*(?=$|[,;])")
_MAX_KEY: Final = 255
_MAX_NAME: Final = 512
_Id = Annotated[str, Field(min_length=1, max_length=_MAX_NAME)]


class Submission(RequestBody):
    """A call that an agent proposes."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"tool": "look_up_case", "arguments": {"case_id": "case_7"}, "run_id": "run_1"}
            ]
        }
    )

    tool: str = Field(max_length=_MAX_NAME, description="The contract's name.")
    arguments: JsonObject | str = Field(
        description="As an object, or as the text that a model wrote."
    )
    run_id: _Id | None = Field(
        None, description="Left out: the caller's own, until an hour has passed without a call."
    )
    version: _Id | None = Field(None, description="Left out: the run's, or the one rolled out.")
    operation_id: _Id | None = Field(
        None, description="Tells a call that is meant again from one that is repeated."
    )
    call_id: _Id | None = Field(
        None, description="The caller's own id of the call. It is kept, and need not be unique."
    )
    workflow_id: _Id | None = Field(
        None, description="The workflow that the call belongs to; part of a derived key."
    )
    conversation_id: _Id | None = Field(None, description="The conversation it belongs to.")
    session_id: _Id | None = Field(None, description="The session it belongs to.")
    expected_version: str | Annotated[int, WHOLE] | None = Field(
        None, description="The version of the resource that the call is based on."
    )
    tokens: Annotated[int, Field(ge=0, le=10**9), WHOLE] | None = Field(
        None, description="Tokens that the model used for this call."
    )
    configurable: JsonObject | None = Field(
        None, description="Values for the contract's config params."
    )


class Submissions:
    """Carries out the calls that arrive at the API."""

    def __init__(self, runtime: Runtime, public: str) -> None:
        self._runtime = runtime
        self._public = public
        self.running = 0
        """How many calls are being carried out."""
        self._ended = asyncio.Event()

    async def endpoint(self, request: Request) -> Response:
        """Answer `POST /v1/calls`. Raises RequestProblemError for a request that is no call."""
        refuse_unknown_parameters(request.query_params, ())
        context = context_of(request.scope)
        principal = _principal(context.caller)
        proposal = _proposal(body_object(await request.body()), context.headers)
        self._require_key(proposal, principal)
        wait = _preferred_wait(context.headers.get("prefer"))
        self.running += 1
        try:
            if wait:
                observation = await self._submit_and_wait(proposal, principal, wait)
            else:
                observation = await self._runtime.submit(proposal, principal)
        finally:
            self.running -= 1
            if not self.running:
                self._ended.set()
        return self._response(observation, context.request_id, wait)

    async def idle(self) -> None:
        """Wait until no call is being carried out."""
        while self.running:
            self._ended.clear()
            await self._ended.wait()

    async def _submit_and_wait(
        self, proposal: Proposal, principal: Principal, wait: float
    ) -> Observation:
        """Submit a call, and again after its approval, if that is decided in time."""
        until = monotonic() + wait
        observation = await self._runtime.submit(proposal, principal, wait=wait)
        left = until - monotonic()
        if left <= 0 or not awaits_approval(observation):
            return observation
        approval_id = observation.approval_id or ""
        try:
            packet = await self._runtime.approvals.wait(principal.tenant, approval_id, left)
        except ApprovalError:
            return observation
        if packet.status == "waiting":
            return observation
        return await self._runtime.submit(proposal, principal, wait=max(0.0, until - monotonic()))

    def _require_key(self, proposal: Proposal, principal: Principal) -> None:
        """Refuse a call without a key if its tool is repeatable.

        Only callers who may use the tool are told so.
        """
        if proposal.key is not None or proposal.operation_id is not None:
            return
        registry = self._runtime.registry
        repeatable = any(
            record.contract.repeatable and proposal.version in (None, record.version)
            for record in registry.versions(proposal.tool)
        )
        if repeatable and registry.grants_of(principal.agent, proposal.tool):
            raise RequestProblemError(
                "idempotency-key-required",
                "This tool is repeatable, so each call needs a key. "
                "Send an Idempotency-Key, or an operation_id.",
                param="/idempotency-key",
                where="header",
            )

    def _response(self, observation: Observation, request_id: str, wait: float | None) -> Response:
        headers = {"Idempotent-Replayed": "true"} if observation.idempotency_hit else {}
        if wait is not None:
            headers["Preference-Applied"] = f"wait={wait:.0f}"
        status, media = observation.response.status, "application/json"
        if awaits_approval(observation):
            status, headers["Location"] = 202, f"/v1/approvals/{observation.approval_id}"
        shown = observation_json(observation.record(()), observation.for_model(), self._public)
        if observation.ok or status == 202:
            body = to_json(shown, inf_nan_mode="null", fallback=json_default)
        else:
            if observation.retry_after is not None:
                headers["Retry-After"] = str(max(1, math.ceil(observation.retry_after)))
            status, media = status if 400 <= status < 600 else 500, MEDIA_TYPE
            body = _problem(observation, status, shown, request_id)
        return Response(body, status, headers=headers, media_type=media)


def observation_json(record: Mapping[str, Any], text: str | None, public: str) -> dict[str, Any]:
    """Return an observation for an agent: without the decisions, and with `text` for the model."""
    approval_id = record["approval_id"]
    url = None if approval_id is None else f"{public}/approvals/{approval_id}"
    return {**without_decisions(record), "approval_url": url, "text": text}


def _problem(
    observation: Observation, status: int, shown: Mapping[str, Any], request_id: str
) -> bytes:
    errors = [
        FieldProblem(
            param=f"/arguments{error.field}" if error.field else None,
            where="body" if error.field else None,
            message=error.message,
            code=error.code,
        )
        for error in observation.errors
    ]
    first = next((error.param for error in errors if error.param is not None), None)
    if first is None and observation.code is Code.SYNTACTIC_PARSE_FAIL:
        first = "/arguments"
    response = observation.response
    return problem_body(
        code=observation.code.value,
        title="The call was not carried out" if response.status < 500 else "The call failed",
        status=status,
        detail=observation.errors[0].message
        if observation.errors
        else sentence_for(observation.code),
        param=first,
        where=None if first is None else "body",
        repairable=response.repairable,
        retryable=response.retryable,
        next_action=observation.next_action,
        request_id=request_id,
        errors=errors,
        observation=shown,
    )


def _principal(caller: ApiCaller | None) -> Principal:
    if isinstance(caller, AgentCaller):
        return caller.principal
    detail = "Only agents make calls, with an API key or a token. People decide on them."
    raise RequestProblemError("agents-only", detail)


def _proposal(body: dict[str, Any], headers: Mapping[str, str]) -> Proposal:
    try:
        submission = Submission.model_validate(body, strict=True)
    except ValidationError as error:
        raise invalid_request(error.errors(include_url=False), "body") from None
    return Proposal(
        tool=submission.tool,
        arguments=submission.arguments,
        run_id=submission.run_id,
        version=submission.version,
        key=_idempotency_key(headers.get("idempotency-key")),
        operation_id=submission.operation_id,
        call_id=submission.call_id,
        workflow_id=submission.workflow_id,
        conversation_id=submission.conversation_id,
        session_id=submission.session_id,
        trace=headers.get("traceparent"),
        expected_version=submission.expected_version,
        tokens=submission.tokens,
        configurable=submission.configurable,
    )


def _idempotency_key(header: str | None) -> str | None:
    """Return the key: a structured field's string in quotes, or bare, as most clients send it."""
    if header is None:
        return None
    text = header.strip()
    quoted = _QUOTED.fullmatch(text)
    if quoted is not None:
        key = re.sub(r"\\(.)", r"\1", quoted[1])
    else:
        key = text if _BARE.fullmatch(text) else ""
    if not key.strip() or len(key) > _MAX_KEY:
        detail = f"Idempotency-Key must be 1 to {_MAX_KEY} characters of ASCII, in quotes."
        raise RequestProblemError(
            "idempotency-key-malformed", detail, param="/idempotency-key", where="header"
        )
    return key


def _preferred_wait(prefer: str | None) -> float | None:
    """Return how many seconds the caller prefers to wait, up to the maximum; None: not given."""
    match = _WAIT.search(prefer.lower()) if prefer else None
    return None if match is None else min(float(match[1]), MAX_WAIT)


# --- the body -------------------------------------------------------------------------------------

_BLANK: Final = " \t\n\r"
_DECODER: Final = json.JSONDecoder()


def body_object(body: bytes) -> dict[str, Any]:
    """Return the object that a call's body is, read as strictly as a model's arguments.

    If only the arguments are invalid (for example, with a key twice), they are returned as text:
    the parse gate refuses and records them. Raises RequestProblemError.
    """
    try:
        value = strict_json(body)
    except ValueError as error:
        value = _with_arguments_as_text(body, error)
    if not isinstance(value, dict):
        detail = "The body must be one JSON object."
        raise RequestProblemError("malformed-json", detail, param="", where="body")
    return value


def _with_arguments_as_text(body: bytes, error: ValueError) -> dict[str, Any]:
    try:
        members = _members(body.decode())
        arguments = members.pop("arguments")
        value = {name: strict_json(text.encode()) for name, text in members.items()}
    except (ValueError, LookupError, RecursionError):
        raise malformed_json(error) from None
    return {**value, "arguments": arguments}


def _members(text: str) -> dict[str, str]:
    """Return the members of an object, each as its text. Raises ValueError or IndexError."""
    members: dict[str, str] = {}
    place = _expect(text, 0, "{")
    while text[place] != "}":
        name, place = _DECODER.raw_decode(text, _skip(text, place))
        start = _skip(text, _expect(text, _skip(text, place), ":"))
        _, end = _DECODER.raw_decode(text, start)
        if not isinstance(name, str) or name in members:
            raise ValueError(name)
        members[name] = text[start:end]
        place = _skip(text, end)
        if text[place] != "}":
            place = _skip(text, _expect(text, place, ","))
            if text[place] == "}":
                raise ValueError(place)
    if _skip(text, place + 1) != len(text):
        raise ValueError(place)
    return members


def _expect(text: str, place: int, sign: str) -> int:
    """Return the place after a sign and the blanks after it."""
    place = _skip(text, place)
    if text[place] != sign:
        raise ValueError(place)
    return _skip(text, place + 1)


def _skip(text: str, place: int) -> int:
    while place < len(text) and text[place] in _BLANK:
        place += 1
    return place
