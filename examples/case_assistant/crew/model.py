"""The interface of an agent's model: one method.

    step = model.next(task, tools, seen)      # calls to propose, or that the task is done

A model keeps no state: it gets the task, the tools that its agent may use, and every answer so far.
A restarted agent therefore continues where the last one stopped.
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
    """The name of its file in the journal."""
    title: str
    tenant: str
    agent: str
    case_id: str
    words: str
    """The instruction for the agent."""
    after: str = ""
    """The task that must be done first."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the case, and the results of the earlier task."""
    script: str = ""
    """The scripted model's part for it."""
    loses: str = ""
    """A tool whose first successful answer is lost on its way to the agent."""
    mail_fault: bool = False
    """Whether the mail server loses one answer."""

    @property
    def run_id(self) -> str:
        return f"run_{self.tenant}_{self.case_id}"


class Ask(NamedTuple):
    """A call as a model proposes it. Any part of it may be wrong."""

    tool: str
    arguments: Mapping[str, Any] | str
    """An object, or the text that the model wrote instead."""
    why: str = ""
    """A remark for the story; the gateway does not see it."""
    obeys: str = ""
    """The kind of injected demand that it follows, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a call."""

    code: str
    """One of the 21 codes, or LOST if no answer came."""
    text: str = ""
    """The text for the model."""
    data: Mapping[str, Any] = field(default_factory=dict)
    errors: Sequence[Mapping[str, Any]] = ()
    """Errors by field."""
    next_action: str = ""
    call_id: str = ""
    approval_id: str = ""
    replayed: bool = False
    retry_after: float | None = None
    """Seconds after which the same call may succeed."""

    @property
    def ok(self) -> bool:
        return self.code in ("SUCCESS", "PARTIAL_SUCCESS")


LOST = "LOST"


class Seen(NamedTuple):
    ask: Ask
    answer: Answer


class Done(NamedTuple):
    """The model considers the task done, or impossible."""

    words: str
    hands_on: Mapping[str, Any] = MappingProxyType({})
    """Facts for the next task of the case."""


class Model(Protocol):
    async def next(
        self, task: Task, tools: Sequence[Mapping[str, Any]], seen: Sequence[Seen]
    ) -> Sequence[Ask] | Done: ...
