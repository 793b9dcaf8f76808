"""What an agent's model is asked, and what it answers: one method, whoever stands behind it.

    step = model.next(task, tools, seen)      # calls to propose, or that the task is done

A model keeps nothing to itself: it is shown the task, the tools that its agent may use, and
everything that came back so far. So whoever is started anew goes on where the last one was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

__all__ = ["LOST", "Answer", "Ask", "Done", "Model", "Seen", "Task"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One piece of work for one agent. All tasks about one case are in the same run."""

    name: str
    """Under which name its progress is kept."""
    title: str
    tenant: str
    agent: str
    case_id: str
    words: str
    """What the agent is told to do."""
    after: str = ""
    """The task that has to be done before."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """What is known of the case, and what that task has handed on."""
    script: str = ""
    """Which of the scripted model's parts plays it."""
    loses: str = ""
    """A tool whose first success does not reach the agent: its answer is lost on the way."""
    mail_fault: bool = False
    """Whether the mail server loses an answer of its own, once."""

    @property
    def run_id(self) -> str:
        return f"run_{self.tenant}_{self.case_id}"


class Ask(NamedTuple):
    """A call as a model proposes it. Nothing of it need be right."""

    tool: str
    arguments: Mapping[str, Any] | str
    """An object; or whatever it wrote instead of one."""
    why: str = ""
    """For whoever watches; the gateway never sees it."""
    obeys: str = ""
    """What kind of injected demand it follows, if it follows one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the agent was told of a call."""

    code: str
    """One of the 21 codes; or LOST, where no answer came."""
    text: str = ""
    """What the model reads."""
    data: Mapping[str, Any] = field(default_factory=dict)
    errors: Sequence[Mapping[str, Any]] = ()
    """What is wrong with which field."""
    next_action: str = ""
    call_id: str = ""
    approval_id: str = ""
    replayed: bool = False
    retry_after: float | None = None
    """Seconds, where the same call may succeed later."""

    @property
    def ok(self) -> bool:
        return self.code in ("SUCCESS", "PARTIAL_SUCCESS")


LOST = "LOST"


class Seen(NamedTuple):
    ask: Ask
    answer: Answer


class Done(NamedTuple):
    """The model thinks that the task is done, or can't be."""

    words: str
    hands_on: Mapping[str, Any] = MappingProxyType({})
    """For whoever goes on with the case."""


class Model(Protocol):
    async def next(
        self, task: Task, tools: Sequence[Mapping[str, Any]], seen: Sequence[Seen]
    ) -> Sequence[Ask] | Done: ...
