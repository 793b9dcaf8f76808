"""Idempotency: a call that comes twice, at once, under another payload or after a crash acts once.

Where the contract says that the destination honours the key, the tool's own function is held to it:
executed twice under one key, it must answer the same and leave the same state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

from pydantic_core import to_jsonable_python

from counterseal.canonical import at
from counterseal.codes import Code
from counterseal.contract.model import OnUnknown
from counterseal.evaluation.cases import (
    Arguments,
    CaseRun,
    EvaluationMode,
    GeneratedCase,
    NotTriedError,
    ended,
    expect,
)
from counterseal.evaluation.samples import other_arguments
from counterseal.evaluation.scratch import Executed, Scratch, Subject
from counterseal.reconcile import Reconciler

_AT_ONCE: Final = 5
_LEASE: Final = 31.0


def _why_not(subject: Subject) -> str:
    return "" if subject.contract.idempotency.required else "its calls need no key"


def _cases(subject: Subject) -> Iterator[GeneratedCase]:
    crash = f"idempotency; on_unknown: {subject.contract.on_unknown}"
    for name, why, run in (
        ("the same call twice", "idempotency", _twice(subject)),
        ("the same key in another run", "idempotency", _other_run(subject)),
        (f"{_AT_ONCE} calls at once", "idempotency", _at_once(subject)),
        ("other arguments under the same key", "idempotency", _other_payload(subject)),
        ("a worker dies before it writes the outcome", crash, _crash(subject)),
    ):
        arguments = subject.good.arguments
        yield GeneratedCase(name=name, why=why, run=run, arguments=arguments)


def check_effects(scratch: Scratch) -> None:
    """Fail if the tool has acted more than once under a key."""
    by_key: dict[str | None, list[Executed]] = {}
    for one in scratch.executed:
        if one.tool == scratch.subject.name:
            by_key.setdefault(one.key, []).append(one)
    expect(len(by_key) <= 1, f"one call was executed under {len(by_key)} keys")
    place = scratch.subject.contract.external_ref
    for made in by_key.values():
        answers = [_answer(one.output, place) for one in made]
        expect(
            all(one == answers[0] for one in answers),
            "the tool ignores its key: executed again under the same one, it answered"
            f" {answers[-1]!r} instead of {answers[0]!r}",
        )
    if not scratch.subject.real:
        expect(scratch.world.effects <= 1, f"one call took effect {scratch.world.effects} times")


def _answer(output: Any, place: str | None) -> Any:
    plain = to_jsonable_python(output, fallback=repr)
    return plain if place is None else at(plain, place)


def _twice(subject: Subject) -> CaseRun:
    async def run(arguments: Arguments) -> None:
        async with subject.scratch() as scratch:
            first = await scratch.carry_out(arguments, operation_id="op_1")
            expect(first.ok, f"the first ended with {ended(first)}")
            again = await scratch.submit(arguments, operation_id="op_1")
            expect(scratch.executions == 1, f"executed {scratch.executions} times")
            expect(
                again.idempotency_hit and again.data == first.data,
                f"the repeat was not answered with the first answer, but with {ended(again)}",
            )

    return run


def _other_run(subject: Subject) -> CaseRun:
    async def run(arguments: Arguments) -> None:
        async with subject.scratch() as scratch:
            first = await scratch.carry_out(arguments, key="evaluation")
            expect(first.ok, f"the first ended with {ended(first)}")
            await scratch.submit(arguments, key="evaluation", run_id="run_evaluation_2")
            expect(scratch.executions == 1, f"executed {scratch.executions} times")

    return run


def _at_once(subject: Subject) -> CaseRun:
    async def run(arguments: Arguments) -> None:
        async with subject.scratch() as scratch:
            if subject.asks:
                held = await scratch.submit(arguments, key="evaluation")
                await scratch.approve(str(held.approval_id))
            calls = [scratch.submit(arguments, key="evaluation") for _ in range(_AT_ONCE)]
            ends = await asyncio.gather(*calls)
            wrong = [one for one in ends if not one.ok and one.code is not _CONFLICT]
            expect(not wrong, f"one of them ended with {ended(wrong[0]) if wrong else ''}")
            expect(scratch.executions == 1, f"executed {scratch.executions} times")

    return run


_CONFLICT: Final = Code.IDEMPOTENCY_CONFLICT


def _other_payload(subject: Subject) -> CaseRun:
    async def run(arguments: Arguments) -> None:
        other = other_arguments(subject.contract, arguments)
        if other is None:
            raise NotTriedError("its arguments have no other valid value")
        async with subject.scratch() as scratch:
            first = await scratch.carry_out(arguments, key="evaluation")
            expect(first.ok, f"the first ended with {ended(first)}")
            end = await scratch.submit(other, key="evaluation")
            expect(scratch.executions == 1, f"{other} was executed under the same key")
            expect(not end.ok, f"{other} was answered with the answer of {dict(arguments)}")

    return run


def _crash(subject: Subject) -> CaseRun:
    async def run(arguments: Arguments) -> None:
        async with subject.scratch(dies=True) as dying:
            await dying.carry_out(arguments, key="evaluation")
            expect(dying.executions == 1, "it was not executed before the worker died")
            dying.clock.advance(_LEASE)
            async with subject.scratch(beside=dying) as scratch:
                await Reconciler(scratch.runtime).once()
                scratch.clock.advance(3600)
                await Reconciler(scratch.runtime).once()
                end = await scratch.submit(arguments, key="evaluation")
                check_effects(scratch)
                again = subject.contract.on_unknown is OnUnknown.RETRY_SAME_KEY
                expect(
                    again or scratch.executions == 1,
                    f"executed {scratch.executions} times, although on_unknown is"
                    f" {subject.contract.on_unknown}",
                )
                known = subject.contract.on_unknown is not OnUnknown.ESCALATE
                expect(end.ok or not known, f"its outcome is still not known: {ended(end)}")

    return run


MODE: Final = EvaluationMode(
    name="idempotency",
    purpose="Duplicates, calls at once, other payloads and crashes do not act twice.",
    why_not=_why_not,
    cases=_cases,
)
