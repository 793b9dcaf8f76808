"""The observation contract: whatever a tool answers, the agent gets what the contract promises.

An observation is an error, or its data fits the output schema. Secrets, personal data and raw
errors stay out of it, and it keeps its size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from pydantic_core import to_json

from counterseal.canonical import pointer, thaw
from counterseal.codes import Code
from counterseal.contract.model import Contract
from counterseal.contract.outputs import Partial
from counterseal.contract.schemas import Validator, compile_schema, model_schema
from counterseal.evaluation.cases import (
    Arguments,
    CaseKind,
    CaseRun,
    EvaluationMode,
    GeneratedCase,
    NotTriedError,
    always,
    ended,
    expect,
)
from counterseal.evaluation.modes.faults import RAW
from counterseal.evaluation.samples import put_text, text_places
from counterseal.evaluation.scratch import Inner, Scratch, Subject
from counterseal.evaluation.values import single_violations
from counterseal.observation import Observation
from counterseal.observation.envelope import ObservationEnvelope

_VIOLATIONS: Final = 20
_KEY: Final = "AKIAIOSFODNN7EXAMPLE"
"""A credential in a known form."""
_OVERHEAD: Final = 4096
"""Bytes of text for a model around its data."""


class _NotJson:
    """A value that has no JSON form."""


_GARBAGE: Final[tuple[tuple[str, Any], ...]] = (
    ("nothing", None),
    ("a text", "<html>502 Bad Gateway</html>"),
    ("a list", [1, "two", None]),
    ("an object that is not JSON", _NotJson()),
    ("a number that is not finite", {"value": float("nan")}),
    ("bytes", b"\xff\xfe"),
)


def _cases(subject: Subject) -> Iterator[GeneratedCase]:
    own = subject.contract.affordance.output_schema
    yield _case(subject, "its own answer fits, and holds no secret", "output_schema", _own(subject))
    for name, value in _GARBAGE:
        run = _answered(subject, _always(value))
        yield _case(subject, f"it answers with {name}", "output_schema", run, CaseKind.FAILURE)
    good = subject.good.output
    for variant in islice(single_violations(own, good), _VIOLATIONS) if _is_object(good) else ():
        run = _answered(subject, _always(variant.value))
        yield _case(subject, f"its answer: {variant.name}", f"output_schema{variant.place}", run)
    yield _case(subject, "it answers with far too much", "max_output_bytes", _oversize(subject))
    yield _case(subject, "its answer holds a credential", "redaction", _credential(subject))
    for name in subject.contract.secrets:
        yield _case(subject, f"its answer holds the secret {name}", "secrets", _leak(subject, name))
    yield _case(subject, "it is done in part", "partial success", _partial(subject))
    failed = _raised(subject)
    yield _case(subject, "it raises an exception", "error_contract", failed, CaseKind.FAILURE)


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda _output: value


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _case(
    subject: Subject, name: str, why: str, run: CaseRun, kind: CaseKind | None = None
) -> GeneratedCase:
    arguments = subject.good.arguments
    return GeneratedCase(name=name, why=why, run=run, arguments=arguments, kind=kind)


@lru_cache(maxsize=1)
def _envelope() -> Validator:
    return compile_schema(model_schema(ObservationEnvelope, title="ObservationObject"))


def check(contract: Contract, seen: Observation) -> None:
    """Fail unless an observation is what the contract promises."""
    error = next(_envelope().iter_errors(seen.envelope()), None)
    expect(error is None, f"its envelope is not valid: {error and error.message}")
    if seen.code is Code.SUCCESS and not (seen.data or {}).get("truncated"):
        valid = compile_schema(contract.affordance.output_schema)
        wrong = next(valid.iter_errors(thaw(seen.data)), None)
        place = "" if wrong is None else pointer(*wrong.instance_path)
        expect(
            wrong is None or seen.redactions,
            f"SUCCESS with data that does not fit the output schema at {place or 'the top'}:"
            f" {wrong and wrong.message}",
        )
    size = len(seen.for_model().encode())
    most = contract.max_output_bytes + _OVERHEAD
    expect(size <= most, f"the text for the model has {size} bytes; {most} are allowed")


async def _seen(subject: Subject, arguments: Arguments, proxy: Any) -> tuple[Observation, Scratch]:
    async with subject.scratch(proxy=proxy) as scratch:
        end = await scratch.carry_out(arguments)
        expect(scratch.reached, f"the tool was not reached: {ended(end)}")
        if subject.contract.idempotency.required and not end.retry:
            await scratch.submit(arguments)
            expect(scratch.reached == 1, "it was executed again after an answer of this kind")
    return end, scratch


def _answered(subject: Subject, change: Callable[[Any], Any]) -> CaseRun:
    async def run(arguments: Arguments) -> None:
        async def proxy(_number: int, inner: Inner) -> Any:
            return change(await inner())

        end, _ = await _seen(subject, arguments, proxy)
        check(subject.contract, end)

    return run


def _own(subject: Subject) -> CaseRun:
    async def run(arguments: Arguments) -> None:
        end, scratch = await _seen(subject, arguments, None)
        expect(end.ok, f"the good call ended with {ended(end)}")
        check(subject.contract, end)
        for one in scratch.executed:
            text = to_json(one.output, fallback=repr).decode()
            leaked = [
                name
                for name, value in one.injected.items()
                if isinstance(value, str) and len(value) > 7 and value in text
            ]
            expect(not leaked, f"its output holds the secret of the parameter {leaked}; masked")

    return run


def _with_text(subject: Subject, text: str, check_end: Callable[[Observation], None]) -> CaseRun:
    """Put a text into the output, and check the observation with `check_end`."""

    async def run(arguments: Arguments) -> None:
        place, placed = next(iter(text_places(subject.good.output)), None), False

        async def proxy(_number: int, inner: Inner) -> Any:
            nonlocal placed
            output = json.loads(to_json(await inner()))
            changed = output if place is None else put_text(output, place, text)
            placed = changed != output
            return changed

        end, _ = await _seen(subject, arguments, proxy)
        if not placed:
            raise NotTriedError(f"its answer has no text{'' if place is None else f' at {place}'}")
        check_end(end)

    return run


def _oversize(subject: Subject) -> CaseRun:
    text = "x" * (2 * subject.contract.max_output_bytes)
    return _with_text(subject, text, lambda end: check(subject.contract, end))


def _hidden(subject: Subject, text: str, what: str) -> CaseRun:
    def shown(end: Observation) -> None:
        seen = f"{end.for_model()}{json.dumps(end.record())}"
        expect(text not in seen, f"{what} reached the agent")

    return _with_text(subject, f"see {text} here", shown)


def _credential(subject: Subject) -> CaseRun:
    return _hidden(subject, _KEY, "a credential in a known form")


def _leak(subject: Subject, name: str) -> CaseRun:
    async def run(arguments: Arguments) -> None:
        async with subject.scratch() as scratch:
            await scratch.carry_out(arguments)
        values = [value for one in scratch.executed for value in one.injected.values()]
        texts = [value for value in values if isinstance(value, str)]
        if not texts:
            raise NotTriedError(f"its function does not take the secret {name} as a parameter")
        for text in texts:
            await _hidden(subject, text, f"the secret {name}")(arguments)

    return run


def _partial(subject: Subject) -> CaseRun:
    async def run(arguments: Arguments) -> None:
        async def proxy(_number: int, inner: Inner) -> Any:
            await inner()
            return Partial(completed=["first"], failed=["second"])

        end, _ = await _seen(subject, arguments, proxy)
        check(subject.contract, end)
        expect(end.code is not Code.SUCCESS, "work that was done in part is called a success")
        told = end.code is not Code.PARTIAL_SUCCESS or end.warnings
        expect(told, "a partial success does not say what failed")

    return run


def _raised(subject: Subject) -> CaseRun:
    async def run(arguments: Arguments) -> None:
        async def proxy(_number: int, _inner: Inner) -> Any:
            raise RuntimeError(RAW)

        async with subject.scratch(proxy=proxy) as scratch:
            end = await scratch.carry_out(arguments)
        expect(not end.ok, "an exception is called a success")
        check(subject.contract, end)
        expect(RAW not in end.for_model(), "the text of the exception reached the model")

    return run


MODE: Final = EvaluationMode(
    name="observation",
    purpose="Garbage, oversize, secrets, exceptions and partial work do not reach the agent raw.",
    why_not=always,
    cases=_cases,
)
