"""Schema conformance: arguments at every boundary pass, and every single violation is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from counterseal.codes import Code
from counterseal.evaluation.cases import (
    CaseKind,
    EvaluationMode,
    GeneratedCase,
    always,
    ended,
    expect,
)
from counterseal.evaluation.scratch import Subject
from counterseal.evaluation.values import Variant, boundaries, single_violations

SHAPE: Final = (
    Code.SYNTACTIC_PARSE_FAIL,
    Code.STRUCTURAL_VIOLATION,
    Code.TYPE_MISMATCH,
    Code.OUT_OF_BOUNDS,
)
"""The codes of the gates that look at the shape of arguments."""


def _cases(subject: Subject) -> Iterator[GeneratedCase]:
    schema, good = subject.contract.affordance.input_schema, subject.good.arguments

    async def succeeds(arguments: Mapping[str, Any]) -> None:
        async with subject.scratch() as scratch:
            end = await scratch.carry_out(arguments)
        expect(end.ok, f"the good call ended with {ended(end)}")

    if not subject.good.problem:
        yield GeneratedCase(
            name="the good call succeeds",
            why=f"its arguments are {subject.good.source}",
            run=succeeds,
            arguments=good,
            kind=CaseKind.SUCCESS,
        )
    for variant in boundaries(schema, good):
        yield _accepted(subject, variant)
    for variant in single_violations(schema, good):
        yield _refused(subject, variant)
    yield _refused(subject, Variant("the arguments are not JSON", "", good), raw='{"a": ')


def _accepted(subject: Subject, variant: Variant) -> GeneratedCase:
    async def run(arguments: Mapping[str, Any]) -> None:
        async with subject.scratch() as scratch:
            end = await scratch.submit(arguments)
        expect(end.code not in SHAPE, f"refused with {ended(end)}, although it fits the schema")

    return GeneratedCase(
        name=f"{variant.name}: accepted",
        why=f"input_schema{variant.place}",
        run=run,
        arguments=variant.value,
    )


def _refused(subject: Subject, variant: Variant, raw: str = "") -> GeneratedCase:
    async def run(arguments: Mapping[str, Any]) -> None:
        async with subject.scratch() as scratch:
            end = await scratch.submit(raw or arguments)
            expect(not scratch.executions, f"executed, with the code {end.code.value}")
        expect(end.code in SHAPE, f"ended with {ended(end)}; expected a refusal by its shape")
        named = [error.field for error in end.errors]
        path = variant.place
        fits = any(place and (path.startswith(place) or place.startswith(path)) for place in named)
        whole = not path or path.count("/") == 1
        expect(raw != "" or fits or whole, f"the refusal does not name {path}: {named}")

    return GeneratedCase(
        name=f"{variant.name}: refused",
        why=f"input_schema{variant.place}",
        run=run,
        arguments=variant.value,
        kind=CaseKind.BAD_ARGUMENT,
        shrinks=False,
    )


MODE: Final = EvaluationMode(
    name="schema",
    purpose="Arguments at every boundary pass the schema; every single violation is refused.",
    why_not=always,
    cases=_cases,
    needs_good_call=False,
)
