"""Semantic rules: each invariant broken alone, each corrector followed to its end.

Normalizers of config params are tried here, too: they must lose nothing, and change nothing when
they are applied again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice, product
from typing import Any, Final

from counterseal.canonical import thaw
from counterseal.codes import Code
from counterseal.contract.invariants import DROP_STEP, Invariant, ProposedCall
from counterseal.contract.schemas import compile_schema
from counterseal.contract.tool_context import ConfigParam, resolve_config
from counterseal.evaluation.cases import (
    CaseKind,
    EvaluationMode,
    GeneratedCase,
    NotTriedError,
    ended,
    expect,
)
from counterseal.evaluation.samples import argument_changes, holds_for, rule_literals
from counterseal.evaluation.scratch import Subject

_MOST: Final = 5_000
"""Calls that are tried to find one that breaks a rule alone."""
_ROUNDS: Final = 10
"""How often a corrector may have to be applied."""
_PROBES: Final[tuple[Any, ...]] = (
    {"a": 1, "b": "Text ", "c": [1, 2]},
    ["x", "y", "x"],
    " Text ",
    7,
)
"""Values for normalizers of params without a default."""


def _why_not(subject: Subject) -> str:
    contract = subject.contract
    if contract.invariants or any(param.normalizer for param in contract.config_params):
        return ""
    return "the contract declares no invariants and no normalizers"


def _cases(subject: Subject) -> Iterator[GeneratedCase]:
    contract, good = subject.contract, subject.good
    for rule in contract.invariants:
        yield GeneratedCase(
            name=f"{rule.id} broken alone",
            why=f"invariant {rule.id}: {rule.rule}",
            run=_broken(subject, rule),
            arguments=good.arguments,
            kind=None if rule.correct is not None or rule.asks else CaseKind.DENIAL,
            shrinks=False,
        )
        if callable(rule.correct) or rule.correct is not None:
            yield GeneratedCase(
                name=f"the corrector of {rule.id} comes to an end",
                why=f"invariant {rule.id}: {rule.rule}",
                run=_corrected(subject, rule),
                arguments=good.arguments,
                shrinks=False,
            )
    for param in contract.config_params:
        if param.normalizer is not None:
            yield GeneratedCase(
                name=f"the normalizer of {param.key} loses nothing",
                why=f"config param {param.key}",
                run=_normalized(param),
                arguments=good.arguments,
                shrinks=False,
            )


# --- invariants -----------------------------------------------------------------------------------


def _facts(subject: Subject) -> dict[str, Any]:
    return {"principal": subject.caller, "now": datetime.fromtimestamp(subject.now, UTC)}


def _breaking(subject: Subject, rule: Invariant) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return arguments and a target that break this rule and no other one."""
    contract, good, facts = subject.contract, subject.good, _facts(subject)
    config = resolve_config(contract.config_params, None, {})
    fits = compile_schema(contract.affordance.input_schema).is_valid

    def breaks(arguments: Mapping[str, Any], target: Mapping[str, Any] | None) -> bool:
        call = ProposedCall(contract.name, arguments)
        return fits(arguments) and all(
            holds_for(one, call, target, facts, config) is (one is not rule)
            for one in contract.invariants
        )

    base, target = dict(good.arguments), None if good.target is None else dict(good.target)
    if target is not None and rule.of_target and not subject.real:
        for name, other in product(target, [*rule_literals(rule), None, "", 0, [], "other"]):
            if breaks(base, changed := {**target, name: other}):
                return base, changed
    tried = islice(argument_changes(contract, base), _MOST)
    for arguments in (*([base] if not rule.of_target else []), *tried):
        if breaks(arguments, target):
            return arguments, target
    raise NotTriedError(f"no generated call breaks {rule.id} and no other rule")


