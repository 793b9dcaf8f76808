"""Results of tau2-bench. Written from its source; no sample was made with it.

Each simulation is a trajectory, named by its task. Calls that the simulated user makes are not the
agent's, and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from counterseal.evaluation.formats.openai_messages import last_words
from counterseal.evaluation.trajectories import AgentCall, Trajectory


def read(data: Any) -> list[Trajectory]:
    """Return a trajectory for each simulation."""
    if not isinstance(data, Mapping) or "simulations" not in data:
        raise ValueError("expected results with `simulations`")
    model = str(((data.get("info") or {}).get("agent_info") or {}).get("llm") or "")
    asked = {str(task["id"]): _asked(task) for task in data.get("tasks") or ()}
    return [
        Trajectory(
            name=str(one["task_id"]),
            objective=asked.get(str(one["task_id"]), ""),
            uses=tuple(_uses(one["messages"])),
            words=last_words(one["messages"]),
            model=model,
            duration_ms=round(float(one.get("duration") or 0) * 1000),
            facts=_facts(one),
        )
        for one in data["simulations"]
    ]


def _asked(task: Mapping[str, Any]) -> str:
    """Return what the simulated user wants."""
    wish = (task.get("user_scenario") or {}).get("instructions") or ""
    return str(wish.get("reason_for_call") or "") if isinstance(wish, Mapping) else str(wish)


def _facts(simulation: Mapping[str, Any]) -> dict[str, Any]:
    reward = (simulation.get("reward_info") or {}).get("reward")
    names = ("trial", "termination_reason", "agent_cost")
    return {"reward": reward, **{name: simulation.get(name) for name in names}}


def _uses(messages: Sequence[Mapping[str, Any]]) -> Iterator[AgentCall]:
    # Answers to several calls stand in one message.
    flat = [part for one in messages for part in one.get("tool_messages") or [one]]
    answers = {one.get("id"): one.get("content") for one in flat if one.get("role") == "tool"}
    for message in messages:
        for call in message.get("tool_calls") or ():
            if call.get("requestor", "assistant") == "assistant":
                own = str(call.get("id") or "")
                yield AgentCall(
                    tool=call["name"],
                    arguments=call["arguments"],
                    id=own,
                    answer=str(answers.get(own) or ""),
                )
