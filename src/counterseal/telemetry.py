"""One OpenTelemetry span per call, built after the answer and off the call's path.

Costs nothing while no SDK is configured. Uses the GenAI attribute names where they exist, and
`counterseal.*` for the rest. Keys appear as per-tenant fingerprints only. If a server has already
made a span of the call, that span gets the attributes, and there is no second one.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from functools import cache
from random import getrandbits
from typing import Any, Final, NamedTuple

from opentelemetry import context, metrics, propagate, trace
from opentelemetry.trace import (
    NonRecordingSpan,
    NoOpTracerProvider,
    ProxyTracerProvider,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)

SPAN: Final[ContextVar[Span | None]] = ContextVar("counterseal_span", default=None)
"""The span that a server has made of the call it is serving."""
_BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""Seconds, as the conventions for MCP advise."""
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)


def trace_in(traceparent: str | None) -> str | None:
    """Return the trace id of a W3C traceparent, or None if it is invalid."""
    match = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    return match[1] if match else None


def listening() -> bool:
    """Return True if an OpenTelemetry SDK is loaded."""
    # Cheaper than asking for the provider, and without an SDK there is none.
    return "opentelemetry.sdk" in sys.modules


def measure(name: str, seconds: float, attributes: Mapping[str, Any]) -> None:
    """Record a duration in a histogram, if an SDK is loaded."""
    if listening():
        known = {key: value for key, value in attributes.items() if value is not None}
        _histogram(name).record(seconds, known)


@cache
def _histogram(name: str) -> metrics.Histogram:
    meter = metrics.get_meter("counterseal")
    return meter.create_histogram(name, unit="s", explicit_bucket_boundaries_advisory=_BUCKETS)


_METHODS: Final = {"resource": "resources/read", "prompt": "prompts/get"}
"""The requests behind calls that execute no tool."""


class Finished(NamedTuple):
    """The attributes of an answered call's span."""

    tenant: str
    tool: str
    kind: str
    """`tool`, or `resource` or `prompt` of an upstream."""
    version: str
    call_id: str
    risk: str
    trace_id: str
    traceparent: str | None
    key: str | None
    code: str
    is_error: bool
    retryable: bool
    repairable: bool
    approval_id: str | None
    corrected: bool
    refused_by: str | None
    idempotency_hit: bool
    cancelled: bool
    replayable: bool
    """True if everything is kept that its decision depended on."""
    started: float
    ended: float
    caller_call_id: str | None = None
    workflow_id: str | None = None
    conversation_id: str | None = None
    session_id: str | None = None


class Telemetry:
    """Hands finished calls to OpenTelemetry, if an SDK is configured."""

    def __init__(self, fingerprint_key: bytes | None = None) -> None:
        # Copied for each fingerprint, which costs a third of setting up the key anew.
        self._hmac = hmac.new(fingerprint_key or secrets.token_bytes(32), digestmod="sha256")

    @property
    def listening(self) -> bool:
        """True if a tracer provider is configured."""
        if not listening():
            return False
        provider = trace.get_tracer_provider()
        return not isinstance(provider, ProxyTracerProvider | NoOpTracerProvider)

    def trace_of(self, traceparent: str | None) -> str | None:
        """Return the trace id of a call: that of its traceparent, else of the caller's own span."""
        trace_id = trace_in(traceparent)
        if trace_id is not None or not self.listening:
            return trace_id
        span = trace.get_current_span().get_span_context()
        return f"{span.trace_id:032x}" if span.is_valid else None

    def emit(self, finished: Finished) -> None:
        """Build the span after the answer, in the caller's context, so that it nests."""
        span = SPAN.get()
        if span is not None and span.is_recording():
            span.set_attributes(self._attributes(finished))
            return
        asyncio.get_running_loop().call_soon(self._span, finished)

    def fingerprint(self, tenant: str, value: str) -> str:
        """Return a per-tenant HMAC of a value, from which the value can't be guessed."""
        keyed = self._hmac.copy()
        keyed.update(f"{tenant}\0{value}".encode(errors="replace"))
        return keyed.hexdigest()[:16]

    def _span(self, call: Finished) -> None:
        tracer = trace.get_tracer("counterseal")
        span = tracer.start_span(
            f"{_METHODS.get(call.kind, 'execute_tool')} {call.tool}",
            context=_parent(call),
            kind=SpanKind.INTERNAL,
            start_time=int(call.started * 1e9),
            attributes=self._attributes(call),
        )
        if call.is_error:
            span.set_status(Status(StatusCode.ERROR, call.code))
        span.end(end_time=int(call.ended * 1e9))

    def _attributes(self, call: Finished) -> dict[str, Any]:
        is_tool = call.kind not in _METHODS
        attributes = {
            "gen_ai.operation.name": "execute_tool" if is_tool else None,
            "gen_ai.tool.name": call.tool if is_tool else None,
            "gen_ai.tool.call.id": (call.caller_call_id or call.call_id) if is_tool else None,
            "gen_ai.conversation.id": call.conversation_id,
            "session.id": call.session_id,
            "gen_ai.tool.type": "function" if is_tool else None,
            "mcp.method.name": _METHODS.get(call.kind),
            "counterseal.call.id": call.call_id,
            "counterseal.workflow.id": call.workflow_id,
            "error.type": call.code if call.is_error else None,
            "counterseal.tool.version": call.version,
            "counterseal.tool.side_effect_class": call.risk,
            "counterseal.tool.validation.status": _validation(call),
            "counterseal.tool.error_code": call.code if call.is_error else None,
            "counterseal.tool.status": "CANCELLED" if call.cancelled else None,
            "counterseal.tool.retryable": call.retryable,
            "counterseal.tool.repairable": call.repairable,
            "counterseal.tool.idempotency_key_hash": (
                self.fingerprint(call.tenant, call.key) if call.key else None
            ),
            "counterseal.tool.idempotency_hit": call.idempotency_hit,
            "counterseal.tool.approval_id": call.approval_id,
            "counterseal.tenant.id": call.tenant,
            "counterseal.trace.id": call.trace_id,
            "counterseal.trace.replayable": call.replayable,
        }
        return {name: value for name, value in attributes.items() if value is not None}


def _validation(call: Finished) -> str:
    if call.code == "CONFIRMATION_MISSING" and call.refused_by is None:
        return "approval_pending"
    if call.refused_by in ("parse", "schema", "semantics"):
        return "failed"
    if call.refused_by is not None:
        return "blocked"
    return "repaired" if call.corrected else "passed"


def _parent(call: Finished) -> context.Context:
    """Return the parent: the caller's traceparent, else its span, else the call's own trace id."""
    if call.traceparent:
        return propagate.extract({"traceparent": call.traceparent})
    if trace.get_current_span().get_span_context().is_valid:
        return context.get_current()
    # A parent that was never recorded, so that the span has the call's trace id.
    root = SpanContext(
        trace_id=int(call.trace_id, 16),
        span_id=getrandbits(64) or 1,
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )
    return trace.set_span_in_context(NonRecordingSpan(root))
