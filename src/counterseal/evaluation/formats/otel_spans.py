"""OpenTelemetry spans with the GenAI conventions, as OTLP JSON or as the SDK's `span.to_json()`.

Read: spans whose operation is `execute_tool`; a conversation, else a trace, is a trajectory. Many
programs leave arguments out of spans (`gen_ai.tool.call.arguments` is opt-in); without them a use
can't be proposed again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from counterseal.evaluation.trajectories import AgentCall, Trajectory, parsed_arguments
from counterseal.evaluation.trials import ScenarioReport, Trial

_TOKENS: Final = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
_SCENARIO: Final = "counterseal.scenario"
_OBJECTIVE: Final = "counterseal.objective"
_ERROR: Final = 2
"""The status code of a span that failed."""


class _Span(NamedTuple):
    trace: str
    started: float
    ended: float
    attributes: Mapping[str, Any]


def read(data: Any) -> list[Trajectory]:
    """Return a trajectory for each conversation, else for each trace, with its tool calls."""
    groups: dict[str, list[_Span]] = {}
    for span in sorted(_spans(data), key=lambda span: span.started):
        name = str(span.attributes.get("gen_ai.conversation.id") or span.trace)
        groups.setdefault(name, []).append(span)
    return [_trajectory(name, spans) for name, spans in groups.items()]


def _spans(data: Any) -> Iterator[_Span]:
    for item in data if isinstance(data, list) else [data]:
        if "resourceSpans" in item:
            for resource in item["resourceSpans"]:
                for scope in resource.get("scopeSpans", ()):
                    yield from map(_otlp, scope.get("spans", ()))
        elif "context" in item:
            yield _sdk(item)
        else:
            raise ValueError("expected resourceSpans (OTLP JSON), or spans of the SDK's to_json")


def _otlp(span: Mapping[str, Any]) -> _Span:
    attributes = {one["key"]: _value(one["value"]) for one in span.get("attributes", ())}
    began, ended = int(span["startTimeUnixNano"]) / 1e9, int(span["endTimeUnixNano"]) / 1e9
    return _Span(str(span["traceId"]), began, ended, attributes)


def _sdk(span: Mapping[str, Any]) -> _Span:
    began, ended = (datetime.fromisoformat(span[name]) for name in ("start_time", "end_time"))
    trace, facts = str(span["context"]["trace_id"]), span.get("attributes") or {}
    return _Span(trace, began.timestamp(), ended.timestamp(), facts)


def _value(value: Mapping[str, Any]) -> Any:
    """Return an OTLP attribute's value. Whole numbers are texts in OTLP JSON."""
    ((kind, plain),) = value.items()
    if kind == "arrayValue":
        return [_value(item) for item in plain.get("values", ())]
    return int(plain) if kind == "intValue" else plain


def _trajectory(name: str, spans: Sequence[_Span]) -> Trajectory:
    facts = [span.attributes for span in spans]
    tokens = sum(int(one.get(key) or 0) for one in facts for key in _TOKENS)
    first, last = min(span.started for span in spans), max(span.ended for span in spans)
    return Trajectory(
        name=_first(facts, _SCENARIO) or name,
        objective=_first(facts, _OBJECTIVE),
        uses=tuple(_use(span) for span in spans if _is_tool(span)),
        model=_first(facts, "gen_ai.request.model"),
        tokens=tokens,
        started_at=first,
        duration_ms=round((last - first) * 1000),
    )


def _first(facts: Sequence[Mapping[str, Any]], name: str) -> str:
    return next((str(one[name]) for one in facts if name in one), "")


def _is_tool(span: _Span) -> bool:
    return span.attributes.get("gen_ai.operation.name") == "execute_tool"


def _use(span: _Span) -> AgentCall:
    facts = span.attributes
    code = facts.get("counterseal.tool.error_code")
    return AgentCall(
        tool=str(facts.get("gen_ai.tool.name", "")),
        arguments=parsed_arguments(facts.get("gen_ai.tool.call.arguments")),
        id=str(facts.get("gen_ai.tool.call.id", "")),
        code=None if code is None else str(code),
        answer=str(facts.get("gen_ai.tool.call.result", "")),
        latency_ms=round((span.ended - span.started) * 1000),
    )


# --- writing --------------------------------------------------------------------------------------


def write(reports: Sequence[ScenarioReport]) -> str:
    """Return OTLP JSON: a trace for each trial, with a span for the agent and one for each use."""
    spans = [
        span for report in reports for trial in report.trials for span in _written(report, trial)
    ]
    resource = {"attributes": _attributes({"service.name": "counterseal"})}
    scope = {"scope": {"name": "counterseal.scenarios"}, "spans": spans}
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}) + "\n"


def _written(report: ScenarioReport, trial: Trial) -> Iterator[dict[str, Any]]:
    one, name = trial.trajectory, f"{trial.scenario}#{trial.number}"
    trace, root = _id(32, report.label, name), _id(16, report.label, name)
    at = one.started_at
    about = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": report.agent,
        "gen_ai.conversation.id": name,
        _SCENARIO: trial.scenario,
        _OBJECTIVE: one.objective,
        "counterseal.passed": trial.score.passed,
    }
    shared = {"traceId": trace, "kind": 1}
    yield {
        **shared,
        "spanId": root,
        "name": f"invoke_agent {report.agent}",
        **_times(at, at + one.duration_ms / 1000),
        "attributes": _attributes(about),
        "status": {} if trial.score.passed else {"code": _ERROR},
    }
    for number, use in enumerate(one.uses, 1):
        facts = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": use.tool,
            "gen_ai.tool.call.id": use.id,
            "gen_ai.conversation.id": name,
            "gen_ai.tool.call.arguments": json.dumps(use.arguments),
            "gen_ai.tool.call.result": use.answer,
            "counterseal.tool.error_code": None if use.ok else use.code,
        }
        took = (use.latency_ms or 0) / 1000
        yield {
            **shared,
            "spanId": _id(16, report.label, name, str(number)),
            "parentSpanId": root,
            "name": f"execute_tool {use.tool}",
            **_times(at + number * 1e-6, at + number * 1e-6 + took),
            "attributes": _attributes(facts),
            "status": {} if use.ok else {"code": _ERROR},
        }


def _times(started: float, ended: float) -> dict[str, str]:
    return {
        "startTimeUnixNano": str(int(started * 1e9)),
        "endTimeUnixNano": str(int(ended * 1e9)),
    }


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"boolValue" if isinstance(value, bool) else "stringValue": value}}
        for key, value in values.items()
        if value is not None
    ]


def _id(length: int, *parts: str) -> str:
    """Return an id that is the same for the same trial."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:length]
