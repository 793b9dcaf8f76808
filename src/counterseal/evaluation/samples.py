"""The good call of a tool: arguments that its rules accept, the target they fit, and an output.

Arguments come from the project's declaration, else from the examples of the contract, else they are
generated from its schemas until some satisfy its rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice, product
from typing import Any, Final

from counterseal.canonical import at, pointer, steps, thaw
from counterseal.contract.invariants import Invariant, ProposedCall
from counterseal.contract.model import Contract
from counterseal.contract.schemas import compile_schema, listed, properties_of
from counterseal.evaluation.values import NoValueError, choices, fitting

_MOST: Final = 20_000
"""Combinations that a search tries."""
_TEXT: Final = re.compile(r"'([^'\\]*)'|\"([^\"\\]*)\"|(?<![\w.])(\d+(?:\.\d+)?)")
_TARGET_FIELD: Final = re.compile(r"(?<![\w.])target\.([A-Za-z_]\w*)")
_STATE_FIELD: Final = re.compile(r"\{state\.([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodCall:
    """A call that should succeed, with the state that its probe finds and the output it returns."""

    arguments: Mapping[str, Any]
    target: Mapping[str, Any] | None = None
    output: Any = None
    problem: str = ""
    """Why no good call was found; the modes that need one are not tried. Empty if this is one."""
    source: str = "generated"
    """Where its arguments come from: declared, an example, or generated."""


def good_calls(
    contract: Contract,
    declared: Mapping[str, Any],
    *,
    facts: Mapping[str, Any],
    config: Mapping[str, Any],
    conditions: Iterable[str] = (),
    made_up: bool = True,
) -> Iterator[GoodCall]:
    """Yield good calls of a tool, the simplest first; only generated arguments are varied.

    `facts` are the principal and the time, and `conditions` those of policy rules about the tool.
    Without `made_up`, the tool's own function and probe run: no target is made, and an output only
    for its fields.
    """
    texts = [*_checks(contract), *conditions]
    output, problem = declared.get("output"), ""
    if output is None:
        try:
            output = fitting(contract.affordance.output_schema)
        except NoValueError as error:
            problem = f"no output could be made: {error}" if made_up else ""
    for source, arguments in _arguments(contract, declared, facts, config, _literals(texts)):
        if isinstance(arguments, NoValueError):
            yield GoodCall(arguments={}, problem=str(arguments), output=output)
            return
        target, wrong = declared.get("target"), problem
        if target is None and contract.probe is not None and made_up:
            call = ProposedCall(contract.name, arguments)
            target = _target(contract, call, facts, config, texts)
            wrong = wrong or ("" if target else "no state of the target satisfies its rules")
        yield GoodCall(
            arguments=arguments, target=target, output=output, problem=wrong, source=source
        )


def _arguments(
    contract: Contract,
    declared: Mapping[str, Any],
    facts: Mapping[str, Any],
    config: Mapping[str, Any],
    literals: list[Any],
) -> Iterator[tuple[str, Any]]:
    """Yield the source of arguments with the arguments, or with the error if none can be made."""
    examples = contract.affordance.examples
    if "arguments" in declared:
        yield "declared", thaw(declared["arguments"])
    elif examples:
        yield from (("an example", thaw(example.arguments)) for example in examples)
    else:
        try:
            for arguments in _search(contract, facts, config, literals):
                yield "generated", arguments
        except NoValueError as error:
            yield "generated", error


def output_for(
    contract: Contract, sample: Any, arguments: Mapping[str, Any], target: Mapping[str, Any] | None
) -> Any:
    """Return a stub's output: the sample, with arguments and version in fields that repeat them."""
    if not isinstance(sample, Mapping):
        return thaw(sample)
    fits = compile_schema(contract.affordance.output_schema).is_valid
    made = dict(thaw(sample))
    for name in properties_of(contract.affordance.output_schema):
        if name in made and name in arguments and fits({**made, name: arguments[name]}):
            made[name] = thaw(arguments[name])
    version, place = (target or {}).get("version"), steps(contract.version_from or "")
    if (
        version is not None
        and len(place) == 1
        and at(made, contract.version_from or "") is not None
    ):
        made[place[0]] = version
    return made


