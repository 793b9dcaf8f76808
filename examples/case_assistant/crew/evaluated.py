"""The demo's models as agents for `counterseal scenarios`. A scenario's name is a part's name.

    counterseal scenarios run scenarios.yaml --agent crew.evaluated:scripted

`smollm2` is the small language model of the demo, on this machine's processor.
"""

from __future__ import annotations

import re
from typing import Any, Final

from counterseal.evaluation.agents import AgentTask
from counterseal.observation import Observation
from crew.model import Answer, Ask, Done, Model, Seen, Task
from crew.plot import MATTERS
from crew.scripted import Scripted

__all__ = ["scripted", "smollm2"]

CASE: Final = re.compile(r"case_[0-9]{6}")


async def scripted(task: AgentTask) -> str:
    """Work on a scenario as the scripted model does, with its typical mistakes."""
    return await work(task, Scripted())


async def smollm2(task: AgentTask) -> str:
    """Work on a scenario with the small language model."""
    from crew.language import Language  # noqa: PLC0415 - an optional extra

    model = Language()
    try:
        return await work(task, model)
    finally:
        await model.close()


async def work(task: AgentTask, model: Model) -> str:
    """Pass the model's proposals on, right or wrong, until it is done."""
    mine, seen = _task(task), list[Seen]()
    tools = [
        {"name": one["function"]["name"], "inputSchema": one["function"]["parameters"]}
        for one in await task.tools()
    ]
    while True:
        step = await model.next(mine, tools, seen)
        if isinstance(step, Done):
            return step.words
        for ask in step:
            seen.append(Seen(ask, await _answer(task, ask)))


def _task(task: AgentTask) -> Task:
    found = CASE.search(task.objective)
    case_id = found[0] if found else ""
    return Task(
        name=task.scenario.name,
        title=task.scenario.name,
        tenant=task.principal.tenant,
        agent=task.principal.agent,
        case_id=case_id,
        words=task.objective,
        given=next((one.given for one in MATTERS if one.case_id == case_id), {}),
        script=task.scenario.name,
    )


async def _answer(task: AgentTask, ask: Ask) -> Answer:
    observation: Observation = await task.call(ask.tool, ask.arguments)
    data: Any = observation.data
    return Answer(
        code=observation.code.value,
        text=task.text(observation),
        data=dict(data or {}),
        errors=[error.record() for error in observation.errors],
        next_action=observation.next_action,
        call_id=observation.call_id,
    )