def _broken(subject: Subject, rule: Invariant) -> Any:
    async def run(_arguments: Mapping[str, Any]) -> None:
        arguments, target = _breaking(subject, rule)
        async with subject.scratch(target=target) as scratch:
            end = await scratch.submit(arguments)
            done = scratch.executed[-1].arguments if scratch.executions else None
        given = f"with {arguments}" + ("" if target is None else f" and the target {target}")
        if rule.correct is not None:
            call = ProposedCall(rule.id, done or {})
            wrong = done is not None and not _holds(subject, rule, call, target)
            expect(not wrong, f"executed with {done}, which breaks {rule.id}")
            return
        expect(done is None or rule.asks, f"executed {given}")
        if rule.asks:
            asked = end.code in (Code.CONFIRMATION_MISSING, Code.POLICY_VIOLATION)
            expect(
                asked and done is None,
                f"ended with {ended(end)} {given}; expected a request for approval",
            )
            return
        expect(
            end.code is Code.SEMANTIC_INVALIDITY,
            f"ended with {ended(end)} {given}; expected SEMANTIC_INVALIDITY",
        )
        named = any(rule.id == error.code or rule.rule in error.message for error in end.errors)
        expect(named, f"the refusal does not say which rule is broken: {ended(end)}")

    return run


def _holds(
    subject: Subject, rule: Invariant, call: ProposedCall, target: Mapping[str, Any] | None
) -> bool:
    config = resolve_config(subject.contract.config_params, None, {})
    return holds_for(rule, call, target, _facts(subject), config)


def _corrected(subject: Subject, rule: Invariant) -> Any:
    async def run(_arguments: Mapping[str, Any]) -> None:
        contract = subject.contract
        arguments, target = _breaking(subject, rule)
        config = resolve_config(contract.config_params, None, {})
        fits = compile_schema(contract.affordance.input_schema).is_valid
        call, rounds = ProposedCall(contract.name, arguments), 0
        while not _holds(subject, rule, call, target):
            fixed = rule.fix(call, {}, config)
            if fixed is None or fixed is DROP_STEP or not isinstance(fixed, ProposedCall):
                return  # it says that it can't help, or drops the step
            rounds += 1
            expect(
                fixed != call and rounds <= _ROUNDS,
                f"given {arguments}, the corrector never satisfies its own rule;"
                f" after {rounds} corrections the call is {dict(fixed.arguments)}",
            )
            call = fixed
            expect(
                fits(thaw(call.arguments)),
                f"given {arguments}, the corrector makes {dict(call.arguments)},"
                " which does not fit the input schema",
            )
        async with subject.scratch(target=target) as scratch:
            end = await scratch.carry_out(arguments)
        refused = (Code.SEMANTIC_INVALIDITY, Code.UNKNOWN_ERROR)
        expect(
            end.code not in refused,
            f"given {arguments}, the corrected call still ended with {ended(end)}",
        )

    return run


# --- normalizers ----------------------------------------------------------------------------------


def _normalized(param: ConfigParam) -> Any:
    async def run(_arguments: Mapping[str, Any]) -> None:
        given = _PROBES if param.default is None else (thaw(param.default),)
        tried = 0
        for value in given:
            try:
                once = param.normalize(value)
                twice = param.normalize(once)
            except Exception as error:  # noqa: BLE001 - a normalizer is the author's code
                what = f"given {value!r}, it raised {type(error).__name__}: {error}"
                expect(param.default is None, what)
                continue  # a value of another kind than it is for
            tried += 1
            expect(once == twice, f"given {value!r}, it returns {once!r} and then {twice!r}")
            lost = _lost(value, once)
            expect(not lost, f"given {value!r}, it returns {once!r}: {lost} is lost")
        if not tried:
            raise NotTriedError(f"{param.key} has no default, and no usual value can be normalized")

    return run


def _lost(before: Any, after: Any) -> str:
    """Return a key or an item that a normalizer has dropped; empty if there is none."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return next((str(name) for name in before if name not in after), "")
    if isinstance(before, list) and isinstance(after, list | tuple):
        return "" if len(set(map(repr, before))) <= len(after) else "an item"
    return ""


MODE: Final = EvaluationMode(
    name="semantics",
    purpose="Each invariant, broken alone, refuses, corrects or asks; correctors come to an end.",
    why_not=_why_not,
    cases=_cases,
)
