"""Compensation: what a call did can be undone, once, and a reversal that fails is reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from counterseal.contract.fill import TemplateError, differences, expected_state
from counterseal.contract.schemas import compile_schema
from counterseal.evaluation.cases import (
    Arguments,
    CaseKind,
    CaseRun,
    EvaluationMode,
    GeneratedCase,
    NotTriedError,
    ended,
    expect,
)
from counterseal.evaluation.scratch import Scratch, Subject
from counterseal.operations.attention import NeedsAttention
from counterseal.reconcile import Reconciler

_PASSES: Final = 16
"""Passes of the reconciler in which a reversal is carried out or given up."""


def _why_not(subject: Subject) -> str:
    undo = subject.contract.transactional.compensation_tool
    return "" if undo else "the contract names no compensation tool"


def _cases(subject: Subject) -> Iterator[GeneratedCase]:
    why = f"compensation_tool: {subject.contract.transactional.compensation_tool}"
    for name, run, kind in (
        ("it is undone once", _undone(subject), None),
        ("its effect is gone afterwards", _gone(subject), None),
        ("a reversal that fails needs attention", _fails(subject), CaseKind.FAILURE),
    ):
        arguments = subject.good.arguments
        yield GeneratedCase(name=name, why=why, run=run, arguments=arguments, kind=kind)


def _undo_name(subject: Subject) -> str:
    return subject.contract.transactional.compensation_tool or ""


async def _reverse(scratch: Scratch, arguments: Arguments) -> list[str]:
    """Carry the call out and reverse it; return what the reconciler reports of its passes."""
    tenant = scratch.subject.caller.tenant
    end = await scratch.carry_out(arguments)
    expect(end.ok, f"the call to undo ended with {ended(end)}")
    people = NeedsAttention(scratch.runtime, by="evaluation")
    await people.compensate(tenant, end.call_id, reason="Evaluated.")
    words: list[str] = []
    for _ in range(_PASSES):
        words += await Reconciler(scratch.runtime).once()
        if "compensated" in words or "compensation_failed" in words:
            break
        for held in await scratch.runtime.approvals.list(tenant):
            await scratch.approve(held.approval_id)
        scratch.clock.advance(600)
    return words


def _undone(subject: Subject) -> CaseRun:
    async def run(arguments: Arguments) -> None:
        undo = _undo_name(subject)
        async with subject.scratch() as scratch:
            words = await _reverse(scratch, arguments)
            made = [one for one in scratch.executed if one.tool == undo]
            expect("compensated" in words, f"the reversal did not end; the reconciler says {words}")
            expect(len(made) == 1, f"{undo} was executed {len(made)} times")
            schema = scratch.runtime.registry.versions(undo)[0].contract.affordance.input_schema
            fits = compile_schema(schema).is_valid(dict(made[0].arguments))
            expect(fits, f"{undo} was called with {dict(made[0].arguments)}")

    return run


def _gone(subject: Subject) -> CaseRun:
    async def run(arguments: Arguments) -> None:
        contract = subject.contract
        if contract.probe is None:
            raise NotTriedError("the contract has no probe that could show whether it is undone")
        async with subject.scratch() as scratch:
            before = await scratch.look(arguments)
            await _reverse(scratch, arguments)
            after = await scratch.look(arguments)
            made = next(one for one in scratch.executed if one.tool == subject.name)
        output = made.output if isinstance(made.output, Mapping) else _fields(made.output)
        try:
            expected = expected_state(contract, arguments, output)
        except TemplateError:
            expected = None
        if expected is None:
            names = (before or {}).keys() - {"version"}
            expected = {}
            same = {name: (before or {})[name] for name in names} == {
                name: (after or {}).get(name) for name in names
            }
            expect(same, f"before the call the probe found {before}, after its reversal {after}")
            return
        was = not differences(expected, before or {})
        still = after is not None and not differences(expected, after)
        expect(
            was or not still,
            f"after {_undo_name(subject)} the probe still finds what the call did: {after}",
        )

    return run


def _fields(output: Any) -> Mapping[str, Any]:
    dump = getattr(output, "model_dump", None)
    plain = dump(mode="json") if callable(dump) else {}
    return plain if isinstance(plain, Mapping) else {}


def _fails(subject: Subject) -> CaseRun:
    async def run(arguments: Arguments) -> None:
        async def broken(_number: int, _inner: Any) -> Any:
            raise RuntimeError("the reversal fails")

        async with subject.scratch(undo_proxy=broken) as scratch:
            words = await _reverse(scratch, arguments)
            concerns = await scratch.runtime.store.concerns(subject.caller.tenant)
        expect("compensated" not in words, "a reversal that failed is called compensated")
        expect(concerns, "a reversal that failed is not listed under Needs attention")

    return run


MODE: Final = EvaluationMode(
    name="compensation",
    purpose="The compensation tool undoes what the call did, once; a failed reversal is reported.",
    why_not=_why_not,
    cases=_cases,
)