def text_places(output: Any) -> list[str]:
    """Return JSON Pointers to the texts of an output; of a list, to those of its first item."""
    found: list[str] = []
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), output)]
    while waiting:
        where, value = waiting.pop(0)
        if isinstance(value, str):
            found.append(pointer(*where))
        elif isinstance(value, Mapping):
            waiting += [((*where, name), item) for name, item in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [((*where, number), item) for number, item in enumerate(value[:1])]
    return found


def put_text(value: Any, place: str, text: str) -> Any:
    """Return plain JSON data with a text at a place; unchanged if it has no such place."""
    first, *rest = steps(place) or [""]
    if not place:
        return text
    inner = pointer(*rest)
    if isinstance(value, dict) and first in value:
        return {**value, first: put_text(value[first], inner, text)}
    if isinstance(value, list) and value:
        return [put_text(value[0], inner, text), *value[1:]]
    return value


def other_arguments(contract: Contract, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return other valid arguments, with the same business key if one is declared."""
    key = {name: arguments.get(name) for name in contract.business_key}
    fits = compile_schema(contract.affordance.input_schema).is_valid
    others = [
        one
        for one in islice(argument_changes(contract, dict(arguments)), 500)
        if one != arguments and fits(one)
    ]
    near = (one for one in others if all(one.get(name) == key[name] for name in key))
    return next(near, others[0] if others else None)


def argument_changes(contract: Contract, base: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield variants of the arguments, with one or two of them changed."""
    known = [*_literals(_checks(contract)), *base.values(), 0, 1_000_000]
    near = [value + step for value in known if type(value) is int for step in (-1, 0, 1)]
    literals = [*(one for one in known if type(one) is not int), *dict.fromkeys(near)]
    literals += ["other", "OTHER", "", " ", []]
    return _changes(contract.affordance.input_schema, base, literals)


def _checks(contract: Contract) -> list[str]:
    return [rule.check for rule in contract.invariants if isinstance(rule.check, str)]


def rule_literals(rule: Invariant) -> list[Any]:
    """Return the texts and numbers that a rule compares with, if it is an expression."""
    return _literals([rule.check]) if isinstance(rule.check, str) else []


def _literals(texts: Iterable[str]) -> list[Any]:
    """Return the texts and numbers that conditions compare with."""
    found = chain.from_iterable(_TEXT.findall(text) for text in texts)
    values = [
        (float(number) if "." in number else int(number)) if number else one or two
        for one, two, number in found
    ]
    return list(dict.fromkeys(values))


def _search(
    contract: Contract, facts: Mapping[str, Any], config: Mapping[str, Any], literals: list[Any]
) -> Iterator[dict[str, Any]]:
    """Yield generated arguments that break no rule. NoValueError names a rule that all break."""
    schema = contract.affordance.input_schema
    base: dict[str, Any] = fitting(schema)
    broken = contract.violations(base, {}, config, **facts)
    if not broken:
        yield base
    found, fits = not broken, compile_schema(schema).is_valid
    for changed in islice(_changes(schema, base, literals), _MOST):
        if fits(changed) and not contract.violations(changed, {}, config, **facts):
            found = True
            yield changed
    if not found:
        raise NoValueError(f"no generated arguments satisfy the rule: {broken[0]}")


def _changes(
    schema: Mapping[str, Any], base: dict[str, Any], literals: list[Any]
) -> Iterator[dict[str, Any]]:
    """Yield the arguments with one property changed, then with two of them."""
    names = list(properties_of(schema))
    options = {
        name: [{name: value} for value in (*choices(schema, name), *literals)] for name in names
    }
    for name in names:
        yield from ({**base, **change} for change in options[name])
        if name in base and name not in listed(schema, "required"):
            yield {key: value for key, value in base.items() if key != name}
    for index, first in enumerate(names):
        for second in names[index + 1 :]:
            for one, two in product(options[first], options[second]):
                yield {**base, **one, **two}


def _target(
    contract: Contract,
    call: ProposedCall,
    facts: Mapping[str, Any],
    config: Mapping[str, Any],
    texts: list[str],
) -> dict[str, Any] | None:
    """Return a state of the target that its rules accept; None if none was found."""
    rules = [rule for rule in contract.invariants if rule.of_target]
    code = [rule.check for rule in rules if isinstance(rule.check, str)]
    named = chain.from_iterable(_TARGET_FIELD.findall(text) for text in texts)
    shown = _STATE_FIELD.findall(contract.consequence or "")
    fields = [name for name in dict.fromkeys([*named, *shown]) if name != "version"]
    base = {"version": 1, **dict.fromkeys(shown, "text")}
    if contract.version_argument is not None:
        base["version"] = call.get(contract.version_argument, 1)
    given = [*call.arguments.values(), *_literals(code or texts)]
    values = [*given, *([value] for value in given), "other", True, False]
    for chosen in islice(product(values, repeat=len(fields)), _MOST):
        target = {**base, **dict(zip(fields, chosen, strict=True))}
        if all(holds_for(rule, call, target, facts, config) for rule in rules):
            return target
    return None


def holds_for(
    rule: Invariant,
    call: ProposedCall,
    target: Mapping[str, Any] | None,
    facts: Mapping[str, Any],
    config: Mapping[str, Any],
) -> bool:
    """Return whether a rule accepts a call and its target. A check that raises accepts nothing."""
    try:
        return rule.holds(call, {}, config, {**facts, "target": target})
    except Exception:  # noqa: BLE001 - a check is the author's code
        return False
