"""`POST /v1/calls`: from a request to a proposal, and from its observation to an answer.

The `Idempotency-Key` is the proposal's key. Without one the contract's business key stands, or one
that is derived from the run and the arguments; only a tool whose calls may be meant again takes a
name for each, and a request without one is refused before anything is done.

A refusal is a problem that carries the observation. A call that a person has to approve is neither:
it is accepted, and the answer says where it is decided.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping
from time import monotonic
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, ValidationError

from counterseal.codes import Code
from counterseal.gateway.calls import awaits_approval
from counterseal.observation import Observation
from counterseal.observation.render import said
from counterseal.operations.approver import ApprovalError
from counterseal.proposal import Principal, Proposal
from counterseal.runtime import Runtime
from counterseal.views.base import JsonObject
from counterseal.web.api.bodies import object_in
from counterseal.web.api.callers import Agent, Caller
from counterseal.web.api.exchange import JSON, Answer
from counterseal.web.api.problems import (
    MEDIA,
    FieldProblem,
    ProblemError,
    problem_body,
)
from counterseal.web.api.validation import WHOLE, RequestBody, invalid
from counterseal.web.api.writing import shown, written

__all__ = ["LONGEST_WAIT", "Submission", "Submitting"]

LONGEST_WAIT: Final = 30.0
"""Seconds that a request waits at most for a person, or for another one like it."""
_QUOTED: Final = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_BARE: Final = re.compile(r"[!#-+\--~]+")
"""Printable ASCII without spaces, commas and quotes."""
_LONGEST_KEY: Final = 255
_WAIT: Final = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?(\d{1,6})\"?\s*(?=$|[,;])")
_REPLAYED: Final = (b"idempotent-replayed", b"true")
_TITLE: Final = "The call was not carried out"
_FAILED: Final = "The call failed"
LONGEST_NAME: Final = 512
_Id = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]


class Submission(RequestBody):
    """A call that an agent wants made."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"tool": "look_up_case", "arguments": {"case_id": "case_7"}, "run_id": "run_1"}
            ]
        }
    )

    tool: str = Field(max_length=LONGEST_NAME, description="The contract's name.")
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
    expected_version: str | Annotated[int, WHOLE] | None = Field(
        None, description="The version of the resource that the call was thought up against."
    )
    configurable: JsonObject | None = Field(
        None, description="Values for the contract's config params."
    )


class Submitting:
    """Carries out the calls that come over HTTP."""

    def __init__(self, runtime: Runtime, public: str) -> None:
        self._runtime = runtime
        self._public = public
        self.under_way = 0
        """How many calls are being carried out."""
        self._ended = asyncio.Event()
        self._repeatable: dict[str, bool] = {}
        self._known_at = -1
        """The registry's epoch, as of which that is known."""

    async def submit(
        self, caller: Caller | None, headers: Mapping[str, str], body: bytes, request_id: str
    ) -> Answer:
        """The answer. ProblemError for what never became a call."""
        who = _agent(caller)
        proposal = _proposal(object_in(body), headers)
        self._refuse_nameless(proposal, who)
        wait = _wait(headers.get("prefer")) if headers else None
        self.under_way += 1
        try:
            if wait:
                seen = await self._waited_for(proposal, who, wait)
            else:
                seen = await self._runtime.submit(proposal, who)
        finally:
            self.under_way -= 1
            if not self.under_way:
                self._ended.set()
        return self._answer(seen, request_id, wait)

    async def idle(self) -> None:
        """Wait until no call is being carried out."""
        while self.under_way:
            self._ended.clear()
            await self._ended.wait()

    # --- inside -----------------------------------------------------------------------------------

    async def _waited_for(self, proposal: Proposal, who: Principal, wait: float) -> Observation:
        until = monotonic() + wait
        seen = await self._runtime.submit(proposal, who, wait=wait)
        left = until - monotonic()
        if left <= 0 or not awaits_approval(seen):
            return seen
        try:
            packet = await self._runtime.approvals.wait(who.tenant, seen.approval_id or "", left)
        except ApprovalError:
            return seen
        if packet.status == "waiting":
            return seen
        return await self._runtime.submit(proposal, who, wait=max(0.0, until - monotonic()))

    def _refuse_nameless(self, proposal: Proposal, who: Principal) -> None:
        """What may be meant twice has to be named; but only who may use it hears so."""
        if proposal.key is not None or proposal.operation_id is not None:
            return
        registry = self._runtime.registry
        if self._known_at != registry.epoch:
            self._repeatable.clear()
            self._known_at = registry.epoch
        tool, version = proposal.tool, proposal.version
        repeatable = self._repeatable.get(tool) if version is None else None
        if repeatable is None:
            repeatable = self._is_repeatable(tool, version)
        if repeatable and registry.grants_of(who.agent, tool):
            told = "The same call may be meant twice: send an Idempotency-Key, or an operation_id."
            raise ProblemError(
                "idempotency-key-required", told, param="/idempotency-key", where="header"
            )

    def _is_repeatable(self, tool: str, version: str | None) -> bool:
        """Whether the same call of a tool may be meant twice. What was worked out is kept."""
        versions = self._runtime.registry.versions(tool)
        found = any(
            record.contract.repeatable and version in (None, record.version) for record in versions
        )
        if versions and version is None:  # only what there is may fill the memory
            self._repeatable[tool] = found
        return found

    def _answer(self, seen: Observation, request_id: str, wait: float | None) -> Answer:
        headers = [_REPLAYED] if seen.idempotency_hit else []
        if wait is not None:
            headers.append((b"preference-applied", b"wait=%d" % wait))
        if awaits_approval(seen):
            headers.append((b"location", f"/v1/approvals/{seen.approval_id}".encode()))
            return Answer(202, written(seen, self._public), tuple(headers))
        if seen.ok:
            body = written(seen, self._public)
            return Answer(seen.response.status, body, tuple(headers), JSON)
        if seen.retry_after is not None:
            headers.append((b"retry-after", b"%d" % max(1, math.ceil(seen.retry_after))))
        status = seen.response.status if 400 <= seen.response.status < 600 else 500
        body = _problem(seen, status, shown(seen, self._public), request_id)
        return Answer(status, body, tuple(headers), MEDIA)


