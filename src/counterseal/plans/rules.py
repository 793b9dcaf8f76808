"""Plan rules: conditions on a whole plan, across tools; and reading them from files.

They are given to the runtime, have ids of their own, and are never part of a contract.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator

from counterseal.canonical import thaw
from counterseal.contract.invariants import ProposedCall, require_sync
from counterseal.documents import read_document
from counterseal.errors import ContractError, ExpressionError, Problem, Source
from counterseal.expressions import Expression
from counterseal.policy import PolicyError
from counterseal.policy.policy_files import Section
from counterseal.policy.policy_rules import FUNCTIONS, uses

FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "run": frozenset({"id", "objective", "allowed_tools", "state", "config"}),
    "principal": frozenset({"tenant", "user", "agent", "roles", "scopes", "risk_level"}),
}
NAMES: Final = ("steps", *FIELDS)
"""What a rule can see: the kept steps, the run, and the principal."""

_FIXES: Final = {
    "id": "Broken rules are named by it.",
    "rule": "Say it in words; the planner reads them.",
    "when": "Leave it out for a rule about every plan.",
    "check": "Say what a plan must be like, in CEL.",
}
"""The fields of a rule in a file, and how to repair each."""
_WORD = re.compile(r"[A-Za-z]\w*")
_log = logging.getLogger("counterseal")

PlanCheck = Callable[[tuple[ProposedCall, ...], Mapping[str, Any]], bool]


class PlanningError(PolicyError):
    """Plan rules are invalid. `problems` says where, and what is wrong."""


class PlanRule(BaseModel):
    """A rule across tools: `when` selects plans, `check` is the condition that they must meet.

    Both are CEL over `steps`, `run` and `principal`, or functions of (steps, facts). Errors count
    against the plan: a `when` that fails applies, a `check` that fails is broken.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    id: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,127}$")
    rule: str = Field(min_length=1, max_length=500)
    """In plain words; the planner reads it."""
    check: Annotated[str | PlanCheck, Field(union_mode="left_to_right")]
    when: Annotated[str | PlanCheck | None, Field(union_mode="left_to_right")] = None

    _compiled: dict[str, Expression] = PrivateAttr(default_factory=dict)

    @field_validator("check", "when")
    @classmethod
    def _compiles(cls, value: Any) -> Any:
        if isinstance(value, str):
            _condition(value)
        else:
            require_sync("a plan rule", value)
        return value

    def model_post_init(self, context: Any, /) -> None:
        for name in ("check", "when"):
            text = getattr(self, name)
            if isinstance(text, str):
                self._compiled[name] = _condition(text)

    def broken_by(self, steps: tuple[ProposedCall, ...], facts: Mapping[str, Any]) -> bool:
        """Return True if a plan of these steps breaks the rule."""
        applies = self.when is None or self._holds("when", steps, facts, on_error=True)
        return applies and not self._holds("check", steps, facts, on_error=False)

    def _holds(
        self,
        name: str,
        steps: tuple[ProposedCall, ...],
        facts: Mapping[str, Any],
        *,
        on_error: bool,
    ) -> bool:
        try:
            if name in self._compiled:
                listed = [{"tool": step.tool, "arguments": thaw(step.arguments)} for step in steps]
                return self._compiled[name].holds({**facts, "steps": listed})
            # Copies, so that a rule can't change what the next one sees.
            own = tuple(
                ProposedCall(step.tool, MappingProxyType(thaw(step.arguments))) for step in steps
            )
            result = getattr(self, name)(own, thaw(facts))
            if isinstance(result, bool):
                return result
            reason = f"returned {type(result).__name__}, not true or false"
        except Exception as error:  # noqa: BLE001 - a rule's function may raise anything
            reason = f"{type(error).__name__}: {error}"
        _log.warning(
            "plan rule %s: %s failed, which counts against the plan: %s", self.id, name, reason
        )
        return on_error


def _condition(text: str) -> Expression:
    """Return the compiled expression. ValueError says why it can't be used."""
    try:
        expression = Expression(text, names=NAMES)
    except ExpressionError as error:
        raise ValueError(f"the expression is refused: {error}") from None
    used = uses(text)
    for name, known in FIELDS.items():
        wrong = sorted((used.get(name) or frozenset()) - known)
        if wrong:
            raise ValueError(f"{name} has no {wrong[0]}; it has {', '.join(sorted(known))}")
    unknown = sorted(expression.functions - FUNCTIONS)
    missing = [name for name in unknown if _WORD.fullmatch(name)]
    if missing:
        raise ValueError(f"there is no function {missing[0]}")
    return expression


# --- reading rules --------------------------------------------------------------------------------


def load_plan_rules(*paths: str | Path) -> tuple[PlanRule, ...]:
    """Return the plan rules of these files. PlanningError holds the problems of all of them."""
    rules: list[tuple[PlanRule, Source | None]] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            file = read_document(path)
        except ContractError as error:
            problems += error.problems
            continue
        what = "a file of plan rules"
        document = Section(file, file.data, what, ("plan_rules",), rule="plan-rule-invalid")
        if document.sound and "plan_rules" not in document.data:
            document.problem(f"{what} has none", "Begin with `plan_rules:`.")
        for item in document.sections("plan_rules", "a plan rule", tuple(_FIXES)):
            rule = _read_rule(item)
            if rule is not None:
                rules.append((rule, item.source))
        problems += document.problems
    problems += _repeated(rules)
    if problems:
        raise PlanningError(problems)
    return tuple(rule for rule, _ in rules)


def _read_rule(item: Section) -> PlanRule | None:
    wanted = [name for name in _FIXES if name != "when" or "when" in item.data]
    texts = {name: item.text(name, _FIXES[name]) for name in wanted}
    present = {name: text for name, text in texts.items() if text}
    try:
        rule = PlanRule.model_validate(present)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_input=False):
            name = str(detail["loc"][0])
            message = f"{name}: {detail['msg'][:1].lower()}{detail['msg'][1:]}"
            if detail["type"] == "value_error":
                message = f"{name}: {detail['ctx']['error']}"
            elif detail["type"] == "string_pattern_mismatch":
                characters = "letters, digits, '.', '_' and '-'"
                message = f"an id is made of {characters}, and begins with a letter"
            if name in present:  # a missing field is reported already
                item.problem(message, "", name)
        return None
    return rule if item.sound else None


def distinct(rules: Iterable[PlanRule]) -> tuple[PlanRule, ...]:
    """Return the rules as a tuple. Raises PlanningError if two have the same id."""
    listed = tuple(rules)
    problems = _repeated((rule, None) for rule in listed)
    if problems:
        raise PlanningError(problems)
    return listed


def _repeated(rules: Iterable[tuple[PlanRule, Source | None]]) -> list[Problem]:
    first: dict[str, Source | None] = {}
    problems = []
    for rule, source in rules:
        if rule.id in first:
            at = f" by the rule at {first[rule.id]}" if first[rule.id] else " by another rule"
            problems.append(
                Problem(
                    rule="plan-rule-invalid",
                    message=f"the id {rule.id} is taken{at}",
                    fix="Give each plan rule an id of its own.",
                    source=source,
                )
            )
        first.setdefault(rule.id, source)
    return problems
