"""Logs of Inspect (`inspect_ai`), as JSON. A `.eval` file becomes one with `inspect log convert`.

Read: each sample is a trajectory, named by its id; its scores are kept as facts. Written: a log
that Inspect reads and shows, with our score as `counterseal`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from counterseal.evaluation.formats.openai_messages import first_words, last_words, text_of
from counterseal.evaluation.trajectories import AgentCall, Trajectory
from counterseal.evaluation.trials import ScenarioReport, Trial


def read(data: Any) -> list[Trajectory]:
    """Return a trajectory for each sample of a log."""
    if not isinstance(data, Mapping) or "samples" not in data or "eval" not in data:
        raise ValueError("expected a log with `eval` and `samples`")
    model = str(data["eval"].get("model", ""))
    return [_trajectory(sample, model) for sample in data["samples"] or ()]


def _trajectory(sample: Mapping[str, Any], model: str) -> Trajectory:
    messages = sample["messages"]
    used = (sample.get("model_usage") or {}).values()
    scores = sample.get("scores") or {}  # a sample that was not scored has none
    return Trajectory(
        name=str(sample["id"]),
        objective=first_words(messages, "user"),
        uses=tuple(_uses(messages)),
        words=last_words(messages),
        model=model,
        tokens=sum(int(one.get("total_tokens") or 0) for one in used),
        started_at=_moment(sample.get("started_at")),
        duration_ms=round((sample.get("total_time") or 0.0) * 1000),
        facts={"scores": {name: one["value"] for name, one in scores.items()}},
    )


def _uses(messages: Sequence[Mapping[str, Any]]) -> Iterator[AgentCall]:
    answers = {one.get("tool_call_id"): one for one in messages if one.get("role") == "tool"}
    for message in messages:
        for call in message.get("tool_calls") or ():
            answer = answers.get(call["id"], {})
            refused = (answer.get("error") or {}).get("message")
            yield AgentCall(
                tool=call["function"],
                arguments=call["arguments"],
                id=call["id"],
                answer=refused or text_of(answer.get("content")),
            )


def _moment(text: Any) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0


# --- writing --------------------------------------------------------------------------------------


def write(reports: Sequence[ScenarioReport]) -> str:
    """Return a log with a sample for each trial. Inspect has one log for one agent."""
    if len(reports) != 1:
        raise ValueError(f"an Inspect log holds one report, and {len(reports)} were given")
    report = reports[0]
    samples = [_sample(report, trial) for trial in report.trials]
    begun = min((trial.trajectory.started_at for trial in report.trials), default=0.0)
    names = list(dict.fromkeys(trial.scenario for trial in report.trials))
    passed = sum(trial.score.passed for trial in report.trials)
    share = passed / len(samples) if samples else 0.0
    accuracy = {"name": "accuracy", "value": share, "params": {}}
    log = {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": _id(report.label, "eval"),
            "run_id": _id(report.label, "run"),
            "created": _text(begun),
            "task": "counterseal scenarios",
            "task_id": _id(report.label, "task"),
            "task_version": 0,
            "dataset": {"name": "scenarios", "samples": len(names), "sample_ids": names},
            "model": f"counterseal/{report.agent}",
            "config": {},
        },
        "plan": {},
        "results": {
            "total_samples": len(samples),
            "completed_samples": len(samples),
            "scores": [
                {
                    "name": "counterseal",
                    "scorer": "counterseal",
                    "params": {},
                    "metrics": {"accuracy": accuracy},
                }
            ],
        },
        "stats": {"started_at": _text(begun), "completed_at": _text(begun)},
        "samples": samples,
    }
    return json.dumps(log, ensure_ascii=False, indent=1) + "\n"


def _sample(report: ScenarioReport, trial: Trial) -> dict[str, Any]:
    one, score = trial.trajectory, trial.score
    said = {"role": "assistant", "content": one.words, "source": "generate"}
    messages: list[dict[str, Any]] = [{"role": "user", "content": one.objective}]
    for number, use in enumerate(one.uses, 1):
        own = f"{use.id or 'use'}_{number}"
        arguments = use.arguments if isinstance(use.arguments, Mapping) else {}
        call = {"id": own, "function": use.tool, "arguments": arguments, "type": "function"}
        answer: dict[str, Any] = {"role": "tool", "tool_call_id": own, "function": use.tool}
        if not use.ok:
            answer["error"] = {"type": "approval", "message": use.answer or str(use.code)}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({**answer, "content": use.answer})
    judged = {
        "value": "C" if score.passed else "I",
        "answer": one.words,
        "explanation": "; ".join(score.wrong),
        "metadata": {"shares": score.shares, "refused_by": score.refused_by},
    }
    return {
        "id": trial.scenario,
        "epoch": trial.number,
        "input": one.objective,
        "target": "",
        "messages": [*messages, said],
        "output": {"model": f"counterseal/{report.agent}", "choices": [], "completion": one.words},
        "scores": {"counterseal": judged},
        "metadata": {},
        "total_time": one.duration_ms / 1000,
        "model_usage": {},
    }


def _text(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()


def _id(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:22]