def _problem(seen: Observation, status: int, told: Mapping[str, Any], request_id: str) -> bytes:
    errors = [
        FieldProblem(
            param=f"/arguments{one.field}" if one.field else None,
            where="body",
            message=one.message,
            code=one.code,
        )
        for one in seen.errors
    ]
    first = next((one.param for one in errors if one.param is not None), None)
    if first is None and seen.code is Code.SYNTACTIC_PARSE_FAIL:
        first = "/arguments"
    refused = seen.response.status < 500
    return problem_body(
        code=seen.code.value,
        title=_TITLE if refused else _FAILED,
        status=status,
        detail=seen.errors[0].message if seen.errors else said(seen.code),
        param=first,
        where=None if first is None else "body",
        repairable=seen.response.repairable,
        retryable=seen.response.retryable,
        next_action=seen.next_action,
        request_id=request_id,
        errors=[one if one.param else one.model_copy(update={"where": None}) for one in errors],
        observation=told,
    )


def _agent(caller: Caller | None) -> Principal:
    if isinstance(caller, Agent):
        return caller.principal
    told = "Calls are made by agents, with credentials of their own; people decide on them."
    raise ProblemError("agents-only", told)


def _proposal(given: dict[str, Any], headers: Mapping[str, str]) -> Proposal:
    if _is_plain(given):
        tool, arguments = given["tool"], given["arguments"]
        if not headers:
            return Proposal.plain(tool, arguments)
        key, trace = _key(headers.get("idempotency-key")), headers.get("traceparent")
        return Proposal.plain(tool, arguments, key, trace)
    try:
        asked = Submission.model_validate(given, strict=True)
    except ValidationError as error:
        raise invalid(error.errors(include_url=False), "body") from None
    return Proposal(
        tool=asked.tool,
        arguments=asked.arguments,
        run_id=asked.run_id,
        version=asked.version,
        key=_key(headers.get("idempotency-key")),
        operation_id=asked.operation_id,
        trace=headers.get("traceparent"),
        expected_version=asked.expected_version,
        configurable=asked.configurable,
    )


def _is_plain(given: dict[str, Any]) -> bool:
    """Whether it is a sound `Submission` at a glance: a tool and an object, and nothing else."""
    if len(given) != 2:
        return False
    tool = given.get("tool")
    return type(tool) is str and len(tool) <= LONGEST_NAME and type(given.get("arguments")) is dict


def _key(given: str | None) -> str | None:
    """A structured field's string, in quotes; or the same bare, as most clients send it."""
    if given is None:
        return None
    text = given.strip()
    quoted = _QUOTED.fullmatch(text)
    if quoted is not None:
        key = re.sub(r"\\(.)", r"\1", quoted[1])
    else:
        key = text if _BARE.fullmatch(text) else ""
    if not key.strip() or len(key) > _LONGEST_KEY:
        told = f"Idempotency-Key: takes 1 to {_LONGEST_KEY} characters of ASCII, in quotes."
        raise ProblemError(
            "idempotency-key-malformed", told, param="/idempotency-key", where="header"
        )
    return key


def _wait(prefer: str | None) -> float | None:
    """How long the caller prefers to wait, as far as we let it; None: it did not say."""
    found = _WAIT.search(prefer.lower()) if prefer else None
    return None if found is None else min(float(found[1]), LONGEST_WAIT)
