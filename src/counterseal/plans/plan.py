"""A judged plan: the fate of each step, as data and as text for a planner."""

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
from counterseal.observation.invisible import neutralise
from counterseal.plans.rules import PlanRule
from counterseal.proposal import Proposal

MAX_BYTES: Final = 256 * 1024
"""Of the arguments of all kept steps; and as much again of the others, in a record."""
_MAX_LINE: Final = 500
_PLAIN: Final = re.compile(r"[\w.-]+", re.ASCII)


class Fate(StrEnum):
    """What becomes of a step of a plan."""

    KEEP = "keep"
    CORRECT = "correct"
    HOLD = "hold"
    """It would wait for approval."""
    DROP = "drop"
    REJECT = "reject"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """One judged step of a plan."""

    number: int
    """Its place in the proposed plan, from 1."""
    tool: str
    arguments: Mapping[str, Any]
    """As they would be executed; as proposed if the step is rejected or dropped."""
    fate: Fate
    code: str | None = None
    gate: str | None = None
    rule: str | None = None
    reason: str = ""
    corrections: tuple[Correction, ...] = ()
    field_errors: tuple[FieldError, ...] = ()
    unknown: tuple[str, ...] = ()
    """Gates that can't decide yet, because an earlier step may change what they check."""
    proposal: Proposal | None = field(default=None, repr=False)
    """The proposal to submit for this step; None if it should not be taken."""

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
                {
                    "invariant": correction.invariant,
                    "rule": correction.rule,
                    "changes": changes(correction),
                }
                for correction in self.corrections
            ],
            "field_errors": [error.record() for error in self.field_errors],
            "unknown": list(self.unknown),
        }

    def lines(self) -> Iterator[str]:
        """Yield the step as lines for a planner; foreign text never breaks a line."""
        name = _name(self.tool)
        yield " ".join(filter(None, ("step", str(self.number), name))) + _fate(self)
        for error in self.field_errors:
            text = _error(error, self.reason)
            if text:
                yield f"  - {text}"
        for correction in self.corrections:
            yield f"  - corrected: {_line(correction.rule)} ({correction.invariant})"
        if self.unknown:
            yield f"  - not known yet: {', '.join(self.unknown)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A judged plan. Nothing of it has run; running it passes every gate again."""

    steps: tuple[PlannedStep, ...]
    broken: tuple[PlanRule, ...] = ()

    @property
    def ok(self) -> bool:
        """True if no step is rejected and no plan rule is broken."""
        return not self.broken and all(step.fate is not Fate.REJECT for step in self.steps)

    @property
    def proposals(self) -> tuple[Proposal, ...]:
        """The proposals to submit in turn: corrected, without dropped steps.

        Empty if the plan is not accepted, because half a plan is another plan.
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
        """Yield the steps' records; beyond a limit, arguments of steps not taken are None."""
        left = MAX_BYTES
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
        """Return the plan as text for a planner: what was changed, and what it must change."""
        lines = [f"plan: {'accepted' if self.ok else 'rejected'}"]
        lines += [line for step in self.steps for line in step.lines()]
        lines += [f"plan rule {rule.id} is broken: {_line(rule.rule)}" for rule in self.broken]
        lines.append(f"next action: {'continue' if self.ok else 'replan'}")
        return "\n".join(lines)


def changes(correction: Correction) -> list[dict[str, Any]]:
    """Return the arguments that a correction changed; `before` or `after` may be missing."""
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


def _fate(step: PlannedStep) -> str:
    reason = _line(step.reason)
    return f": {step.fate}. {reason}" if reason else f": {step.fate}"


def _name(tool: str) -> str:
    """Return a tool's name, quoted if it is no plain name and could be read as our text."""
    name = _line(tool)
    return name if not name or _PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _error(error: FieldError, reason: str) -> str:
    """Return what an error says beyond the reason."""
    known = error.expected in error.message
    expected = "" if known else f"expected {_line(error.expected)}"
    if not error.field and error.message == reason:
        return expected
    place = f"{_line(error.field)}: " if error.field else ""
    return f"{place}{_line(error.message)}{f' ({expected})' if expected else ''}"


def _line(text: str) -> str:
    """Return foreign text on one line, without invisible characters."""
    line = " ".join(neutralise(text)[0].split())
    return line if len(line) <= _MAX_LINE else line[: _MAX_LINE - 1] + "…"
