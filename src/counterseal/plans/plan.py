"""A judged plan: what became of each step, as data and as words for a planner."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from pydantic_core import to_json

from counterseal.canonical import pointer, thaw
from counterseal.contract.invariants import Correction
from counterseal.observation.envelope import FieldError
from counterseal.observation.text import neutralise
from counterseal.plans.rules import PlanRule
from counterseal.proposal import Proposal

__all__ = ["MOST_BYTES", "Fate", "Plan", "PlannedStep", "changes"]

MOST_BYTES: Final = 256 * 1024
"""Of the arguments of all steps that are left; and as much of those that are not, in a record."""
_LONGEST_LINE: Final = 500
_PLAIN: Final = re.compile(r"[\w.-]+", re.ASCII)


class Fate(StrEnum):
    """What becomes of a step."""

    KEEP = "keep"
    CORRECT = "correct"
    HOLD = "hold"
    """It would wait for a person."""
    DROP = "drop"
    REJECT = "reject"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """One step, and what was made of it."""

    number: int
    """As proposed, from one on."""
    tool: str
    arguments: Mapping[str, Any]
    """As they would be executed; as proposed where the step is rejected or dropped."""
    fate: Fate
    code: str | None = None
    gate: str | None = None
    rule: str | None = None
    reason: str = ""
    corrections: tuple[Correction, ...] = ()
    field_errors: tuple[FieldError, ...] = ()
    unknown: tuple[str, ...] = ()
    """Gates that can't be asked yet, because an earlier step may change what they look at."""
    proposal: Proposal | None = field(default=None, repr=False)
    """What to submit, to take this step; None where it should not be taken."""

    @property
    def kept(self) -> bool:
        return self.fate in (Fate.KEEP, Fate.CORRECT, Fate.HOLD)

    def record(self) -> dict[str, Any]:
        return {
            "step": self.number,
            "tool": self.tool,
            "arguments": thaw(self.arguments),
            "fate": self.fate.value,
            "code": self.code,
            "gate": self.gate,
            "rule": self.rule,
            "reason": self.reason,
            "corrections": [
                {"invariant": one.invariant, "rule": one.rule, "changes": changes(one)}
                for one in self.corrections
            ],
            "field_errors": [error.record() for error in self.field_errors],
            "unknown": list(self.unknown),
        }

    def told(self) -> Iterator[str]:
        """The step as a planner reads it: other people's words, each on one line."""
        name = _name(self.tool)
        yield " ".join(filter(None, ("step", str(self.number), name))) + _said(self)
        for error in self.field_errors:
            told = _error(error, self.reason)
            if told:
                yield f"  - {told}"
        for one in self.corrections:
            yield f"  - corrected: {_line(one.rule)} ({one.invariant})"
        if self.unknown:
            yield f"  - not known yet: {', '.join(self.unknown)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A judged plan. Nothing of it has run, and running it asks every gate again."""

    steps: tuple[PlannedStep, ...]
    broken: tuple[PlanRule, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every step that is left may be taken, and no plan rule is broken."""
        return not self.broken and all(step.fate is not Fate.REJECT for step in self.steps)

    @property
    def proposals(self) -> tuple[Proposal, ...]:
        """What to submit, step by step: corrected, and without what was dropped.

        None where the plan is not accepted: half a plan is another plan.
        """
        if not self.ok:
            return ()
        return tuple(step.proposal for step in self.steps if step.proposal is not None)

    def record(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "steps": list(self._recorded()),
            "broken": [{"id": rule.id, "rule": rule.rule} for rule in self.broken],
            "next_action": "continue" if self.ok else "replan",
        }

    def _recorded(self) -> Iterator[dict[str, Any]]:
        """The steps. Huge arguments of those that are not taken are left out: None."""
        left = MOST_BYTES
        for step in self.steps:
            record = step.record()
            if not step.kept:
                size = len(to_json(record["arguments"]))
                if size > left:
                    record["arguments"] = None
                else:
                    left -= size
            yield record

    def for_model(self) -> str:
        """What a planner is told: what was changed, and what it must change itself."""
        lines = [f"plan: {'accepted' if self.ok else 'rejected'}"]
        lines += [line for step in self.steps for line in step.told()]
        lines += [f"plan rule {rule.id} is broken: {_line(rule.rule)}" for rule in self.broken]
        lines.append(f"next action: {'continue' if self.ok else 'replan'}")
        return "\n".join(lines)


def changes(correction: Correction) -> list[dict[str, Any]]:
    """The arguments that a correction changed; without `before` or `after` where there is none."""
    before, after = correction.before, correction.after
    names = [
        name
        for name in {**before, **after}
        if (name in before, before.get(name)) != (name in after, after.get(name))
    ]
    return [
        {"field": pointer(name)}
        | ({"before": thaw(before[name])} if name in before else {})
        | ({"after": thaw(after[name])} if name in after else {})
        for name in names
    ]


def _said(step: PlannedStep) -> str:
    reason = _line(step.reason)
    return f": {step.fate}. {reason}" if reason else f": {step.fate}"


def _name(tool: str) -> str:
    """A tool's name; what is no plain name could pass for words of ours, so it is quoted."""
    name = _line(tool)
    return name if not name or _PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _error(error: FieldError, reason: str) -> str:
    """What an error says beyond the reason."""
    told = error.expected in error.message
    wanted = "" if told else f"expected {_line(error.expected)}"
    if not error.field and error.message == reason:
        return wanted
    place = f"{_line(error.field)}: " if error.field else ""
    return f"{place}{_line(error.message)}{f' ({wanted})' if wanted else ''}"


def _line(text: str) -> str:
    """Other people's words on one line, without what nobody can see."""
    line = " ".join(neutralise(text)[0].split())
    return line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 1] + "…"
