"""Runs in the form of LangSmith: a list of runs, of which those of the type `tool` are uses.

Runs of one trace are a trajectory, named by its `scenario` in the metadata, else by its id.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from counterseal.evaluation.formats.openai_messages import first_words, last_words, text_of
from counterseal.evaluation.trajectories import AgentCall, Trajectory, parsed_arguments

_Run = Mapping[str, Any]


def read(data: Any) -> list[Trajectory]:
    """Return a trajectory for each trace, with its tool runs in their order."""
    traces: dict[str, list[_Run]] = {}
    for run in data if isinstance(data, list) else data["runs"]:
        traces.setdefault(str(run.get("trace_id") or run["id"]), []).append(run)
    return [_trajectory(name, runs) for name, runs in traces.items()]


def _trajectory(trace: str, runs: list[_Run]) -> Trajectory:
    runs = sorted(runs, key=lambda run: str(run.get("dotted_order") or run.get("start_time")))
    root = next((run for run in runs if not run.get("parent_run_id")), runs[0])
    about = (root.get("extra") or {}).get("metadata") or {}
    inputs, outputs = _messages(root.get("inputs")), _messages(root.get("outputs"))
    started = _moment(root.get("start_time"))
    return Trajectory(
        name=str(about.get("scenario") or trace),
        objective=first_words(inputs, "user"),
        uses=tuple(_use(run) for run in runs if run.get("run_type") == "tool"),
        words=last_words(outputs),
        tokens=sum(int(run.get("total_tokens") or 0) for run in runs),
        started_at=started,
        duration_ms=max(0, round((_moment(root.get("end_time")) - started) * 1000)),
    )


def _use(run: _Run) -> AgentCall:
    output = (run.get("outputs") or {}).get("output")
    message = output if isinstance(output, Mapping) else {}
    answer = run.get("error") or text_of(message.get("content", output))
    own = message.get("tool_call_id") or run["id"]
    return AgentCall(
        tool=str(run["name"]), arguments=_arguments(run.get("inputs")), id=str(own), answer=answer
    )


def _arguments(inputs: Any) -> Any:
    """Return a tool's arguments. LangChain's tracer keeps them as the text of a Python dict."""
    if not isinstance(inputs, Mapping) or list(inputs) != ["input"]:
        return inputs
    text = inputs["input"]
    try:
        return ast.literal_eval(text) if isinstance(text, str) else text
    except (ValueError, SyntaxError):
        return parsed_arguments(text)


def _messages(value: Any) -> list[Any]:
    listed = value.get("messages") if isinstance(value, Mapping) else None
    while isinstance(listed, list) and len(listed) == 1 and isinstance(listed[0], list):
        listed = listed[0]
    names = {"human": "user", "ai": "assistant"}
    return [
        {**one, "role": one.get("role") or names.get(str(one.get("type")), "")}
        for one in (listed if isinstance(listed, list) else ())
        if isinstance(one, Mapping)
    ]


def _moment(value: Any) -> float:
    if not isinstance(value, str):
        return 0.0
    moment = datetime.fromisoformat(value)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
