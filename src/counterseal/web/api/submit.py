"""`POST /v1/calls`: from a request to a proposal, and from its observation to a response.

The `Idempotency-Key` is the proposal's key. Without one, the contract's business key is used, or
one that is derived from the run and the arguments. Only a tool whose same call may be meant twice
needs a key for each; a request without one is refused before anything is done.

A refused call is a problem that carries the observation. A call that needs approval is accepted
with 202, and the response says where its approval is; likewise a call that the client carries out,
and where it reports the outcome.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, ValidationError
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from counterseal.call.handover import CARRY_OUT
from counterseal.canonical import json_default
from counterseal.codes import Code
from counterseal.gateway.calls import RunningCalls, awaits_approval
from counterseal.observation import Observation
from counterseal.observation.envelope import sentence_for
from counterseal.operations.approver import ApprovalError
from counterseal.proposal import Principal, Proposal
from counterseal.runtime import Runtime
from counterseal.views.base import JsonObject
from counterseal.views.call_page import FieldProblem, without_decisions
from counterseal.web.api.middleware import context_of, malformed_json, strict_json
from counterseal.web.problems import (
    MEDIA_TYPE,
    WHOLE,
    RequestBody,
    RequestProblemError,
    check_parameters,
    invalid_request,
    problem_body,
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
        self.running = RunningCalls()

    async def endpoint(self, request: Request) -> Response:
        """Answer `POST /v1/calls`. Raises RequestProblemError for a request that is no call."""
        check_parameters(request.query_params, ())
        context = context_of(request.scope)
        principal = None if context.caller is None else context.caller.principal
        if principal is None:
            detail = "Only agents make calls, with an API key or a token. People decide on them."
            raise RequestProblemError("agents-only", detail)
        proposal = _proposal(body_object(await request.body()), context.headers)
        self._require_key(proposal, principal)
        prefer = _WAIT.search(context.headers.get("prefer", "").lower())
        wait = None if prefer is None else min(float(prefer[1]), MAX_WAIT)
        with self.running:
            if wait:
                observation = await self._submit_and_wait(proposal, principal, wait)
            else:
                observation = await self._runtime.submit(proposal, principal)
        return self._response(observation, context.request_id, wait)

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
        elif observation.next_action == CARRY_OUT:
            status, headers["Location"] = 202, f"{CALLS}/{observation.call_id}/outcome"
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


def _proposal(body: dict[str, Any], headers: Mapping[str, str]) -> Proposal:
    try:
        submission = Submission.model_validate(body, strict=True)
    except ValidationError as error:
        raise invalid_request(error.errors(include_url=False), "body") from None
    return Proposal(
        **dict(submission),
        key=_idempotency_key(headers.get("idempotency-key")),
        trace=headers.get("traceparent"),
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


# --- the body -------------------------------------------------------------------------------------

_ARGUMENTS: Final = re.compile(r'"arguments"\s*:\s*')
_DECODER: Final = json.JSONDecoder()


def body_object(body: bytes) -> dict[str, Any]:
    """Return the object that a call's body is, read as strictly as a model's arguments.

    If only the arguments are invalid (for example, with a key twice), they are returned as text:
    the parse gate refuses and records them. Raises RequestProblemError.
    """
    try:
        value = strict_json(body)
    except ValueError as error:
        value = _with_arguments_as_text(body)
        if value is None:
            raise malformed_json(error) from None
    if not isinstance(value, dict):
        detail = "The body must be one JSON object."
        raise RequestProblemError("malformed-json", detail, param="", where="body")
    return value


def _with_arguments_as_text(body: bytes) -> dict[str, Any] | None:
    """Return the object with its arguments as text; None if it is invalid without them, too."""
    text = body.decode(errors="replace")
    for name in _ARGUMENTS.finditer(text):
        start = name.end()
        with suppress(ValueError, RecursionError):
            _, end = _DECODER.raw_decode(text, start)
            rest = strict_json(f"{text[:start]}null{text[end:]}".encode())
            # Elsewhere, the name may be part of a text or of a member.
            if isinstance(rest, dict) and "arguments" in rest and rest["arguments"] is None:
                return {**rest, "arguments": text[start:end]}
    return None
