"""A lint rule: an id, a severity, a summary, and a function that finds breaches.

Rules register themselves in `RULES`, from which `lint` runs them and the documentation lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from counterseal.canonical import pointer
from counterseal.contract.model import Contract
from counterseal.contract.schemas import properties_of
from counterseal.errors import Problem, Severity

Place = str | tuple[str | int, ...]
"""A JSON Pointer, as text or in parts."""


class Breach(NamedTuple):
    place: Place
    message: str
    fix: str = ""


Finder = Callable[[Contract], Iterable[Breach]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LintRule:
    id: str
    severity: Severity
    summary: str
    find: Finder
    strict: bool = False
    """Whether the rule, else a warning, is an error in a strict project."""

    def problems(self, contract: Contract) -> Iterable[Problem]:
        for place, message, fix in self.find(contract):
            yield Problem(
                rule=self.id,
                severity=self.severity,
                tool=contract.name,
                pointer=place if isinstance(place, str) else pointer(*place),
                message=message,
                fix=fix,
            )


RULES: dict[str, LintRule] = {}


def not_an_argument(contract: Contract, place: Place, name: object) -> Breach:
    """Return the breach of a name that should be one of the tool's arguments."""
    known = ", ".join(sorted(properties_of(contract.affordance.input_schema)))
    fault = f"{name} is not an argument of {contract.name}"
    return Breach(place, fault, f"Use one of: {known or 'none are declared'}.")


def rule(
    rule_id: str, summary: str, *, warning: bool = False, strict: bool = False
) -> Callable[[Finder], Finder]:
    """Register a rule. `summary` completes the sentence "a contract's …".

    A rule with `strict` is a warning, and an error in a strict project.
    """

    def register(find: Finder) -> Finder:
        severity = Severity.WARNING if warning or strict else Severity.ERROR
        RULES[rule_id] = LintRule(
            id=rule_id, severity=severity, summary=summary, find=find, strict=strict
        )
        return find

    return register
