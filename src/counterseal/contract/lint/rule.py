"""A lint rule: an id, a severity, a summary, and a function that finds breaches.

Rules register themselves in `RULES`, from which `lint` runs them and the documentation lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from counterseal.canonical import pointer
from counterseal.contract.model import Contract
from counterseal.errors import Problem, Severity


@dataclass(frozen=True, slots=True)
class Breach:
    pointer: str
    message: str
    fix: str = ""


def breach(place: str | tuple[str | int, ...], message: str, fix: str = "") -> Breach:
    """Return a breach at a JSON Pointer, given as text or in parts."""
    return Breach(place if isinstance(place, str) else pointer(*place), message, fix)


Finder = Callable[[Contract], Iterable[Breach]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LintRule:
    id: str
    severity: Severity
    summary: str
    find: Finder

    def problems(self, contract: Contract) -> Iterable[Problem]:
        for item in self.find(contract):
            yield Problem(
                rule=self.id,
                severity=self.severity,
                tool=contract.name,
                pointer=item.pointer,
                message=item.message,
                fix=item.fix,
            )


RULES: dict[str, LintRule] = {}


def rule(rule_id: str, summary: str, *, warning: bool = False) -> Callable[[Finder], Finder]:
    """Register a rule. `summary` completes the sentence "a contract's …"."""

    def register(find: Finder) -> Finder:
        severity = Severity.WARNING if warning else Severity.ERROR
        RULES[rule_id] = LintRule(id=rule_id, severity=severity, summary=summary, find=find)
        return find

    return register
