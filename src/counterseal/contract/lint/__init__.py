"""Check contracts: every rule, all findings at once.

`lint` checks a finished contract. `examine` takes raw data, and reports fields that are not valid
together with what lint finds in the rest. Registration refuses every contract with an error here.
Each module of this package has one family of rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from counterseal.canonical import steps, thaw
from counterseal.contract.lint import dangerous_inputs, names, outbound, safeguards, schema_rules
from counterseal.contract.lint.rule import RULES, LintRule
from counterseal.contract.model import Contract
from counterseal.errors import ContractError, Problem, Severity

__all__ = ["RULES", "LintRule", "examine", "lint", "raised"]

_FAMILIES = (names, schema_rules, safeguards, outbound, dangerous_inputs)
"""Importing them fills RULES."""


def lint(contract: Contract, *, strict: bool = False) -> tuple[Problem, ...]:
    """Return everything that is wrong or unwise about a contract: errors first, then by place.

    With `strict`, parameters without a description are errors instead of warnings.
    """
    problems = [problem for rule in RULES.values() for problem in rule.problems(contract)]
    return _sorted(raised(problems) if strict else problems)


def raised(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems with the severity that they have in a strict project."""
    strict = {rule.id for rule in RULES.values() if rule.strict}
    return _sorted(
        replace(problem, severity=Severity.ERROR) if problem.rule in strict else problem
        for problem in problems
    )


def _sorted(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple(sorted(problems, key=lambda p: (p.severity is not Severity.ERROR, p.pointer)))


def examine(data: Mapping[str, Any]) -> tuple[Contract | None, tuple[Problem, ...]]:
    """Return the contract that raw data makes, if it makes one, and all its problems.

    Invalid fields are reported and removed, and the rest is linted, so that an author can fix a
    file in one go. The contract is None when a field was removed.
    """
    try:
        contract = Contract.model_validate(data)
    except ContractError as error:
        stand_in = _without_invalid_fields(data, error.problems)
        name = error.problems[0].tool
        further = [problem.of(name) for problem in lint(stand_in)] if stand_in else []
        failed = tuple(f"{problem.pointer}/" for problem in error.problems)
        more = [problem for problem in further if not f"{problem.pointer}/".startswith(failed)]
        return None, (*error.problems, *more)
    return contract, lint(contract)


def _without_invalid_fields(
    data: Mapping[str, Any], problems: tuple[Problem, ...]
) -> Contract | None:
    """Return the contract without its invalid fields; required ones get a placeholder."""
    try:
        rest = thaw(data)
    except RecursionError:
        return None
    for problem in problems:
        _remove(rest, steps(problem.pointer))
    for section, stand_ins in _STAND_INS.items():
        given = rest.get(section)
        rest[section] = {**stand_ins, **(given if isinstance(given, dict) else {})}
    try:
        return Contract.model_validate(rest)
    except ContractError:
        return None


_STAND_INS: dict[str, dict[str, Any]] = {
    "identity": {"name": "unnamed"},
    "affordance": {"model_description": "-", "input_schema": {"type": "object"}},
}


def _remove(data: Any, parts: list[str]) -> None:
    """Take out what a pointer leads to; a list loses the whole item."""
    for depth, part in enumerate(parts):
        if isinstance(data, list):
            if part.isdigit() and int(part) < len(data):
                data[int(part) : int(part) + 1] = []
            return
        if not isinstance(data, dict) or part not in data:
            return
        if depth == len(parts) - 1 or not isinstance(data[part], dict | list):
            del data[part]
            return
        data = data[part]
